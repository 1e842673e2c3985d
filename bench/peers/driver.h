// SPDX-License-Identifier: Apache-2.0
//
// One program for each peer, with one loop for all: driver.c measures, and a peer is the five
// functions below. All of them end the process with a sentence when they fail. Main thread.

#ifndef LOCKSTEP_BENCH_PEERS_DRIVER_H
#define LOCKSTEP_BENCH_PEERS_DRIVER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct peer_world {
    int rank;
    int size;
};

// Joins the ranks that the launcher has started. It takes the facts that it needs from the
// environment.
void peer_open(int argc, char **argv, struct peer_world *world);

// Zeroed memory for payloads, aligned to a page. Until the end of the process.
void *peer_allocate(size_t bytes);

// Sums over all ranks, in place, and returns when the sums are there.
void peer_allreduce(float *payload, size_t count);

enum peer_move {
    MOVE_NONE, // Sums in place are measured.
    MOVE_REDUCE_SCATTER, // input: `size` parts; output: one.
    MOVE_ALL_GATHER, // input: one part; output: `size` parts.
    MOVE_ALL_TO_ALL, // Both: `size` parts.
};

// Another collective than a sum, out of place. count: the elements of a part. A peer that does not
// have it ends the process.
void peer_move(enum peer_move move, const float *input, float *output, size_t count);

void peer_close(void);

// "Open MPI 4.1.4": for the report.
const char *peer_version(void);

// Says why and ends the process.
void peer_fail(const char *what, const char *why);

// The same memory for everyone who needs none of its own kind: mapped, with huge pages where the
// kernel gives them.
void *peer_map(size_t bytes);

// A variable of the environment that the launcher has set.
const char *peer_variable(const char *name);

#ifdef __cplusplus
}
#endif

#endif
