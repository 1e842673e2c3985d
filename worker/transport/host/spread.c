// SPDX-License-Identifier: Apache-2.0
//
// Spreads ranks that share the cores of a host over these cores. The kernel moves threads to an
// idle core. But a rank that waits by yielding (worker/transport/wait.c) keeps its core busy, even
// if no other thread is there. So four ranks on two cores can stay three on one and one on the
// other for seconds: the single one polls in vain while the three take turns. And two ranks that
// sleep and wake each other can stay on one of two cores.
//
// Each rank publishes on the board on which core it waits. If more ranks wait on one core than its
// share, the one in the highest seat moves to the core with the fewest ranks, among those on which
// its thread may run: it sets its affinity to that core alone for a moment, and then restores it.
// The kernel may still move the rank back. One rank at a time moves, rarely, and only after it has
// seen the same state several times in a row: the state may be outdated, because a rank that
// computes publishes nothing. Engine thread.

#include "worker/transport/host/spread.h"

#include "worker/transport/host/host.h"

#include "base/clock.h"

#include <sched.h>

#define SPREAD_WAITS 32 // Waits between two checks of where the mates are.
#define SPREAD_LOOKS 4 // Checks in a row that must find the same state.
#define SPREAD_NOWHERE CPU_SETSIZE
#define SPREAD_PAUSE_MS 20 // Pause between two moves of a rank.

// Number of ranks that wait on a core.
static uint32_t spread_count(const struct shared *shared, size_t core)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < shared->seats; i++)
        count += board_read(&host_seat(shared, i)->core) == core + 1;
    return count;
}

// True if this rank must leave its core.
static bool spread_leaves(const struct shared *shared, size_t core)
{
    const uint32_t cores = shared->flows->processors;
    const uint32_t share = (shared->seats + cores - 1) / cores;
    for (uint32_t i = shared->seat + 1; i < shared->seats; i++) {
        if (board_read(&host_seat(shared, i)->core) == core + 1)
            return false;
    }
    return spread_count(shared, core) > share;
}

// Returns the core with the fewest ranks, if it has fewer than the other ranks on this rank's core;
// SPREAD_NOWHERE: none.
static size_t spread_choose(const struct shared *shared, size_t own, const cpu_set_t *allowed)
{
    size_t best = SPREAD_NOWHERE;
    uint32_t fewest = spread_count(shared, own) - 1;
    for (size_t core = 0; core < CPU_SETSIZE && fewest > 0; core++) {
        const uint32_t count = CPU_ISSET(core, allowed) ? spread_count(shared, core) : fewest;
        if (count < fewest) {
            fewest = count;
            best = core;
        }
    }
    return best;
}

static void spread_move(struct shared *shared, size_t own)
{
    cpu_set_t allowed;
    cpu_set_t there;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
        return;
    const size_t core = spread_choose(shared, own, &allowed);
    if (core == SPREAD_NOWHERE)
        return;
    CPU_ZERO(&there);
    CPU_SET(core, &there);
    if (sched_setaffinity(0, sizeof(there), &there) < 0)
        return;
    (void)sched_setaffinity(0, sizeof(allowed), &allowed);
    shared->flows->totals.core_moves++;
}

void spread_wait(struct flows *flows)
{
    struct shared *shared = flows->shared;
    const int here = shared && shared->stands ? sched_getcpu() : -1;
    if (here < 0)
        return;
    const size_t core = (size_t)here;
    struct spread *spread = &shared->spread;
    struct board_counter *said = &host_seat(shared, shared->seat)->core;
    if (board_read(said) != core + 1)
        board_publish(said, core + 1);
    if (++spread->waits % SPREAD_WAITS != 0)
        return;
    spread->looks = spread_leaves(shared, core) ? spread->looks + 1 : 0;
    if (spread->looks < SPREAD_LOOKS || clock_coarse_ms() < spread->next_ms)
        return;
    spread->looks = 0;
    spread->next_ms = clock_coarse_ms() + SPREAD_PAUSE_MS;
    spread_move(shared, core);
}
