// SPDX-License-Identifier: Apache-2.0
//
// Whether a signal handler finds room on the stack of a thread. Without it the kernel ends the
// process. Reads /proc/self/maps; any thread; allocates nothing.

#ifndef WORKER_STACKS_ROOM_H
#define WORKER_STACKS_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes that the kernel's frame and the handler take.
size_t stack_room_bytes(void);

// Whether so many bytes are below an address. at: of a thread that sleeps, its stack pointer.
// sleeps false: any address on the stack of a thread that runs, whose stack pointer is not known.
// Then there is room only where the end of the stack has never been used.
bool stack_room(uintptr_t at, bool sleeps);

#endif
