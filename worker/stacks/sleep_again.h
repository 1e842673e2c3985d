// SPDX-License-Identifier: Apache-2.0
//
// A thread that sleeps is interrupted only where it goes on with its sleep. The kernel takes many
// system calls up again after a handler, but not those that sleep for a time: they end with EINTR.
// On x86-64 the handler makes such a call anew, as the kernel does with the others: by putting the
// thread before the instruction that made it. Only if the call then ends when it should, and only
// if the thread is still in the very call, with the same arguments, in which it was seen before.

#ifndef WORKER_STACKS_SLEEP_AGAIN_H
#define WORKER_STACKS_SLEEP_AGAIN_H

#include "worker/stacks/proc_task.h"

#include <stdbool.h>
#include <stdint.h>

// Whether a signal can interrupt a thread in this call and nobody notices: the kernel goes on with
// the call after the handler, or sleep_again() does, and the call ends when it would have ended.
// Only calls that are known to be so. Of a socket with a timeout, of poll() and of sleeps whose
// time would begin anew it is false.
bool sleep_again_unnoticed(const struct proc_call *call);

// In a handler, with its context: makes the call anew if the thread was about to see EINTR of it.
void sleep_again(void *context, const struct proc_call *call);

#endif
