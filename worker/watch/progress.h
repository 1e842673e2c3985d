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

#include "protos/trace.h"
#include "protos/types.h"

struct lockstep_call;
struct lockstep_session;
struct usual;

// A visit of a thread to a function of the library. On its stack.
struct visit {
    struct lockstep_session *session;
    uint64_t place; // Function, module and call.
    uint64_t entered_ms;
};

// 0, or -1: no memory. Their words are the trace's.
int progress_open(struct lockstep_session *session);
void progress_close(struct lockstep_session *session);

// The trainer enters a function of the library that is not grad_ready. module: PROGRESS_NO_MODULE,
// or of what it is about, with the call. Visits of several threads may overlap.
struct visit progress_enter(struct lockstep_session *session, enum api_function function,
                            uint32_t module, uint32_t call);
// It leaves it. Returns status.
int progress_leave(const struct visit *visit, int status);

// A call was opened, or is over with so many gradients complete. Trainer.
void progress_call_begun(struct lockstep_call *call);
void progress_call_over(struct lockstep_call *call, uint32_t complete);

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
void progress_mark_locked(struct lockstep_session *session, const char *text);
void progress_pause_locked(struct lockstep_session *session, const char *reason, uint64_t pause_ms);
void progress_resume_locked(struct lockstep_session *session);

// The world has formed; how far the step has come. Driver.
void progress_formed(struct lockstep_session *session);
void progress_order(struct lockstep_session *session);

// All that a heartbeat says but its links, its mates and what /proc knows. Any thread.
void progress_read(const struct lockstep_session *session, struct up_message *message);

#endif
