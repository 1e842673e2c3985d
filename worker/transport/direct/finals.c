// SPDX-License-Identifier: Apache-2.0
//
// The final elements of an allreduce by direct: the pieces of each owner are final in order, its
// own when they are summed, those of others when they have arrived. Engine thread.

#include "worker/transport/direct/finals.h"

#include "worker/transport/direct/direct.h"
#include "worker/transport/flow/finals.h"

static void finals_add_member(const struct flow *flow, const struct direct_member *member,
                              struct finals *finals)
{
    const struct direct_row *row = &member->finals_in;
    for (uint32_t i = 0; i < row->done; i++)
        finals_add(finals, direct_span(member, i));
    if (row->begun > row->done && finals_arrives(member->peer, flow) &&
        member->peer->stream.header.part == DIRECT_FINAL)
        finals_add_arriving(finals, member->peer, direct_span(member, row->done));
}

void direct_finals(const struct flows *flows, const struct flow *flow, struct finals *finals)
{
    const struct direct_run *run = flow->part;
    (void)flows;
    if (!run) {
        finals->unknown = "this rank had no memory for it";
        return;
    }
    finals_weigh(finals, flow->collective->weight_total);
    for (uint32_t i = 0; i < run->summed; i++)
        finals_add(finals, direct_span(&run->members[run->own], i));
    for (uint32_t i = 0; i < run->count; i++) {
        if (i != run->own)
            finals_add_member(flow, &run->members[i], finals);
    }
}
