// SPDX-License-Identifier: Apache-2.0
//
// Where the threads of this process are: what the kernel says of each thread, its native frames,
// and its Python frames (python.h). Threads that have called a session come first. A thread that
// sleeps, or that has not called the library, is not disturbed; other threads are interrupted by a
// signal. A capture takes up to STACKS_MS, PYTHON_MS and NAMER_MS (namer.h) together, so it is made
// after a verdict only. The watch thread; allocates in stacks_open only. In a forked child it finds
// nothing and does nothing.

#ifndef WORKER_STACKS_STACKS_H
#define WORKER_STACKS_STACKS_H

#include "protos/types.h"
#include "worker/support/callers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STACKS_FRAMES 2048 // Most frames of all threads together.
#define STACKS_OTHER_FRAMES 16 // Most frames of a thread that has not called the library.
#define STACKS_TIDS 512 // Most threads of the process that are looked at.
#define STACKS_ANSWER_MS 100 // The time in which one thread has to answer.
#define STACKS_MS 300 // The time for all threads. Later threads are reported without frames.

struct namer;
struct python;

struct stacks {
    uint32_t thread_count; // The last caller comes first, then the other callers.
    uint32_t frame_count;
    struct stack_thread threads[LOCKSTEP_STACK_THREADS];
    // The frames of one thread after another. Each thread has its Python frames and then its native
    // frames, innermost first. The offset of a frame that has called another one is inside the
    // call, not after it.
    struct stack_frame frames[STACKS_FRAMES];

    // stacks.c only
    struct python *python; // NULL: no interpreter.
    struct namer *namer;
    int pid; // The process that opened it.
    uintptr_t code[STACKS_FRAMES]; // Address of each native frame; 0: Python.
    bool disk; // True if a thread slept in state D when the capture began.
    uint32_t tid_count;
    uint32_t tids[STACKS_TIDS]; // All threads of the process.
};

// Looks for an interpreter; one that is loaded later is not seen. 0, or LOCKSTEP_E_SYSTEM.
// stacks_close accepts NULL.
int stacks_open(struct stacks **stacks);
void stacks_close(struct stacks *stacks);

// Fills in threads and frames. callers: the session whose threads are meant; NULL: all sessions. A
// process makes one capture at a time; other captures wait for it.
void stacks_capture(struct stacks *stacks, const struct callers *callers);

#endif
