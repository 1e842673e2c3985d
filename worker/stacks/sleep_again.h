// SPDX-License-Identifier: Apache-2.0
//
// A sleeping thread is interrupted only if it continues its sleep afterwards. The kernel restarts
// many system calls after a handler, but calls that sleep for a time end with EINTR. On x86-64 the
// handler restarts such a call as the kernel does with others: it sets the thread back to the
// instruction that made the call. It does so only if the call then ends when it should, and only if
// the thread is still in the same call with the same arguments as before.

#ifndef WORKER_STACKS_SLEEP_AGAIN_H
#define WORKER_STACKS_SLEEP_AGAIN_H

#include "worker/stacks/proc_task.h"

#include <stdbool.h>
#include <stdint.h>

// True if a signal can interrupt a thread in this call without an effect: the kernel or
// sleep_again() continues the call after the handler, and the call ends when it would have ended.
// True only for calls that are known to behave so; false for a socket with a timeout, for poll(),
// and for sleeps whose time would begin again.
bool sleep_again_unnoticed(const struct proc_call *call);

// Restarts the call if it was about to return EINTR to the thread. For a signal handler, with its
// context.
void sleep_again(void *context, const struct proc_call *call);

#endif
