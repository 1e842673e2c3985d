// SPDX-License-Identifier: Apache-2.0
//
// What a job consists of; for transport_job.c, which runs jobs, and transport_reference.c, which
// checks them.

#ifndef TESTS_TRANSPORT_JOB_INSIDE_H
#define TESTS_TRANSPORT_JOB_INSIDE_H

#include "tests/conformance/transport_job.h"

#include <stdatomic.h>

#define JOB_MAX 512
#define JOB_REGIONS 64

// The memory of one rank for one collective.
struct side {
    struct extent *extents;
    uint32_t extent_count;
    uint8_t *memory; // The inputs; also the outputs, unless those are separate.
    uint8_t *outputs; // The outputs: `memory`, or memory of their own.
    uint8_t *inputs_before; // Memory before the collective, with zeros where the input is NULL.
    uint8_t *outputs_before;
    uint8_t *has_in; // For each element: true if the rank has an input there.
    uint8_t *has_out;
    uint64_t *used; // Bit set of the units that this rank uses.
    uint64_t *used_after; // A copy of `used` for the collective, which adds the units of others.
    struct collective collective;
};

struct item {
    struct job_spec spec;
    uint64_t *unit_ends;
    struct side sides[FLEET_MAX];
};

// The regions from which a rank's memory is allocated.
struct home {
    uint32_t count; // Number of regions.
    uint8_t *regions[JOB_REGIONS];
    size_t filled; // Bytes in use in the last region.
    size_t bytes; // Size of the last region.
};

struct job {
    bool registered;
    struct regions *regions[FLEET_MAX];
    struct home homes[FLEET_MAX];
    atomic_uint mapped; // Number of ranks whose memory all mates have mapped.
    uint32_t world;
    uint32_t chunk_bytes;
    enum plan_algorithm algorithm;
    bool loose; // True if NCCL adds, in an order of its own.
    uint64_t seed;
    uint32_t count;
    uint64_t run;
    struct item items[JOB_MAX];
};

// True if pairs of ranks exchange their halves: by doubling or halving.
bool job_is_pair(const struct job *job);

#endif
