// SPDX-License-Identifier: Apache-2.0
//
// The facts that the kernel reports about one thread of this process: its name, state, system call,
// the kernel function in which it sleeps, and its signals. Reads the texts below /proc/self/task,
// which needs no privileges. Any thread; allocates nothing, and never waits for the thread in
// question.

#ifndef WORKER_STACKS_PROC_TASK_H
#define WORKER_STACKS_PROC_TASK_H

#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

#define PROC_TASK_DIRECTORY "/proc/self/task"

// The system call that a thread sleeps in.
struct proc_call {
    uint64_t number; // UINT64_MAX: no system call, or not known; then the arguments are 0.
    uint64_t arguments[6];
    uint64_t stack; // The stack pointer; 0: the thread runs, or the stack pointer is not known.
    uint64_t code; // The address after the instruction of the call, where the thread will continue.
};

// The facts that decide whether a thread is interrupted. In a set of signals, bit n - 1 is signal
// n.
struct proc_signals {
    uint64_t blocked;
    uint64_t pending; // Signals sent to this thread and not taken yet.
    // How often the thread has left its processor. If the number is unchanged, the thread has not
    // run.
    uint64_t switches;
    struct proc_call call;
};

// Sets tid, name, state, syscall and wchan of thread. A fact that cannot be read or understood has
// the value for "not known" in protos/types.h; then signals has no signal and no call. Returns
// false if there is no such thread. directory is PROC_TASK_DIRECTORY, except in tests.
bool proc_task_read(const char *directory, uint32_t tid, struct stack_thread *thread,
                    struct proc_signals *signals);

// Lists the threads of the process, at most `most`. Returns the number of threads listed.
uint32_t proc_task_list(const char *directory, uint32_t *tids, uint32_t most);

#endif
