// SPDX-License-Identifier: Apache-2.0
//
// Reads of this process's own memory that cannot crash: what other threads and the loader own may
// go away at any time. The kernel copies the bytes, and says so when they are not there. Any
// thread; allocates nothing.

#ifndef WORKER_STACKS_PEEK_H
#define WORKER_STACKS_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Copies bytes. False: not all of them can be read, or the kernel refuses process_vm_readv.
bool peek(uintptr_t address, void *to, size_t bytes);

// The same, but false as well when the bytes are not in main memory. For memory that belongs to
// files, while a file system may be what hangs: a read would hang, too. The kernel says of the
// files of other users that they are in main memory.
bool peek_resident(uintptr_t address, void *to, size_t bytes);

// True if no byte of [from, to) has been written since it was mapped, or all are swapped out.
// Both are rounded to pages, outwards.
bool peek_untouched(uintptr_t from, uintptr_t to);

#endif
