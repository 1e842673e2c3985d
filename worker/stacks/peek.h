// SPDX-License-Identifier: Apache-2.0
//
// Reads this process's own memory without the risk of a crash: memory of other threads and of the
// loader may be unmapped at any time. The kernel copies the bytes, and reports an error if they are
// not mapped. Any thread; allocates nothing.

#ifndef WORKER_STACKS_PEEK_H
#define WORKER_STACKS_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Copies bytes. Returns false if some of them cannot be read, or if the kernel refuses
// process_vm_readv.
bool peek(uintptr_t address, void *to, size_t bytes);

// As peek, but also returns false if some of the bytes are not in main memory. For memory that is
// mapped from files while a file system may hang, because a read of such memory would hang, too.
// For files of other users the kernel always reports that the bytes are in main memory.
bool peek_resident(uintptr_t address, void *to, size_t bytes);

// True if no byte of [from, to) has been written since it was mapped, or if all of them are swapped
// out. Both ends are rounded outwards to pages.
bool peek_untouched(uintptr_t from, uintptr_t to);

#endif
