// SPDX-License-Identifier: Apache-2.0
//
// An NCCL communicator: the devices of one generation, one for each rank that has one. It is formed
// without blocking, watched for errors while it works, and ended within a time, whatever NCCL does
// about it. What is sent is worker/transport/device/nccl.c's. NCCL's functions are nccl.h's.
//
// Threads: the driver, between device_enter and device_leave. Ending runs on a thread of its own
// (lockstep-nccl), which the driver waits for until its time is over, and leaves behind then.

#ifndef WORKER_DEVICE_COMMUNICATOR_H
#define WORKER_DEVICE_COMMUNICATOR_H

#include "protos/types.h"
#include "worker/device/device.h"

#include <stdbool.h>
#include <stdint.h>

#define COMMUNICATOR_ID_BYTES 128
#define COMMUNICATOR_TEXT_BYTES 384 // What failed, NCCL's name for it, and what it has said.

struct communicator; // Opaque.

enum communicator_state {
    COMMUNICATOR_BUSY, // It forms, or takes what it was given last. Ask again.
    COMMUNICATOR_STANDS, // It has taken everything so far.
    COMMUNICATOR_BROKEN, // Nothing more comes of it.
};

// What the ranks of a communicator meet by: made by one of them, and told to all. 0, or -1 with a
// sentence.
int communicator_id(uint8_t id[COMMUNICATOR_ID_BYTES], char *error, size_t error_bytes);

// Begins to form; all ranks have to. NULL: error says why not. device: borrowed.
struct communicator *communicator_begin(struct device *device,
                                        const uint8_t id[COMMUNICATOR_ID_BYTES], uint32_t rank,
                                        uint32_t ranks, char *error, size_t error_bytes);
enum communicator_state communicator_poll(struct communicator *communicator);
// Why it is broken: "ncclAllReduce: unhandled system error; NCCL said last: 'no socket'".
const char *communicator_text(const struct communicator *communicator);
// What NCCL has said last of what went wrong, in one line. That may be of another communicator of
// the process, and long ago. "": nothing.
void communicator_said(const struct communicator *communicator, char *text, size_t bytes);

// Enqueues on DEVICE_REDUCE: out = the sum of `in` over all ranks; words likewise, in place. All
// are addresses of the device, and nothing is launched for what is empty. Only when it stands:
// after it, it may be busy, and what has to come behind it on the stream has to wait until it
// stands again. 0, or -1: it is broken.
int communicator_reduce(struct communicator *communicator, uint64_t in, uint64_t out,
                        uint64_t elements, enum dtype dtype, uint64_t words, uint64_t word_count);

// The same, but every rank gets its part of the sum only: `out` = elements [rank * each, + each) of
// the sum of `in`, which has `each` for each rank. out may be where that part lies in `in`.
int communicator_share(struct communicator *communicator, uint64_t in, uint64_t out, uint64_t each,
                       enum dtype dtype, uint64_t words, uint64_t word_count);

// Memory that it will be given often, for transfers without a copy where NCCL has that. Again: it
// is known.
void communicator_register(struct communicator *communicator, uint64_t memory, size_t bytes);

// Frees it, and waits for that at most so long. in_order: all is done that was enqueued, and the
// others end it likewise; else it is given up, and what is enqueued ends at once, with garbage.
// False: NCCL has not come back, and what it holds is left to it.
bool communicator_end(struct communicator *communicator, bool in_order, uint64_t most_ms);

#endif
