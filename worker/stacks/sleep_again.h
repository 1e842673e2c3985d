// SPDX-License-Identifier: Apache-2.0
//
// A sleeping thread is interrupted only if it continues its sleep afterwards. The kernel restarts
// many system calls after a handler, but calls that sleep for a limited time end with EINTR. On
// x86-64 the handler restarts such a call in the way of the kernel: it sets the thread back to the
// instruction of the call. The handler does so only if the restarted call ends at the same time as
// the original call would, and only if the thread is still in the same call with the same arguments
// as before.

#ifndef WORKER_STACKS_SLEEP_AGAIN_H
#define WORKER_STACKS_SLEEP_AGAIN_H

#include "worker/stacks/proc_task.h"

#include <stdbool.h>
#include <stdint.h>

// True if a signal can interrupt a thread in this call without an effect: the kernel or
// sleep_again() continues the call after the handler, and the call ends when it would have ended.
// True only for calls that are known to behave so. False for a socket with a timeout, for poll(),
// and for sleeps whose time would start again.
bool sleep_again_unnoticed(const struct proc_call *call);

// Called in a signal handler, with the handler's context. Restarts the call if it was about to
// return EINTR to the thread.
void sleep_again(void *context, const struct proc_call *call);

#endif
