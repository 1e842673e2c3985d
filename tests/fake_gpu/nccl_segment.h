// SPDX-License-Identifier: Apache-2.0
//
// A segment: the shared memory of the ranks of one communicator, in one process or several. It is
// an anonymous file (memfd). The unique id holds the process and the descriptor of the file; other
// ranks open the file through /proc while the process that made the id has it open. The system
// frees the segment when the last rank has ended, in whatever way.
#ifndef TESTS_FAKE_GPU_NCCL_SEGMENT_H
#define TESTS_FAKE_GPU_NCCL_SEGMENT_H

#include "worker/device/nccl.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SEGMENT_RANKS_MAX = 64,
    SEGMENT_CHUNK_BYTES = 64 * 1024,
    SEGMENT_WAIT_MS = 20, // A waiting rank checks at least this often for an abort.
};

// Fields on which the ranks have to agree in an operation.
struct segment_call {
    int kind;
    int type;
    int reduction;
    int root;
    uint64_t count;
    uint64_t position;
};

struct segment_rank {
    _Atomic uint32_t arrived; // 1 + the rank's device; 0: the rank has not arrived.
    // Number of the latest comm_meet() of this rank. `call` and the data belong to that one.
    _Atomic uint64_t phase;
    struct segment_call call;
};

struct segment {
    uint64_t nonce;
    _Atomic uint32_t ranks; // Number of ranks, set by the first rank that arrives.
    _Atomic uint32_t bell; // Counts calls of segment_ring; waiting ranks sleep on it (futex).
    _Atomic uint32_t aborted;
    struct segment_rank rank[SEGMENT_RANKS_MAX];
    _Alignas(64) unsigned char data[SEGMENT_RANKS_MAX][SEGMENT_CHUNK_BYTES];
};

// Makes a segment and its unique id. False: the system refused.
bool segment_create(struct nccl_unique_id *id);
// NULL: the segment does not exist, or no longer.
struct segment *segment_open(const struct nccl_unique_id *id);
void segment_close(struct segment *segment);
// Makes the id invalid; ranks that have the segment open keep it. Does nothing in a process that
// did not make the id.
void segment_forget(const struct nccl_unique_id *id);

// Wakes all ranks that wait in segment_wait.
void segment_ring(struct segment *segment);
// Waits until segment_ring is called after the caller read `bell`, at most SEGMENT_WAIT_MS.
void segment_wait(struct segment *segment, uint32_t bell);

#endif
