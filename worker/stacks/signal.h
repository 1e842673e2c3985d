// SPDX-License-Identifier: Apache-2.0
//
// Return addresses of another thread of this process: a signal interrupts the thread, and the
// handler walks its stack. ptrace is not used, because pods forbid it. No handler is installed
// before the first thread is asked. The signal is the first real-time signal from SIGRTMIN + 3 that
// has no handler; if the program takes it later, the next one. The handler stays, and ignores
// signals that were not sent from here. It allocates nothing, takes no lock and keeps errno.
//
// The caller decides which threads a signal does not disturb: a thread that runs, or one that
// sleeps in a call that bears it (sleep_again.h), both with room on their stack (room.h). One risk
// remains: a thread may fall asleep between the decision and the signal, in a call that then ends
// with EINTR.

#ifndef WORKER_STACKS_SIGNAL_H
#define WORKER_STACKS_SIGNAL_H

#include "protos/types.h"
#include "worker/stacks/proc_task.h"
#include "worker/stacks/unwind.h"

#include <stdbool.h>
#include <stdint.h>

// Loads everything that a handler needs to walk a stack. Called once, before the first question.
void stack_signal_prepare(void);

// Asks a thread of this process. signals comes from proc_task_read: a thread that blocks the signal
// is not asked. With STACK_SIGNAL the addresses are filled in; else they are unchanged. Blocks
// until the answer, at most until deadline_ms (of clock_now_ms) and as long again. One question at
// a time.
enum stack_how stack_signal_ask(uint32_t tid, const struct proc_signals *signals,
                                uint64_t deadline_ms, struct stack_addresses *addresses);

#endif
