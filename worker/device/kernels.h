// SPDX-License-Identifier: Apache-2.0
//
// The interface between the host and the kernels of a device (worker/device/kernels.cu): names, the
// parameters of each kernel, and how a row of elements is divided among warps. The file is plain
// C11 that is also C++, and uses nothing of CUDA: the host, the reference implementations
// (tests/support/device_reference.h) and the kernels include it. Pure: declarations only.
//
// Words. The *row* is all elements of a collective, one after the other, without gaps. A *piece* is
// a run of the row that is contiguous in user memory and lies in one unit. *Packed* memory is the
// row in one contiguous place, in the dtype that travels. Every kernel takes its struct by value as
// its only parameter, and the device can access every pointer in the struct. Each kernel reads the
// row once and writes it once. A launch has device_blocks(elements) blocks of DEVICE_THREADS
// threads, without shared memory.
//
// How the row is divided. A warp takes one *tile* of DEVICE_TILE_ELEMENTS elements of the row and
// walks over the pieces in the tile; `tiles` names the piece in which each tile begins, so no warp
// has to search. Pieces and tiles depend only on the units, so they are computed once for a layout
// (worker/transport/device/table.h). Only the addresses `in` and `out` of a piece change from step
// to step. Every warp reads the tables before anything else, so the tables belong in device memory;
// an access to pinned memory of the host takes a microsecond.
//
// Alignment. Pieces may begin and end anywhere that their dtype allows. Packed memory begins at a
// multiple of DEVICE_ALIGNMENT.

#ifndef WORKER_DEVICE_KERNELS_H
#define WORKER_DEVICE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICE_WARP 32
#define DEVICE_THREADS 128
// Tiles of this size are a multiple of 16 bytes in every dtype, and full batches of every lane
// (kernels.cu).
#define DEVICE_TILE_ELEMENTS 1024
#define DEVICE_ALIGNMENT 16
#define DEVICE_LINE 128 // Bytes that come from memory together.

// Returns the number of blocks to launch for a row. At least one, because a kernel also does work
// that is not per element.
static inline uint32_t device_blocks(uint64_t elements)
{
    const uint64_t block = (uint64_t)DEVICE_TILE_ELEMENTS * (DEVICE_THREADS / DEVICE_WARP);
    return elements == 0 ? 1 : (uint32_t)((elements + block - 1) / block);
}

// Returns the number of tiles of a row, which is the number of entries of `tiles`.
static inline uint64_t device_tiles(uint64_t elements)
{
    return (elements + DEVICE_TILE_ELEMENTS - 1) / DEVICE_TILE_ELEMENTS;
}

// Element types, with the numbers of enum dtype (protos/types.h), so that C++ need not read that
// file; open.c asserts that the numbers are equal.
enum device_dtype {
    DEVICE_FLOAT32 = 1,
    DEVICE_FLOAT64 = 2,
    DEVICE_INT32 = 3,
    DEVICE_INT64 = 4,
    DEVICE_FLOAT16 = 5,
    DEVICE_BFLOAT16 = 6,
    DEVICE_UINT8 = 7,
    DEVICE_INT8 = 8,
    DEVICE_INT16 = 9,
    DEVICE_UINT16 = 10,
    DEVICE_UINT32 = 11,
    DEVICE_UINT64 = 12,
    DEVICE_BOOL = 13,
};

#define DEVICE_NO_UNIT 0xffffffffu // The `unit` of a piece that is always written.

struct device_piece {
    const void *in; // Input; NULL: zeros.
    void *out; // Output; NULL: the result is dropped.
    uint64_t first; // Index in the row of the piece's first element.
    uint32_t unit;
    uint32_t unused; // Padding; always 0.
};

// The row in user memory. Pieces are in ascending order, have at least one element each, and cover
// the row.
struct device_row {
    const struct device_piece *pieces; // [count + 1]; the last entry only has `first` = elements.
    const uint32_t *tiles; // [device_tiles(elements)]
    uint64_t elements;
    uint32_t count; // Number of pieces.
    uint32_t unused; // Padding; always 0.
};

// ---- lockstep_pack ------------------------------------------------------------------------------

