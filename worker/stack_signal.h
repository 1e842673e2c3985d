// SPDX-License-Identifier: Apache-2.0
//
// Return addresses of another thread of this process: a signal interrupts it, and the handler walks
// its stack. Never ptrace, which pods forbid. Nothing is installed before the first thread is
// asked; then it is the first real-time signal from SIGRTMIN + 3 that has no handler, and if the
// program takes that one later, the next. The handler stays; it does nothing for a signal that was
// not asked for here. It allocates nothing, takes no lock and keeps errno.
//
// An interrupted thread goes on with what it did, also with a sleep (sleep_again.h). What is left:
// system calls that end with EINTR after any handler (signal(7)) and are not made anew, those of a
// socket with a timeout for one; and a sleep that is asked about twice. So threads are asked after
// a verdict, and seldom.

#ifndef WORKER_STACK_SIGNAL_H
#define WORKER_STACK_SIGNAL_H

#include "protos/types.h"
#include "worker/proc_task.h"

#include <stdbool.h>
#include <stdint.h>

struct stack_addresses {
    uint32_t count;
    uintptr_t code[LOCKSTEP_STACK_FRAMES]; // Innermost first: where it is, then return addresses.
};

// Loads what walks stacks, so that no handler has to. Once, before the first question.
void stack_signal_prepare(void);

// Asks a thread of this process. state and signals are what proc_task.h says of it: a thread that
// blocks the signal or sleeps in state D is not asked. STACK_SIGNAL: addresses are filled in; else
// they are none. Blocks until the answer, or deadline_ms (of clock_now_ms) and as long again. One
// thread at a time.
enum stack_how stack_signal_ask(uint32_t tid, char state, const struct proc_signals *signals,
                                uint64_t deadline_ms, struct stack_addresses *addresses);

#endif
