// SPDX-License-Identifier: Apache-2.0
//
// Finds names for the frames of a capture. A separate thread reads the names from the files of
// libraries and programs, because such a file may lie on a mount that no longer answers, and then
// the thread that opens the file hangs. The watch thread must not hang: it sends the heartbeats. So
// it waits for at most NAMER_MS, and frames that have no names by then keep only object and offset.
// Watch thread.

#ifndef WORKER_STACKS_NAMER_H
#define WORKER_STACKS_NAMER_H

#include "protos/types.h"

#include <stddef.h>
#include <stdint.h>

#define NAMER_MS 1000
#define NAMER_FRAMES 2048

struct namer;

// Starts the thread. Returns NULL if there is no memory or no thread. namer_close accepts NULL. It
// does not wait for a thread that hangs: that thread then owns the memory, and frees it when its
// file system answers. Trainer.
struct namer *namer_open(void);
void namer_close(struct namer *namer);
uint32_t namer_tid(struct namer *namer); // Returns the kernel id of the thread.

// As symbols_name, for at most NAMER_FRAMES frames. While the thread hangs, no frame gets a symbol.
void namer_name(struct namer *namer, struct stack_frame *frames, const uintptr_t *addresses,
                size_t count);

#endif