// packed[i] = in[i] * 2^exponent * weight, in this order, cast to `wire`; +0 where `in` is NULL.
// For float dtypes only. float64 is computed in float64, and `wire` is float64. All other dtypes
// are computed in float32: both factors are first rounded to float32, and each product and the cast
// are rounded once, to nearest even. With weight 1 and exponent 0 nothing is multiplied; if also
// `wire` is `dtype`, the bits are copied.
// NaNs: a NaN that is only cast becomes quiet and keeps the top bits of its payload; a NaN that is
// multiplied becomes 0x7fc00000 (0x7ff8000000000000 in float64) before the cast.
// A weight of 0 packs +0; the input is not read.
struct device_pack {
    struct device_row row;
    void *packed;
    uint64_t weight; // The factor of this rank's contribution; 1 in a sum.
    // The power of two for float16 contributions, -126 to 126; 0 for all other dtypes.
    int32_t exponent;
    uint32_t dtype; // Dtype of the row: enum device_dtype.
    // Dtype of `packed`: `dtype`; or bfloat16 for float32; or float32 for 16-bit floats.
    uint32_t wire;
    // Words that the kernel also copies, to save a separate copy: for example the header of the
    // collective, from pinned memory. 0: none.
    uint32_t header_words;
    const uint64_t *header_from; // [header_words]
    uint64_t *header_to; // [header_words]
};

// ---- lockstep_finish ----------------------------------------------------------------------------

// What a launch of lockstep_finish has decided, once for all blocks of the launch.
enum device_decision {
    DEVICE_UNDECIDED = 0, // Written by the host before the launch.
    DEVICE_DECIDING = 1, // Exists only while the kernel runs.
    DEVICE_WRITES = 2,
    DEVICE_SKIPS = 3, // The launch writes no result.
};

// out[i] = packed[i] / total * 2^-exponent, in this order, cast to `final` and then to `dtype`,
// where total = header[0]. Computed and rounded as in lockstep_pack; total is first rounded to
// float32 (float64 for float64), and the division is correctly rounded. With total 1 or `divides` 0
// nothing is divided; with exponent 0 nothing is multiplied; without either, the value is only
// cast, or its bits are copied. NaNs as in lockstep_pack.
//
// The kernel does not write a piece whose `out` is NULL, nor a piece of a unit that no rank has
// used (header[1 + unit] == 0; pieces of DEVICE_NO_UNIT are always written). The kernel writes
// nothing if `divides` is 1 and total is 0, or if *revoked is not 0 when the launch reads it, once.
// The thread that reads it publishes the decision in *decision before anything is written, and all
// blocks follow it, so a launch writes everything or nothing.
struct device_finish {
    struct device_row row;
    const void *packed;
    // [1 + units]: the sum of weights, then for each unit the number of ranks that have used it.
    // NULL: `divides` is 0, and all units are used.
    const uint64_t *header;
    // In pinned memory; the host may set it at any time. NULL: the launch cannot be revoked.
    const uint32_t *revoked;
    uint32_t *decision; // In device memory. NULL if revoked is NULL.
    int32_t exponent; // The exponent with which the contributions were packed.
    uint32_t dtype;
    uint32_t wire; // Dtype of `packed`; as in lockstep_pack.
    // The result is first rounded to this dtype, once: `dtype`; or bfloat16 for float32.
    uint32_t final;
    uint32_t divides; // 1: the result is a mean. 0: a sum.
    uint32_t unused; // Padding; always 0.
};

// ---- lockstep_gather, lockstep_scatter ----------------------------------------------------------

// Both kernels copy bytes: gather sets packed = in (zeros where `in` is NULL), scatter sets out =
// packed. Any dtype.
struct device_gather {
    struct device_row row;
    void *packed;
    uint32_t dtype;
    uint32_t unused; // Padding; always 0.
};

// Does not write a piece whose `out` is NULL, nor a piece of a unit that `used` lacks.
struct device_scatter {
    struct device_row row;
    const void *packed;
    // Bit u is unit u, as in worker/memory/units.h. NULL: all units are used.
    const uint64_t *used;
    uint32_t dtype;
    uint32_t unused; // Padding; always 0.
};

// ---- lockstep_add -------------------------------------------------------------------------------

// acc[i] = (acc[i] + in[i]) / divisor: adds the replicas of one process. The sum is rounded to
// dtype, and then the quotient. divisor 1: nothing is divided; other divisors are for floats only.
// Any dtype; integers wrap. If `in` is NULL nothing is added: acc[i] = acc[i] / divisor. A NaN
// becomes the quiet NaN of lockstep_pack; in float16 0x7e00, in bfloat16 0x7fc0. Both arrays need
// only the alignment of their dtype, and do not overlap.
struct device_add {
    void *acc;
    const void *in; // NULL: nothing is added.
    uint64_t elements;
    uint64_t divisor; // At least 1.
    uint32_t dtype;
    uint32_t unused; // Padding; always 0.
};

// The names of the kernels in the image.
#define DEVICE_PACK "lockstep_pack"
#define DEVICE_FINISH "lockstep_finish"
#define DEVICE_GATHER "lockstep_gather"
#define DEVICE_SCATTER "lockstep_scatter"
#define DEVICE_ADD "lockstep_add"

#ifdef __cplusplus
}
#endif

#endif
