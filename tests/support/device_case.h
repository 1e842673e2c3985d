// SPDX-License-Identifier: Apache-2.0
//
// Rows for the kernels of a device, drawn at random: pieces of any size at any place that their
// dtype allows, units of which some are unused, and numbers of every kind. Everything lies in three
// blocks of memory with space between and around the pieces, so a comparison of whole blocks also
// sees what was written beside the pieces. For tests of the references, and of the kernels against
// them.

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
    uint32_t units; // 0: pieces belong to none.
    struct device_piece *pieces; // [piece_count + 1], into in and out.
    size_t *places; // [piece_count]: where a piece lies in both, in bytes.
    uint32_t *tiles;
    struct case_block in; // User memory before.
    struct case_block out; // User memory after.
    struct case_block packed; // Wire; holds numbers, too.
    uint64_t *header; // [1 + units]
    uint64_t *used; // The bits of the units for which header says more than 0.
};

// The ingredients of a case.
struct device_draw {
    uint64_t seed; // Not 0.
    enum dtype dtype;
    enum dtype wire;
    uint32_t pieces; // At least 1.
    uint64_t piece_elements; // At most; a few are much smaller. At least 1.
    uint64_t weight; // header[0].
    bool tidy; // Pieces begin at multiples of 256 bytes, as memory of a device does.
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

// count numbers of every kind: any bits, and now and then zeros of both signs, denormals, the
// largest, infinities, NaNs quiet and signalling, with payloads.
void device_numbers(uint64_t *random, enum dtype dtype, void *into, uint64_t count);

#endif
