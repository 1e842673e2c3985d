// SPDX-License-Identifier: Apache-2.0
//
// Parts of an exchange that the receiver reads in the memory of the sender, on one host: one copy
// instead of two, and no turn of the sender's thread while bytes move. Engine thread.
//
//     ANNOUNCE  the sender has launched: the part lies at this address, and holds still
//     TAKEN     the receiver has read it
//
// A receiver that cannot read there grants the part instead, and the sender sends it.
//
// Which parts. A part that needs credit is announced anyway. A part that needs none is announced
// instead of sent if it is not short, and if the member sends a part, too. A rank whose part goes
// one way only may end before its receiver begins, and trainers may rely on that.
//
// Why it cannot deadlock. A part that is read waits for nothing but the launch of its receiver, as
// a granted one does.

#include "worker/transport/direct/pull.h"

#include "base/clock.h"
#include "worker/kernels/dtype.h"
#include "worker/transport/direct/direct.h"
#include "worker/transport/flow/flow.h"

#include <string.h>

#define PULL_LEAST_BYTES (32 * 1024) // Shorter parts are sent, if they need no credit.
#define PULL_BYTES FLOWS_MOVE_BYTES // The driver reads so much of a member's part at a time.

static uint64_t pull_size(const struct flow *flow, const struct collective_part *part)
{
    return part->elements * dtype_size(flow->collective->dtype);
}

static bool pull_link_may(const struct direct_member *member)
{
    const struct link *link = member->peer->stream.link;
    return link && link->ops->pulls && link->ops->pulls(link);
}

// ---- the sender ---------------------------------------------------------------------------------

// A grant may be here before the announcement. Then the part is sent.
bool pull_announce(struct flows *flows, const struct flow *flow, struct direct_member *member)
{
    struct direct_row *row = &member->finals_out;
    const uint64_t bytes = pull_size(flow, member->send);
    const bool eager = direct_is_eager(flow, member->send->elements);
    const bool wanted = eager ? member->receive && bytes >= PULL_LEAST_BYTES : row->granted == 0;
    const bool offers = wanted && pull_link_may(member);
    member->announced = true;
    if (eager && !offers)
        return false;
    if (offers)
        row->granted = 0;
    member->offered = offers;
    return direct_say(
        flows, flow, member->peer,
        (struct direct_word){.part = DIRECT_ANNOUNCE,
                             .weight = member->send->elements,
                             .address = offers ? (uintptr_t)member->send->memory : 0});
}

const char *pull_check_taken(const struct direct_member *member, const struct frame_header *header)
{
    return member->offered && member->finals_out.granted == 0 && header->payload_bytes == 0
               ? NULL
               : "it was not offered to it";
}

void pull_end(struct flows *flows, struct flow *flow, struct direct_member *member)
{
    struct direct_row *row = &member->finals_out;
    row->granted = row->begun = row->done = row->count;
    flows->totals.payload_bytes_sent += pull_size(flow, member->send);
    if (flow->collective->first_sent_us == 0)
        flow->collective->first_sent_us = clock_now_us();
    flow->sends_left -= row->count;
    direct_advance(flows, flow);
}

// ---- the receiver -------------------------------------------------------------------------------

const char *pull_check_announcement(const struct direct_member *member,
                                    const struct frame_header *header)
{
    const bool sized = header->payload_bytes == 0 ||
                       (!member->paced && header->payload_bytes == DIRECT_ADDRESS_BYTES);
    return sized && !member->heard && member->finals_in.begun == 0 ? NULL : "it announces nothing";
}

void pull_hear(struct flows *flows, struct direct_member *member, void *block)
{
    member->heard = true;
    member->asks = member->paced;
    if (!block)
        return;
    if (!member->counted) // Otherwise it was granted already, and is sent.
        memcpy(&member->offer, block, sizeof(member->offer));
    scratch_put(&flows->pools.chunks, block);
}

bool pull_may_come(const struct direct_member *member)
{
    return member->offer != 0 || (!member->heard && pull_link_may(member));
}

static void pull_is_done(struct flows *flows, struct flow *flow, struct direct_member *member)
{
    struct direct_row *row = &member->finals_in;
    row->granted = row->begun = row->done = row->count;
    flow->receives_left -= row->count;
    flow->collective->last_received_us = clock_now_us();
    direct_advance(flows, flow);
}

bool pull_some(struct flows *flows, struct flow *flow, struct direct_member *member)
{
    struct direct_run *run = flow->part;
    if (member->offer == 0)
        return false;
    struct link *link = member->peer->stream.link;
    const uint64_t left = pull_size(flow, member->receive) - member->pulled;
    const uint64_t bytes = left < PULL_BYTES ? left : PULL_BYTES;
    uint8_t *to = (uint8_t *)member->receive->memory + member->pulled;
    if (!link || !link->ops->pull ||
        link->ops->pull(link, member->offer + member->pulled, to, bytes, bytes == left) < 0) {
        member->offer = 0;
        run->fed = false;
        member->finals_in.granted = 0; // The sender sends it, when it has credit.
        return true;
    }
    member->pulled += bytes;
    flows->moved_bytes += bytes;
    if (bytes < left)
        return true;
    member->offer = 0;
    if (direct_say(flows, flow, member->peer,
                   (struct direct_word){.part = DIRECT_TAKEN, .weight = member->receive->elements}))
        pull_is_done(flows, flow, member);
    return true;
}
