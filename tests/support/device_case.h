// SPDX-License-Identifier: Apache-2.0
//
// Random rows for the kernels of a device: pieces of random size, at random places that the dtype's
// alignment allows; units, of which some are unused; and numbers of every kind. The data lies in
// three blocks of memory, with space between and around the pieces, so a comparison of whole blocks
// also detects writes outside the pieces. For tests of the reference kernels, and of the device's
// kernels against the reference kernels.

#ifndef TESTS_SUPPORT_DEVICE_CASE_H
#define TESTS_SUPPORT_DEVICE_CASE_H

#include "worker/device/kernels.h"
#include "worker/transport/transport.h"

struct case_block {
    uint8_t *bytes; // Aligned to DEVICE_ALIGNMENT.
    size_t size;
};

struct device_case {
    uint64_t random;
    enum dtype dtype;
    enum dtype wire;
    uint64_t elements;
    uint32_t piece_count;
    uint32_t units; // Number of units; 0: no piece belongs to a unit.
    struct device_piece *pieces; // [piece_count + 1], into in and out.
    size_t *places; // [piece_count]: byte offset of each piece in the blocks `in` and `out`.
    uint32_t *tiles;
    struct case_block in; // User memory that pack reads.
    struct case_block out; // User memory that finish writes.
    struct case_block packed; // Wire data; filled with numbers, for finish.
    uint64_t *header; // [1 + units]: total weight, then how many ranks used each unit.
    uint64_t *used; // Bit set of the units that some rank used.
};

// The ingredients of a case.
struct device_draw {
    uint64_t seed; // Not 0.
    enum dtype dtype;
    enum dtype wire;
    uint32_t pieces; // At least 1.
    uint64_t piece_elements; // Maximum size of a piece; at least 1. A few are much smaller.
    uint64_t weight; // header[0].
    bool tidy; // True if pieces begin at multiples of 256 bytes, like device allocations.
};

void device_case_draw(struct device_case *made, const struct device_draw *draw);
void device_case_free(struct device_case *made);

// Pairs of dtype and wire that lockstep_pack and lockstep_finish have.
struct device_pair {
    enum dtype dtype;
    enum dtype wire;
};
#define DEVICE_PAIRS 7
extern const struct device_pair device_pairs[DEVICE_PAIRS];

// Draws `count` numbers of every kind: mostly random bits; sometimes zeros of both signs,
// denormals, the largest number, infinities, and quiet and signalling NaNs with payloads.
void device_numbers(uint64_t *random, enum dtype dtype, void *into, uint64_t count);

#endif
