// SPDX-License-Identifier: Apache-2.0
//
// Names for the frames of a capture, read from the files of libraries and programs by a thread of
// its own. Such a file may lie on a mount that answers no more, and then the thread that opens it
// does not come back. The watch thread must come back: it sends the heartbeats. So it waits for at
// most NAMER_MS, and frames that have no names by then keep object and offset. The watch thread.

#ifndef WORKER_STACKS_NAMER_H
#define WORKER_STACKS_NAMER_H

#include "protos/types.h"

#include <stddef.h>
#include <stdint.h>

#define NAMER_MS 1000
#define NAMER_FRAMES 2048

struct namer;

// NULL: no memory. namer_close accepts NULL, and does not wait for a thread that is stuck: that
// thread then owns the memory, and frees it when its file system answers.
struct namer *namer_open(void);
void namer_close(struct namer *namer);

// As symbols_name, for at most NAMER_FRAMES frames. While a thread is stuck, no other one is
// started, and nothing has a symbol.
void namer_name(struct namer *namer, struct stack_frame *frames, const uintptr_t *addresses,
                size_t count);

#endif
