// SPDX-License-Identifier: Apache-2.0
//
// Jobs for the conformance suite. A job is a list of collectives with random memory layouts. All
// ranks run them, in different orders. Then each element is compared with a slow reference, which
// sums in the order of the algorithm, and with a sum in double precision, with a tolerance.

#ifndef TESTS_TRANSPORT_JOB_H
#define TESTS_TRANSPORT_JOB_H

#include "tests/conformance/transport_fleet.h"

// The properties of a collective, the same on all ranks.
struct job_spec {
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;
    uint64_t elements;
    // These four as in struct collective.
    bool input_is_sum;
    enum dtype partial;
    enum dtype final;
    int exponent;
    bool special; // True if some inputs are infinite or NaN.
    bool holes; // True if some extents have no input or no output.
    bool separate; // True if outputs have memory of their own.
    // Number of units (parameters), of random lengths; each rank uses random units. 0: no units.
    uint32_t units;
    uint64_t weights[FLEET_MAX];
};

struct job;

struct job *job_make(uint32_t world, uint32_t chunk_bytes, uint64_t seed);
// Sets the algorithm of the job's reductions; the default is ALGORITHM_RING.
void job_use(struct job *job, enum plan_algorithm algorithm);
// NCCL sums the job's floats, in an order of its own. A sum is then only compared with the sum in
// double precision, and between ranks.
void job_use_nccl(struct job *job);
// Allocates the memory of collectives added later in regions. Returns the regions of each rank;
// the job owns them.
struct regions **job_register(struct job *job);
// Waits until all mates have mapped the memory of all ranks. Called once on each rank.
void job_wait_mapped(struct member *member, struct job *job);
void job_add(struct job *job, const struct job_spec *spec);
// Runs the job on this rank and waits for its end. The order inside each block of 8 collectives is
// random, and different on each rank.
void job_run(struct member *member, struct job *job);
// Launches all collectives in the order of job_add and does not wait.
void job_launch_all(struct member *member, struct job *job);
// Makes the next run use other tags. Called between runs, by one thread.
void job_again(struct job *job);
// Compares every element of every rank with the reference; ends the program if one differs.
void job_check(const struct job *job, const char *name);
// Checks that every element of every rank, except the rank `without`, is unchanged or final.
void job_check_intact_or_final(const struct job *job, const char *name, uint32_t without);
void job_free(struct job *job);

uint64_t job_random(uint64_t *state);

#endif
