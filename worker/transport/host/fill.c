// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a host fill their slots: *through the caches*, or *past* them, straight to
// memory. Which is faster depends on how far their cores are from each other. Data that one core
// has written is in its caches, and another core fetches it from there, line by line. Between cores
// that share a cache nothing is faster. Between sockets, or parts of a socket that share no cache,
// each line takes several times as long as a line from memory, which a core can also prefetch. And
// before a slot is written again, each line has to be invalidated in the caches of its readers.
// There 25 MiB take 12 ms through the caches and 3 ms past them; with near cores 2.9 and 3.9 ms
// (docs/internals/data-plane.md).
//
// A virtual machine does not say how far its cores are, and its host moves them while it runs. So
// the leader compares both ways on real runs, and chooses for each run how all ranks fill slots
// (board_run.streams). All ranks use the same way, because the writer pays only a part of the cost
// and the readers pay the rest: only then the time of one rank tells which way is better. The
// leader measures its own work on the pieces of a run, which contains no wait. Runs of different
// sizes use different caches, so each size class has its own trial (worker/transport/host/trial.h).
// The bits of the result do not depend on the way. Engine thread.

#include "worker/transport/host/fill.h"

#include "worker/transport/host/host.h"

#include "base/clock.h"

#define FILL_SMALLEST_BITS 14 // The first size class is runs below 16 KiB.
#define FILL_CLASS_BITS 2 // Each next class is runs up to four times as large.

static uint32_t fill_class(uint64_t bytes)
{
    uint32_t class = 0;
    for (bytes >>= FILL_SMALLEST_BITS; bytes > 0 && class < FILL_CLASSES - 1; class ++)
        bytes >>= FILL_CLASS_BITS;
    return class;
}

static uint64_t fill_bytes(const struct flow *flow)
{
    return host_elements(flow->collective) * flow->map.element_bytes;
}

static uint64_t fill_now_ns(void)
{
    return clock_coarse_ms() * 1000000;
}

bool fill_choose(struct shared *shared, uint64_t run, const struct flow *flow)
{
    struct fill *fill = &shared->fill;
    const enum slot_fill wish = shared->flows->slot_fill;
    uint32_t way = FILL_PAST;
    fill->tasks[run % BOARD_RUNS] = TRIAL_NONE;
    if (wish != FILL_MEASURED)
        return wish == FILL_PAST;
    fill->tasks[run % BOARD_RUNS] =
        trial_give(&fill->trials[fill_class(fill_bytes(flow))], fill_now_ns(), &way);
    return way == 1;
}

void fill_see(struct shared *shared, struct host_run *run, const struct board_run *from)
{
    run->streams = from->streams != 0;
    if (shared->seat == 0)
        run->task = shared->fill.tasks[shared->runs_seen % BOARD_RUNS];
}

uint64_t fill_begin(const struct host_run *run)
{
    return run->task != TRIAL_NONE ? clock_now_ns() : 0;
}

void fill_end(struct host_run *run, uint64_t since_ns)
{
    if (run->task != TRIAL_NONE)
        run->worked_ns += clock_now_ns() - since_ns;
}

void fill_done(struct shared *shared, struct host_run *run, const struct flow *flow)
{
    const uint32_t task = run->task;
    const uint64_t bytes = fill_bytes(flow);
    if (run->pieces > 0)
        shared->flows->totals.runs_filled[run->streams]++;
    run->task = TRIAL_NONE;
    if (task != TRIAL_NONE)
        trial_took(&shared->fill.trials[fill_class(bytes)], task, run->worked_ns,
                   run->pieces > 0 ? bytes : 0, fill_now_ns());
}
