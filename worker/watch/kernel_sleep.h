// SPDX-License-Identifier: Apache-2.0
//
// What a thread in state D sleeps in: the system call by name, and the function of the kernel. A
// dead mount and a hung disk look like "read (nfs_wait_bit_killable)". Numbers and texts of /proc
// go in, one short text comes out. Any thread; allocates nothing.

#ifndef WORKER_WATCH_KERNEL_SLEEP_H
#define WORKER_WATCH_KERNEL_SLEEP_H

#include <stddef.h>
#include <stdint.h>

// Text for a system call of this machine by its number: "read", or "system call 999" when the
// number has no name here. Empty when the number is negative.
void kernel_sleep_call(int32_t number, char *text, size_t bytes);
// "read (nfs_wait_bit_killable)". The number is negative, as in stack_thread.syscall, for a thread
// in no known system call, as one that waits for a page: then the function stands alone. wchan may
// be empty. The text is empty when neither is known.
void kernel_sleep_text(int32_t number, const char *wchan, char *text, size_t bytes);

#endif
