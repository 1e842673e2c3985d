// SPDX-License-Identifier: Apache-2.0
//
// Finds facts about a thread of this process without disturbing it: the facts that the kernel
// reports and, while the thread sleeps, its frames (unwind.h) and the thread that it waits for. The
// thread may continue at any time, so the facts count only if the thread has not run meanwhile. Any
// thread; allocates nothing.

#ifndef WORKER_STACKS_SLEEP_H
#define WORKER_STACKS_SLEEP_H

#include "worker/stacks/proc_task.h"
#include "worker/stacks/unwind.h"

#include <stdbool.h>
#include <stdint.h>

enum stack_look {
    LOOK_GONE, // There is no such thread.
    // The thread sleeps, and its frames were walked: thread->how is STACK_ASLEEP or STACK_CUT.
    LOOK_SLEEPS,
    LOOK_RUNS,
    // The thread sleeps, and /proc does not report where, or the thread wakes too often.
    LOOK_UNKNOWN,
};

// Sets signals, addresses, and all fields of thread except `trainer` and `other`; sets `how` only
// if the result is LOOK_SLEEPS. resident: as for unwind().
enum stack_look stack_sleep_look(uint32_t tid, bool resident, struct stack_thread *thread,
                                 struct proc_signals *signals, struct stack_addresses *addresses);

#endif
