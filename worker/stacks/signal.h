// SPDX-License-Identifier: Apache-2.0
//
// Gets the return addresses of another thread of this process: a signal interrupts the thread, and
// the handler walks the thread's stack. ptrace is not used, because pods forbid it. No handler is
// installed before the first thread is asked. The signal is the first real-time signal from
// SIGRTMIN + 3 on that has no handler; if the program later takes that signal, the next free one.
// The handler stays installed, and ignores signals that this file has not sent. The handler
// allocates nothing, takes no lock and keeps errno.
//
// The caller decides which threads may be interrupted: a thread that runs, or a thread that sleeps
// in a call that continues afterwards (sleep_again.h), each with room on its stack (room.h). One
// risk remains: a thread may fall asleep between the decision and the signal, in a call that then
// ends with EINTR.

#ifndef WORKER_STACKS_SIGNAL_H
#define WORKER_STACKS_SIGNAL_H

#include "protos/types.h"
#include "worker/stacks/proc_task.h"
#include "worker/stacks/unwind.h"

#include <stdbool.h>
#include <stdint.h>

// Loads everything that the handler needs to walk a stack. Called before stack_signal_ask. Waits
// for the loader's lock, as python_open does.
void stack_signal_prepare(void);

// Asks a thread of this process for its addresses. signals comes from proc_task_read: a thread that
// blocks the signal is not asked. If the result is STACK_SIGNAL, the addresses are filled in;
// otherwise they are unchanged. addresses->whole is false, because the handler does not know where
// the thread begins. Blocks until the answer, at most until deadline_ms (of clock_now_ms), and if
// the handler has begun, at most as long again. One question at a time.
enum stack_how stack_signal_ask(uint32_t tid, const struct proc_signals *signals,
                                uint64_t deadline_ms, struct stack_addresses *addresses);

#endif
