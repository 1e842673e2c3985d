// SPDX-License-Identifier: Apache-2.0
//
// Describes the system call that a thread in state D sleeps in: the name of the call, and the
// function of the kernel. A dead mount or a hung disk looks like "read (nfs_wait_bit_killable)".
// The input is numbers and texts of /proc, the output is one short text. Any thread; allocates
// nothing.

#ifndef WORKER_WATCH_KERNEL_SLEEP_H
#define WORKER_WATCH_KERNEL_SLEEP_H

#include <stddef.h>
#include <stdint.h>

// Writes the name of a system call of this machine: "read"; "system call 999" if the number has no
// name in the table. The text is empty if the number is negative.
void kernel_sleep_call(int32_t number, char *text, size_t bytes);
// Writes a text such as "read (nfs_wait_bit_killable)". The number is negative, as in
// stack_thread.syscall, if the thread is in no known system call, for example because it waits for
// a page; then the text is only the function. wchan may be empty. The text is empty if both are
// unknown.
void kernel_sleep_text(int32_t number, const char *wchan, char *text, size_t bytes);

#endif
