// SPDX-License-Identifier: Apache-2.0
//
// Return addresses of another thread of this process: a signal interrupts it, and the handler walks
// its stack. Never ptrace, which pods forbid. Nothing is installed before the first thread is
// asked; then it is the first real-time signal from SIGRTMIN + 3 that has no handler, and if the
// program takes that one later, the next. The handler stays; it does nothing for a signal that was
// not asked for here. It allocates nothing, takes no lock and keeps errno.
//
// The caller decides whom a signal does not disturb: a thread that runs, and one that sleeps in a
// call that bears it (sleep_again.h), both with room on their stack (room.h). What is left: a
// thread may fall asleep between the decision and the signal, in a call that ends with EINTR then.

#ifndef WORKER_STACKS_SIGNAL_H
#define WORKER_STACKS_SIGNAL_H

#include "protos/types.h"
#include "worker/stacks/proc_task.h"
#include "worker/stacks/unwind.h"

#include <stdbool.h>
#include <stdint.h>

// Loads what walks stacks, so that no handler has to. Once, before the first question.
void stack_signal_prepare(void);

// Asks a thread of this process. signals is what proc_task.h says of it: a thread that blocks the
// signal is not asked. STACK_SIGNAL: addresses are filled in; else they stay as they are. Blocks
// until the answer, or deadline_ms (of clock_now_ms) and as long again. One thread at a time.
enum stack_how stack_signal_ask(uint32_t tid, const struct proc_signals *signals,
                                uint64_t deadline_ms, struct stack_addresses *addresses);

#endif
