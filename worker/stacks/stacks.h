// SPDX-License-Identifier: Apache-2.0
//
// Where the threads of this process are: the facts that the kernel reports about each thread, its
// native frames, and its Python frames (python.h). Threads that have called a session come first. A
// thread that sleeps, or that has not called the library, is normally not disturbed; a signal
// interrupts the other threads. A capture takes up to STACKS_MS, PYTHON_MS and NAMER_MS (namer.h)
// together, so it is made only when the coordinator asks for it. In a forked child a capture finds
// no thread.
//
// A trainer may hang while it loads a library, and then it holds the loader's lock. So the
// functions that take this lock run on the trainer's thread: stacks_open and stacks_find_python.
// They also are the only ones that allocate. A capture runs on the watch thread, and does not wait
// for the lock.

#ifndef WORKER_STACKS_STACKS_H
#define WORKER_STACKS_STACKS_H

#include "protos/types.h"
#include "worker/support/callers.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STACKS_FRAMES 2048 // Most frames of all threads together.
#define STACKS_OTHER_FRAMES 16 // Most frames of a thread that has not called the library.
#define STACKS_TIDS 512 // Most threads of the process that are listed.
#define STACKS_ANSWER_MS 100 // Milliseconds in which one thread has to answer.
// Milliseconds for all threads. Threads that come later are reported without frames.
#define STACKS_MS 300

struct namer;
struct python;

struct stacks {
    uint32_t thread_count; // The last caller comes first, then the other callers.
    uint32_t frame_count;
    struct stack_thread threads[LOCKSTEP_STACK_THREADS];
    // The frames of all threads, thread after thread. Each thread has first its Python frames and
    // then its native frames, both innermost first. The offset of a frame that has called another
    // function is inside the call instruction, not after it.
    struct stack_frame frames[STACKS_FRAMES];

    // stacks.c only
    _Atomic(struct python *) python; // NULL: no interpreter was found. Set once.
    struct namer *namer;
    int pid; // Process id of the process that opened the struct.
    uintptr_t code[STACKS_FRAMES]; // Address of each native frame; 0 for a Python frame.
    bool disk; // True if a thread slept in state D when the capture began.
    uint32_t tid_count;
    uint32_t tids[STACKS_TIDS]; // All threads of the process.
};

// Loads what a capture needs, and looks for a Python interpreter. Trainer. Returns 0, or
// LOCKSTEP_E_SYSTEM. stacks_close accepts NULL.
int stacks_open(struct stacks **stacks);
// Looks again if no interpreter was found: the program may have loaded one since. Trainer; may run
// during a capture.
void stacks_find_python(struct stacks *stacks);
void stacks_close(struct stacks *stacks);

// Fills in threads and frames. callers: the session whose callers come first; NULL: the callers of
// all sessions. A process makes one capture at a time; other captures wait for it.
void stacks_capture(struct stacks *stacks, const struct callers *callers);

#endif
