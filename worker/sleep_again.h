// SPDX-License-Identifier: Apache-2.0
//
// A thread that is asked for its stack goes on with its sleep. The kernel takes most system calls
// up again after a handler, but not those that sleep for a time: they end with EINTR, and sleep()
// is over early. This makes such a call anew, as the kernel does with the others: by putting the
// thread before the instruction that made it. Only in a call that is known to bear it, and only if
// the thread is still in the very call, with the same arguments, in which it was seen before.
// x86-64; elsewhere, and where the kernel does not say what a thread is in, it ends with EINTR.

#ifndef WORKER_SLEEP_AGAIN_H
#define WORKER_SLEEP_AGAIN_H

#include "worker/proc_task.h"

#include <stdbool.h>
#include <stdint.h>

// Whether the call that a thread is in may be made anew. A call that counts its time from its
// beginning sleeps longer then, at most twice as long as it should: so it is made anew once, and is
// ended early if it is still the same one at the next question. Who asks; one thread at a time.
bool sleep_again_may(uint32_t tid, const struct proc_call *call);

// In a handler, with its context: makes the call anew if the thread was about to see EINTR of it.
void sleep_again(void *context, const struct proc_call *call);

#endif
