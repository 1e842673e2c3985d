// SPDX-License-Identifier: Apache-2.0
//
// Facts about a thread of this process that do not disturb it: what the kernel says and, while the
// thread sleeps, its frames (unwind.h) and the thread that it waits for. The thread may go on at
// any time, so the facts count only if it has not run since. Any thread; allocates nothing.

#ifndef WORKER_STACKS_SLEEP_H
#define WORKER_STACKS_SLEEP_H

#include "worker/stacks/proc_task.h"
#include "worker/stacks/unwind.h"

#include <stdbool.h>
#include <stdint.h>

enum stack_look {
    LOOK_GONE, // There is no such thread.
    LOOK_SLEEPS, // It sleeps, and its frames are known: STACK_ASLEEP or STACK_CUT.
    LOOK_RUNS,
    LOOK_UNKNOWN, // It sleeps, and /proc does not say where, or it wakes too often.
};

// Sets signals, and all of thread but `trainer` and `other`; `how` is set with LOOK_SLEEPS only.
// resident: as for unwind().
enum stack_look stack_sleep_look(uint32_t tid, bool resident, struct stack_thread *thread,
                                 struct proc_signals *signals, struct stack_addresses *addresses);

#endif
