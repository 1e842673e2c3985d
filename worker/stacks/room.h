// SPDX-License-Identifier: Apache-2.0
//
// Finds out whether a thread's stack has room for a signal handler. Without room the kernel kills
// the process. Any thread; allocates nothing.

#ifndef WORKER_STACKS_ROOM_H
#define WORKER_STACKS_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

// Returns the bytes that the kernel's signal frame and the handler need.
size_t stack_room_bytes(void);

// True if the stack has room for stack_room_bytes() bytes. If the thread sleeps, `at` is its stack
// pointer. If the thread runs, its stack pointer is not known, and `at` is any address on its
// stack; then the function returns true only if the end of the stack has never been used. Reads
// /proc/thread-self/maps.
bool stack_room(uintptr_t at, bool sleeps);

// For the handler: true if it runs on the thread's own stack, or has room on the alternate one. The
// thread may have set that after its last call of the library. at: an address in its frame.
bool stack_room_in_handler(const ucontext_t *context, uintptr_t at);

#endif
