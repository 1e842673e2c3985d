// SPDX-License-Identifier: Apache-2.0
//
// What is known of a thread of this process without disturbing it: what the kernel says of it, and,
// while it sleeps, its frames (unwind.h) and the thread that it waits for. The thread may go on at
// any time, so what was read counts only if the thread has not run since. Any thread; allocates
// nothing.

#ifndef WORKER_STACKS_SLEEP_H
#define WORKER_STACKS_SLEEP_H

#include "worker/stacks/proc_task.h"
#include "worker/stacks/unwind.h"

#include <stdbool.h>
#include <stdint.h>

enum stack_look {
    LOOK_GONE, // There is no such thread.
    LOOK_SLEEPS, // Its frames are there: STACK_ASLEEP or STACK_CUT.
    LOOK_RUNS,
    LOOK_UNKNOWN, // It sleeps, and its frames are not known: /proc does not say, or it wakes often.
};

// Sets signals, and all of thread but trainer and other; how only with LOOK_SLEEPS. resident: as
// for unwind().
enum stack_look stack_sleep_look(uint32_t tid, bool resident, struct stack_thread *thread,
                                 struct proc_signals *signals, struct stack_addresses *addresses);

#endif
