// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the fake NCCL for tests: threads, each with a device, a stream, memory and a
// communicator. Each function is for the rank's own thread.
#ifndef TESTS_UNIT_WORKER_FAKE_RANKS_H
#define TESTS_UNIT_WORKER_FAKE_RANKS_H

#include "base/thread.h"
#include "tests/unit/worker/fake_rig.h"

enum {
    TEST_RANKS = 4, // Most ranks of a test.
    SMALL = 100,
    LARGE = 50000, // float32: more than a chunk of the fake, and no multiple.
    ROW_BYTES = LARGE * 8 * TEST_RANKS,
    NOT_YET_MS = 30, // Time in which a result must not come.
};

struct rank {
    int rank, ranks;
    struct nccl_unique_id id;
    bool blocking;
    void *context;
    void *stream;
    void *comm;
    uint64_t in, out; // [ROW_BYTES]
    unsigned char *host; // [ROW_BYTES], pinned
    void (*body)(struct rank *rank);
    struct thread thread;
};

// Runs the body on `ranks` threads, each with a device of its own.
void rank_threads_run(int ranks, bool blocking, void (*body)(struct rank *rank));
void rank_device_open(struct rank *rank);
void rank_device_close(struct rank *rank);
int rank_comm_open(struct rank *rank); // Returns the state of the new communicator.

int rank_error(const struct rank *rank); // ncclCommGetAsyncError
int rank_settle(const struct rank *rank); // Waits until rank_error is not ncclInProgress.
int rank_launched(const struct rank *rank, int result); // The result of a launch by this rank.
int rank_all_reduce(const struct rank *rank, size_t count); // float32, from in to out
bool rank_stands(const struct rank *rank); // True if the stream has not finished in NOT_YET_MS.

void rank_put(const struct rank *rank, const void *values, size_t bytes); // into `in`
const void *rank_get(const struct rank *rank, uint64_t from, size_t bytes);

float value_of(int rank, size_t i);
float *row_of(int rank, size_t count); // The caller frees it.
// Elements are the sums of all ranks' values from `first` on, added in the order of ranks.
void assert_sum(const float *out, int ranks, size_t first, size_t count);

#endif
