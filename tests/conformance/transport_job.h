// SPDX-License-Identifier: Apache-2.0
//
// Jobs for the conformance suite: a row of collectives with random memory layouts, run by all ranks
// in different orders, and checked against a slow reference: one element at a time, in the order
// of summation that the ring schedule fixes, and again in double precision with a tolerance.

#ifndef TESTS_TRANSPORT_JOB_H
#define TESTS_TRANSPORT_JOB_H

#include "tests/conformance/transport_fleet.h"

// Facts on which all ranks agree.
struct job_spec {
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;
    uint64_t elements;
    bool input_is_sum;
    enum dtype partial; // As of struct collective.
    enum dtype final;
    int exponent;
    bool special; // Some inputs are infinite or NaN.
    bool holes; // Some extents have no input or no output.
    bool separate; // Outputs are not the inputs' memory.
    uint32_t units; // Parameters inside, of random lengths; 0: none. Ranks use them at random.
    uint64_t weights[FLEET_MAX];
};

struct job;

struct job *job_make(uint32_t world, uint32_t chunk_bytes, uint64_t seed);
// How its collectives are summed: ALGORITHM_RING if it is not said.
void job_use(struct job *job, enum plan_algorithm algorithm);
// Sums of floats are NCCL's: near enough, and the same on all ranks.
void job_use_nccl(struct job *job);
// Memory of what is added is of regions. The regions of each rank, the job's until its end.
struct regions **job_register(struct job *job);
// Until all mates have mapped the memory of all ranks. Once.
void job_wait_mapped(struct member *member, struct job *job);
void job_add(struct job *job, const struct job_spec *spec);
// Runs it on this rank: collectives in blocks of 8, permuted inside a block differently by each.
void job_run(struct member *member, struct job *job);
// Launches everything, in that order, and does not wait.
void job_launch_all(struct member *member, struct job *job);
// Tags of the next runs differ. Between runs, from one thread.
void job_again(struct job *job);
// Compares every element of every rank with the reference; ends the program when one differs.
void job_check(const struct job *job, const char *name);
// Compares every element with both its input and its final value: one of them it must be. For
// ranks below `ranks`, but `without`.
void job_check_intact_or_final(const struct job *job, const char *name, uint32_t without);
void job_free(struct job *job);

uint64_t job_random(uint64_t *state);

#endif
