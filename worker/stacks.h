// SPDX-License-Identifier: Apache-2.0
//
// Where the threads of this process that have called a session are: what the kernel says of each,
// its native frames (stack_signal.h), and those of its Python (python.h). For after a verdict: a
// capture interrupts the threads, and takes up to STACKS_MS and PYTHON_MS. The watch thread;
// allocates in stacks_open only. In a forked child it finds nothing and does nothing.

#ifndef WORKER_STACKS_H
#define WORKER_STACKS_H

#include "protos/types.h"
#include "worker/threads.h"

#include <stddef.h>
#include <stdint.h>

#define STACKS_FRAMES 2048 // Of all threads together.
#define STACKS_ANSWER_MS 100 // What one thread may take to answer, ...
#define STACKS_MS 300 // ... and all of them. Those who come later are reported without frames.

struct python;

struct stacks {
    uint32_t thread_count; // The last caller is the first one.
    uint32_t frame_count;
    struct stack_thread threads[LOCKSTEP_STACK_THREADS];
    // Thread after thread; of one, the Python frames and then the native ones, innermost first.
    // The offset of a frame that has called another one is inside the call, not after it.
    struct stack_frame frames[STACKS_FRAMES];

    // stacks.c only
    struct python *python; // NULL: no interpreter.
    int pid; // Of the process that opened it.
    uintptr_t code[STACKS_FRAMES]; // Address of each native frame; 0: Python.
};

// Loads the unwinder and looks for an interpreter; one that is loaded later is not seen. Nothing
// else is put in place. 0, or LOCKSTEP_E_SYSTEM. stacks_close accepts NULL.
int stacks_open(struct stacks **stacks);
void stacks_close(struct stacks *stacks);

// Fills in threads and frames. callers: the session whose threads are meant; NULL: of all sessions.
// One capture at a time in a process; others wait for it.
void stacks_capture(struct stacks *stacks, const struct thread_callers *callers);

#endif
