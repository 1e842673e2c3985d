// SPDX-License-Identifier: Apache-2.0
//
// The memory in which the ranks of a communicator meet, in one process or several. A unique id
// names it: it is a file without a name, which the others open through /proc while the process that
// made the id has it open. Nothing is left of it when the last rank has gone, however it went.
#ifndef TESTS_FAKE_GPU_NCCL_SEGMENT_H
#define TESTS_FAKE_GPU_NCCL_SEGMENT_H

#include "worker/device/nccl.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SEGMENT_RANKS_MAX = 64,
    SEGMENT_CHUNK_BYTES = 64 * 1024,
    SEGMENT_WAIT_MS = 20, // At most so long until a waiting rank looks whether it was given up.
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
    _Atomic uint32_t arrived; // 1 + its device, once it is there.
    _Atomic uint64_t
        phase; // How often it has met the others. Its call and data are of that meeting.
    struct segment_call call;
};

struct segment {
    uint64_t nonce;
    _Atomic uint32_t ranks; // Number of ranks, as the first rank to arrive said.
    _Atomic uint32_t bell; // Changes with every change of the segment.
    _Atomic uint32_t aborted;
    struct segment_rank rank[SEGMENT_RANKS_MAX];
    _Alignas(64) unsigned char data[SEGMENT_RANKS_MAX][SEGMENT_CHUNK_BYTES];
};

// false: the system refused.
bool segment_create(struct nccl_unique_id *id);
// NULL: there is no such segment (any more).
struct segment *segment_open(const struct nccl_unique_id *id);
void segment_close(struct segment *segment);
// All have it open, or will never: the id names nothing any more. In other processes: nothing.
void segment_forget(const struct nccl_unique_id *id);

// Tells all who wait that something has changed.
void segment_ring(struct segment *segment);
// Waits until it rang since the caller read `bell`, or for SEGMENT_WAIT_MS.
void segment_wait(struct segment *segment, uint32_t bell);

#endif
