// SPDX-License-Identifier: Apache-2.0
//
// The final elements of a collective in memory of one host. Through slots only this rank writes its
// memory: all of each piece that it has copied out, and its own part of each piece that it has
// reduced. With two levels a part is final in user memory only when its piece is copied out. A shot
// is final when it is done.
//
// In registered memory mates write, too; fence.c knows how far they are. Engine thread.

#include "worker/transport/host/finals.h"

#include "worker/transport/flow/finals.h"
#include "worker/transport/host/fence.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/pieces.h"

// Finds the run of a flow. False: this rank has not seen it, so nothing of it is written.
static bool finals_run(const struct shared *shared, const struct flow *flow, uint64_t *number)
{
    for (uint64_t i = shared->runs_done; i < shared->runs_seen; i++) {
        *number = i;
        if (shared->runs[i % BOARD_RUNS].flow == flow)
            return true;
    }
    return false;
}

void host_finals(const struct flows *flows, const struct flow *flow, struct finals *finals)
{
    const struct shared *shared = flows->shared;
    uint64_t number = 0;
    if (!finals_run(shared, flow, &number))
        return;
    const struct host_run *run = &shared->runs[number % BOARD_RUNS];
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (shared->mates[i] && shared->mates[i]->impossible)
            finals->unknown = "a rank of its host has written something impossible";
    }
    if (finals->unknown)
        return;
    finals_weigh(finals, run->partial ? run->total : run->weight);
    if (run->registered) {
        fence_finals(shared, run, number, finals);
        return;
    }
    for (uint64_t piece = run->first; piece < run->first + run->pieces; piece++) {
        const struct ring_span whole = pieces_span(flow, run, piece);
        if (piece < shared->out.piece)
            finals_add(finals, whole);
        else if (piece < shared->reduce.piece && !run->partial)
            finals_add(finals, pieces_part(whole, shared->seats, shared->seat));
    }
}
