// SPDX-License-Identifier: Apache-2.0
//
// Ranks that share the cores of a host are spread over them. The kernel moves threads to a core
// that has nothing to do. But a rank that waits by letting others run (worker/transport/wait.c)
// keeps its core busy, also where there are no others. So four ranks on two cores can stay three
// and one for seconds: the one looks in vain while the three take turns. And two that sleep and
// wake each other can stay on one of two cores.
//
// Each rank says on the board on which core it waits. Where more of them wait on one core than its
// share, the one in the highest seat moves to the core with the fewest, of those on which its
// thread may run: its affinity is that core alone for a moment, and then what it was before. Where
// the kernel thinks otherwise it moves it back. One rank at a time does it, rarely, and after it
// has seen the same several times in a row: what is seen may be old, because a rank that computes
// says nothing. Engine thread.

#include "worker/transport/host/spread.h"

#include "worker/transport/host/host.h"

#include "base/clock.h"

#include <sched.h>

#define SPREAD_WAITS 32 // Between two looks at where the others are.
#define SPREAD_LOOKS 4 // In a row that have to see the same.
#define SPREAD_NOWHERE CPU_SETSIZE
#define SPREAD_PAUSE_MS 20 // Between two moves of a rank.

// Ranks that wait on a core.
static uint32_t spread_count(const struct shared *shared, size_t core)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < shared->seats; i++)
        count += board_read(&host_seat(shared, i)->core) == core + 1;
    return count;
}

// True if this rank is the one that has to leave its core.
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

// The core with the fewest ranks, on which this one has fewer beside it than on its own;
// SPREAD_NOWHERE: there is none.
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
