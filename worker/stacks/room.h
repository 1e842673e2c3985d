// SPDX-License-Identifier: Apache-2.0
//
// Whether a signal handler finds room on the stack of a thread. Without it the kernel ends the
// process. Reads /proc/self/maps; any thread; allocates nothing.

#ifndef WORKER_STACKS_ROOM_H
#define WORKER_STACKS_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes that the kernel's frame and the handler need.
size_t stack_room_bytes(void);

// True if the stack has that room. If the thread sleeps, `at` is its stack pointer. If it runs, its
// stack pointer is not known, and `at` is any address on its stack; then there is room only if the
// end of the stack has never been used.
bool stack_room(uintptr_t at, bool sleeps);

#endif
