// SPDX-License-Identifier: Apache-2.0
//
// Where the trainer is: which function of the library it is in or was in last, how far its step has
// come, whether it is paused. It is written into the words of the session's trace (protos/trace.h),
// by the trainer's threads and by the driver, with relaxed stores and no lock; whoever wants to
// know reads them at any time, also of a process that was killed.
//
// What is usual: for each function, module and call it is remembered how long the trainer stayed
// away after it, in powers of two. From that follow the 99th percentile and the longest time, by
// which a stall is told from a pause as usual.

#ifndef WORKER_WATCH_PROGRESS_H
#define WORKER_WATCH_PROGRESS_H

#include "base/mutex.h"
#include "protos/trace.h"
#include "protos/types.h"
#include "worker/watch/trace.h"

#include <assert.h>

struct usual;

// Follows the trainer of one session. The session embeds it.
struct tracker {
    // set at open, then constant
    struct trace *trace;
    struct progress *words; // In the trace.
    struct usual *usual; // Owned by progress.c.
    struct mutex *mutex; // Guards pauses and waits; the session's.
    const uint32_t *trainer_threads; // The number of threads that may wait for calls at a time.
    const atomic_uint *call_waits; // The number of threads that wait for calls now.
    atomic_bool *noted; // True while a failed call counts as the reason of a close.
};

// A visit of a thread to a function of the library. On its stack.
struct visit {
    const struct tracker *tracker;
    uint64_t place; // Function, module and call.
    uint64_t entered_ms;
};

// Completes a tracker of which all other fields are set. 0, or -1: no memory.
int progress_open(struct tracker *tracker);
void progress_close(struct tracker *tracker);

// The trainer enters a function of the library that is not grad_ready. module: PROGRESS_NO_MODULE,
// or of what it is about, with the call. Visits of several threads may overlap.
struct visit progress_enter(const struct tracker *tracker, enum api_function function,
                            uint32_t module, uint32_t call);
// It leaves it. Returns status.
int progress_leave(const struct visit *visit, int status);

// A call of a module, counted from 0 in its step.
struct tracked_call {
    uint64_t step;
    uint32_t module;
    uint32_t number;
    uint32_t gradients; // The number of gradients to be reported in the call.
};

// A call was opened, or is over with so many gradients complete. Trainer.
void progress_call_begun(const struct tracker *tracker, const struct tracked_call *call);
void progress_call_over(const struct tracker *tracker, const struct tracked_call *call,
                        uint32_t complete);

// A gradient of an open call is complete, or declared unused. Any thread.
static inline void progress_gradient(struct progress *progress)
{
    atomic_fetch_add_explicit(&progress->ready, 1, memory_order_relaxed);
}

// So many threads more wait for other ranks: 1 or -1. Caller holds the session's mutex.
static inline void progress_wait_locked(struct progress *progress, int more)
{
    const uint64_t waiting = atomic_load_explicit(&progress->waiting, memory_order_relaxed);
    atomic_store_explicit(&progress->waiting, waiting + (uint64_t)more, memory_order_relaxed);
}

// lockstep_pause and lockstep_resume. Caller holds the session's mutex.
void progress_mark_locked(const struct tracker *tracker, const char *text);
void progress_pause_locked(const struct tracker *tracker, const char *reason, uint64_t pause_ms);
void progress_resume_locked(const struct tracker *tracker);

// The world has formed. Driver.
void progress_formed(const struct tracker *tracker, const struct generation_id *generation,
                     uint32_t rank, uint32_t world_size);

// The word `place` holds how far the step has come: one word, because its fields belong together.
enum place_shift {
    PLACE_COUNT = 11,
    PLACE_MODULE = 22,
    PLACE_CALL = 29,
    PLACE_BUCKET = 38,
    PLACE_DONE = 49,
    PLACE_OPEN = 50,
    PLACE_LEARNING = 51,
};
static_assert(LOCKSTEP_MAX_SLOTS + 1 < 1 << 11 && LOCKSTEP_MAX_MODULES <= 1 << 7 &&
                  LOCKSTEP_MAX_CALLS <= 1 << 9 && LOCKSTEP_MAX_BUCKETS <= 1 << 11,
              "the fields of the word are wide enough");

// How far the step has come. Driver.
static inline void progress_place(struct progress *progress, const struct place *place)
{
    const uint64_t word =
        place->position | (uint64_t)place->count << PLACE_COUNT |
        (uint64_t)place->done << PLACE_DONE | (uint64_t)place->open << PLACE_OPEN |
        (uint64_t)place->learning << PLACE_LEARNING | (uint64_t)place->slot.module << PLACE_MODULE |
        (uint64_t)place->slot.call << PLACE_CALL | (uint64_t)place->slot.bucket << PLACE_BUCKET;
    atomic_store_explicit(&progress->place, word, memory_order_release);
}

// Fills in a whole heartbeat except its links, its mates and the facts from /proc. Any thread.
void progress_read(const struct tracker *tracker, struct up_message *message);

#endif
