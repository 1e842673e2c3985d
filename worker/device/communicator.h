// SPDX-License-Identifier: Apache-2.0
//
// An NCCL communicator: it connects the devices of one generation, one device for each rank that
// has one. Forming never blocks, errors are polled while the communicator works, and ending takes a
// bounded time even if NCCL hangs. The transport (worker/transport/device/) decides what is sent;
// nccl.h has the functions of NCCL.
//
// Threads: the driver thread, between device_enter and device_leave. A separate thread
// (lockstep-nccl) ends the communicator. The driver waits for that thread until a deadline, and
// then goes on without it.

#ifndef WORKER_DEVICE_COMMUNICATOR_H
#define WORKER_DEVICE_COMMUNICATOR_H

#include "protos/types.h"
#include "worker/device/device.h"

#include <stdbool.h>
#include <stdint.h>

#define COMMUNICATOR_ID_BYTES 128
// Holds the failed call, NCCL's name for the failure, and NCCL's last error text.
#define COMMUNICATOR_TEXT_BYTES 384

struct communicator; // Opaque.

enum communicator_state {
    COMMUNICATOR_BUSY, // The communicator is forming, or takes the last operation. Poll again.
    COMMUNICATOR_STANDS, // The communicator is formed, and has taken all operations so far.
    COMMUNICATOR_BROKEN, // The communicator has failed for good.
};

// Makes the id by which the ranks of a communicator find each other. One rank calls this, and sends
// the id to all other ranks. Returns 0, or -1 with a sentence in error.
int communicator_id(uint8_t id[COMMUNICATOR_ID_BYTES], char *error, size_t error_bytes);

// Begins to form a communicator. All ranks have to call this. Returns NULL with a sentence in error
// on failure. device is borrowed until the communicator has ended.
struct communicator *communicator_begin(struct device *device,
                                        const uint8_t id[COMMUNICATOR_ID_BYTES], uint32_t rank,
                                        uint32_t ranks, char *error, size_t error_bytes);
enum communicator_state communicator_poll(struct communicator *communicator);
// Returns the reason of COMMUNICATOR_BROKEN: "ncclAllReduce: unhandled system error; NCCL said
// last: 'no socket'".
const char *communicator_text(const struct communicator *communicator);
// Writes NCCL's last error text, as one line; "" if there is none. The text may be old, and may be
// about another communicator of the process.
void communicator_said(const struct communicator *communicator, char *text, size_t bytes);

// Enqueues two sums over all ranks on DEVICE_REDUCE: `out` = the sum of `in`, and `words` = the sum
// of `words`, in place. All addresses are device addresses. A sum of 0 elements launches nothing.
// The state must be COMMUNICATOR_STANDS. The state may be COMMUNICATOR_BUSY afterwards; then the
// caller must enqueue no later work on the stream until the state is COMMUNICATOR_STANDS again.
// Returns 0, or -1: the communicator is broken.
int communicator_allreduce(struct communicator *communicator, uint64_t in, uint64_t out,
                           uint64_t elements, enum dtype dtype, uint64_t words,
                           uint64_t word_count);

// As communicator_allreduce, but each rank gets only its part of the sum: `out` = elements [rank *
// each, (rank + 1) * each) of the sum of `in`. `in` has `each` elements for each rank. `out` may be
// that part of `in`.
int communicator_reduce_scatter(struct communicator *communicator, uint64_t in, uint64_t out,
                                uint64_t each, enum dtype dtype, uint64_t words,
                                uint64_t word_count);

// Registers memory that will be used often, so that NCCL can transfer it without a copy if NCCL
// supports that. A second registration of the same memory does nothing.
void communicator_register(struct communicator *communicator, uint64_t memory, size_t bytes);

// Frees the communicator, and waits for that at most most_ms milliseconds. in_order: true if all
// enqueued work is done and the other ranks end in order, too; otherwise enqueued work is aborted
// and its results are garbage. Returns false if NCCL has not returned in time; then NCCL keeps its
// resources. If no thread can be started, waits as long as NCCL takes.
bool communicator_end(struct communicator *communicator, bool in_order, uint64_t most_ms);

#endif
