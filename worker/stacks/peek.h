// SPDX-License-Identifier: Apache-2.0
//
// Reads this process's own memory without the risk of a crash: memory of other threads and of the
// loader may go away at any time. The kernel copies the bytes, and reports when they are not there.
// Any thread; allocates nothing.

#ifndef WORKER_STACKS_PEEK_H
#define WORKER_STACKS_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Copies bytes. False: not all of them can be read, or the kernel refuses process_vm_readv.
bool peek(uintptr_t address, void *to, size_t bytes);

// The same, but also false if the bytes are not in main memory. For memory of files while a file
// system may hang, because a read would hang, too. For files of other users the kernel always says
// that they are in main memory.
bool peek_resident(uintptr_t address, void *to, size_t bytes);

// True if no byte of [from, to) has been written since it was mapped, or all are swapped out.
// Both ends are rounded outwards to pages.
bool peek_untouched(uintptr_t from, uintptr_t to);

#endif
