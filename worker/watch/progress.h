// SPDX-License-Identifier: Apache-2.0
//
// Where the trainer is: the library function that it is in or was in last, the progress of its
// step, and whether it is paused. The trainer's threads and the driver write these facts into the
// words of the session's trace (protos/trace.h), with relaxed stores and no lock. Any reader can
// read them at any time, even after the process was killed.
//
// What is usual: for each function, module and call progress.c counts how long the trainer stayed
// outside the library after it, in classes of powers of two. From the counts follow the 99th
// percentile and the longest time. With these the coordinator distinguishes a stall from a usual
// pause.

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
    struct progress *words; // The progress words in the trace.
    struct usual *usual; // Owned by progress.c.
    struct mutex *mutex; // Guards pauses and waits; it is the session's mutex.
    const uint32_t *trainer_threads; // Number of threads that may wait for calls at a time.
    const atomic_uint *call_waits; // Number of threads that wait for calls now.
    atomic_bool *noted; // True while a failed call counts as the reason of a close.
};

// One call of a library function by a thread. Lives on the thread's stack.
struct visit {
    const struct tracker *tracker;
    uint64_t place; // Function, module and call in one word, as in the word `api`.
    uint64_t entered_ms;
};

// Fills in the other fields of a tracker: words and usual. Returns 0, or -1: no memory.
int progress_open(struct tracker *tracker);
void progress_close(struct tracker *tracker);

// The trainer enters a function of the library other than grad_ready. module and call: what the
// function is about; module is PROGRESS_NO_MODULE if it is about no module. Visits of several
// threads may overlap.
struct visit progress_enter(const struct tracker *tracker, enum api_function function,
                            uint32_t module, uint32_t call);
// The trainer leaves the function. Returns status.
int progress_leave(const struct visit *visit, int status);

// A call of a module. `number` counts from 0 in a step.
struct tracked_call {
    uint64_t step;
    uint32_t module;
    uint32_t number;
    uint32_t gradients; // Number of gradients that the call has to report.
};

// A call was opened; a call is over, with `complete` of its gradients reported. Trainer.
void progress_call_begun(const struct tracker *tracker, const struct tracked_call *call);
void progress_call_over(const struct tracker *tracker, const struct tracked_call *call,
                        uint32_t complete);

// A gradient of an open call is complete or was declared unused. Any thread.
static inline void progress_gradient(struct progress *progress)
{
    atomic_fetch_add_explicit(&progress->ready, 1, memory_order_relaxed);
}

// Changes the number of threads that wait for other ranks by `more`, which is 1 or -1. Caller holds
// the session's mutex.
static inline void progress_wait_locked(struct progress *progress, int more)
{
    const uint64_t waiting = atomic_load_explicit(&progress->waiting, memory_order_relaxed);
    atomic_store_explicit(&progress->waiting, waiting + (uint64_t)more, memory_order_relaxed);
}

// Record a mark of the trainer, lockstep_pause and lockstep_resume. Caller holds the session's
// mutex.
void progress_mark_locked(const struct tracker *tracker, const char *text);
void progress_pause_locked(const struct tracker *tracker, const char *reason, uint64_t pause_ms);
void progress_resume_locked(const struct tracker *tracker);

// The world has formed. Driver.
void progress_formed(const struct tracker *tracker, const struct generation_id *generation,
                     uint32_t rank, uint32_t world_size);

// The layout of the word `place`, the progress of the step. It is one word, because its fields must
// be consistent.
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

// Writes the progress of the step. Driver.
static inline void progress_place(struct progress *progress, const struct place *place)
{
    const uint64_t word =
        place->position | (uint64_t)place->count << PLACE_COUNT |
        (uint64_t)place->done << PLACE_DONE | (uint64_t)place->open << PLACE_OPEN |
        (uint64_t)place->learning << PLACE_LEARNING | (uint64_t)place->slot.module << PLACE_MODULE |
        (uint64_t)place->slot.call << PLACE_CALL | (uint64_t)place->slot.bucket << PLACE_BUCKET;
    atomic_store_explicit(&progress->place, word, memory_order_release);
}

// Fills in a whole heartbeat, except its links, its mates and the facts from /proc. Any thread.
void progress_read(const struct tracker *tracker, struct up_message *message);

#endif
