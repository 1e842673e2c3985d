// SPDX-License-Identifier: Apache-2.0
//
// An NCCL communicator: the devices of one generation, one for each rank that has a device. It is
// formed without blocking, watched for errors while it works, and ended within a time, whatever
// NCCL does. The transport (worker/transport/device/) says what is sent; nccl.h has the functions
// of NCCL.
//
// Threads: the driver, between device_enter and device_leave. Ending runs on a thread of its own
// (lockstep-nccl). The driver waits for that thread until the time is over, and then leaves it
// behind.

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
    COMMUNICATOR_BUSY, // It is forming, or taking the last operation. Poll again.
    COMMUNICATOR_STANDS, // It is formed, and has taken all operations so far.
    COMMUNICATOR_BROKEN, // It has failed for good.
};

// Makes the id by which the ranks of a communicator find each other. One rank makes it, and tells
// all others. 0, or -1 with a sentence.
int communicator_id(uint8_t id[COMMUNICATOR_ID_BYTES], char *error, size_t error_bytes);

// Begins to form a communicator, which all ranks have to do. NULL with a sentence in error. device
// is borrowed.
struct communicator *communicator_begin(struct device *device,
                                        const uint8_t id[COMMUNICATOR_ID_BYTES], uint32_t rank,
                                        uint32_t ranks, char *error, size_t error_bytes);
enum communicator_state communicator_poll(struct communicator *communicator);
// Why it is broken: "ncclAllReduce: unhandled system error; NCCL said last: 'no socket'".
const char *communicator_text(const struct communicator *communicator);
// The last error text of NCCL, in one line; "": none. It may be about another communicator of the
// process, and old.
void communicator_said(const struct communicator *communicator, char *text, size_t bytes);

// Enqueues on DEVICE_REDUCE: out = the sum of `in` over all ranks, and words = the sum of `words`,
// in place. All are addresses of the device; nothing is launched for an empty one. Only for a
// communicator that stands. Afterwards it may be busy; then later work on the stream has to wait
// until it stands again. 0, or -1: it is broken.
int communicator_reduce(struct communicator *communicator, uint64_t in, uint64_t out,
                        uint64_t elements, enum dtype dtype, uint64_t words, uint64_t word_count);

// The same, but every rank gets only its part of the sum: `out` = elements [rank * each, + each) of
// the sum of `in`, which has `each` elements for each rank. out may be that part of `in`.
int communicator_share(struct communicator *communicator, uint64_t in, uint64_t out, uint64_t each,
                       enum dtype dtype, uint64_t words, uint64_t word_count);

// Registers memory that will be used often, so that NCCL can transfer it without a copy if it
// supports that. Registering the same memory again has no effect.
void communicator_register(struct communicator *communicator, uint64_t memory, size_t bytes);

// Frees the communicator, and waits for that at most most_ms. in_order: true if all enqueued work
// is done and the other ranks end in order, too; else enqueued work ends at once, with garbage.
// False: NCCL has not returned, and keeps what it holds.
bool communicator_end(struct communicator *communicator, bool in_order, uint64_t most_ms);

#endif
