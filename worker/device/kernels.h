// SPDX-License-Identifier: Apache-2.0
//
// What the host and the kernels of a device (worker/device/kernels.cu) have to agree upon: names,
// the parameters of each kernel, and how a row of elements is cut among warps. Plain C11 that is
// C++ as well, without anything of CUDA: the host, the references
// (tests/support/device_reference.h) and the kernels include it. Pure: it is no code, and starts
// nothing.
//
// Words. The *row* is a collective's elements laid end to end, without gaps. A *piece* is a run of
// the row that lies in one place of user memory and in one unit. *Packed* is the row in one place,
// in the dtype that travels. Every kernel takes its struct by value as its only parameter, and
// every pointer in it is one that the device can follow. Each reads the row once and writes it
// once, and is launched with device_blocks(elements) blocks of DEVICE_THREADS threads, without
// shared memory.
//
// How the row is cut. A warp takes one *tile* of DEVICE_TILE_ELEMENTS elements of the row and walks
// over the pieces in it; `tiles` names the piece in which each tile begins, so that no warp has to
// search. Pieces and tiles follow from the units alone, so they are made once for a layout
// (worker/transport/device/table.h); what changes from step to step is where a piece lies, its `in`
// and `out`. Tables are read by every warp before anything else: they belong into device memory,
// not into pinned memory of the host, which is a microsecond away.
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
#define DEVICE_THREADS 256
// A multiple of 16 bytes of every dtype. 768, not 1,024: of blocks that are a little more than run
// together, the last few would run alone, as they would with 25 MiB of float32 on 132
// multiprocessors.
#define DEVICE_TILE_ELEMENTS 768
#define DEVICE_ALIGNMENT 16

// Blocks to launch for a row. At least one, because a kernel has more to do than to move elements.
static inline uint32_t device_blocks(uint64_t elements)
{
    const uint64_t block = (uint64_t)DEVICE_TILE_ELEMENTS * (DEVICE_THREADS / DEVICE_WARP);
    return elements == 0 ? 1 : (uint32_t)((elements + block - 1) / block);
}

// Tiles of a row: so many entries has its table.
static inline uint64_t device_tiles(uint64_t elements)
{
    return (elements + DEVICE_TILE_ELEMENTS - 1) / DEVICE_TILE_ELEMENTS;
}

// Element types by the numbers of enum dtype (protos/types.h), which C++ need not read; open.c
// asserts that they are equal. Bytes that are only moved are named by their width.
enum device_dtype {
    DEVICE_FLOAT32 = 1,
    DEVICE_FLOAT64 = 2,
    DEVICE_INT32 = 3,
    DEVICE_INT64 = 4,
    DEVICE_FLOAT16 = 5,
    DEVICE_BFLOAT16 = 6,
    DEVICE_UINT8 = 7,
};

#define DEVICE_NO_UNIT 0xffffffffu // Of a piece that is always written.

struct device_piece {
    const void *in; // NULL: zeros.
    void *out; // NULL: dropped.
    uint64_t first; // The element of the row with which it begins.
    uint32_t unit;
    uint32_t unused; // 0.
};

// The row in user memory. Pieces ascend, have at least one element, and cover the row.
struct device_row {
    const struct device_piece *pieces; // [count + 1]; `first` of the last one is `elements`.
    const uint32_t *tiles; // [device_tiles(elements)]
    uint64_t elements;
    uint32_t count; // Of pieces.
    uint32_t unused; // 0.
};

// ---- lockstep_pack ------------------------------------------------------------------------------

// packed[i] = in[i] * 2^exponent * weight, in this order, cast to `wire`: +0 where in is NULL.
// Floats only. float64 is computed in float64 and travels as itself; all others are computed in
// float32: both factors are rounded to it first, each product is rounded once, and so is the cast,
// to nearest even. With weight 1 and exponent 0 nothing is multiplied, and where `wire` is `dtype`,
// too, bits are moved as they are.
// NaNs: one that is only cast keeps the top bits of its payload, and is quieted; one that is
// multiplied becomes 0x7fc00000 (0x7ff8000000000000) before it is cast.
// A weight of 0 packs +0, whatever the input holds; the input is not read.
struct device_pack {
    struct device_row row;
    void *packed;
    uint64_t weight; // 1 of a sum that is not multiplied.
    int32_t exponent; // float16: multiplies contributions by 2^exponent; -126 to 126. Else 0.
    uint32_t dtype; // Of the row: enum device_dtype.
    uint32_t wire; // dtype; or bfloat16 for float32; or float32 for 16-bit floats.
    // Words that the kernel copies besides, so that they need no copy of their own: the header of
    // the collective, from pinned memory say. 0: none.
    uint32_t header_words;
    const uint64_t *header_from; // [header_words]
    uint64_t *header_to; // [header_words]
};

// ---- lockstep_finish ----------------------------------------------------------------------------

// What a launch of lockstep_finish has decided, once for all its blocks.
enum device_decision {
    DEVICE_UNDECIDED = 0, // The host writes it before the launch.
    DEVICE_DECIDING = 1, // Only while the kernel runs.
    DEVICE_WRITES = 2,
    DEVICE_SKIPS = 3, // Nothing is written, now or later.
};

// out[i] = packed[i] / total * 2^-exponent, in this order, cast to `final` and then to `dtype`,
// where total = header[0]. Computed and rounded as in lockstep_pack; the division is rounded
// correctly, and total to float32 (float64) before it. With total 1, or without `divides`, nothing
// is divided; with exponent 0 nothing is multiplied; what is neither is cast, or moved as it is.
// NaNs as in lockstep_pack.
//
// Nothing is written of a piece without out; of a unit that nobody has used, header[1 + unit] == 0
// (other pieces are always written); of anything with `divides` and total 0; and of anything when
// *revoked is not 0 as the first block looks. What the first block sees is in *decision before
// anything is written, and all blocks obey it, so a launch writes everything or nothing.
struct device_finish {
    struct device_row row;
    const void *packed;
    const uint64_t *header; // [1 + units]: sum of weights, ranks that have used each unit. NULL:
                            // without `divides`, and all units are used.
    const uint32_t *revoked; // In pinned memory; the host may write it at any time. NULL: never.
    uint32_t *decision; // In device memory. NULL without revoked.
    int32_t exponent; // As the contributions were packed with.
    uint32_t dtype;
    uint32_t wire; // Of packed; as in lockstep_pack.
    uint32_t final; // The result is rounded to it, once: dtype; or bfloat16 for float32.
    uint32_t divides; // 1: a mean. 0: a sum.
    uint32_t unused; // 0.
};

// ---- lockstep_gather, lockstep_scatter ----------------------------------------------------------

// Bytes only: packed = in (zeros where it is NULL), and out = packed, bit by bit. Any dtype.
struct device_gather {
    struct device_row row;
    void *packed;
    uint32_t dtype;
    uint32_t unused; // 0.
};

// Nothing is written of a piece without out, or of a unit that `used` lacks.
struct device_scatter {
    struct device_row row;
    const void *packed;
    // Bit u of the row of words is unit u, as in worker/memory/units.h. NULL: all.
    const uint64_t *used;
    uint32_t dtype;
    uint32_t unused; // 0.
};

// ---- lockstep_add -------------------------------------------------------------------------------

// acc[i] = (acc[i] + in[i]) / divisor: replicas of one process meet. The sum is rounded to dtype,
// and then the quotient; 1 divides nothing, and more is for floats only. Any dtype; integers wrap.
// Without `in` nothing is added: acc[i] = acc[i] / divisor.
// A NaN becomes the quiet one as above, in 16 bits 0x7e00 and 0x7fc0. Both may lie anywhere that
// the dtype allows, and do not overlap.
struct device_add {
    void *acc;
    const void *in; // NULL: nothing.
    uint64_t elements;
    uint64_t divisor; // At least 1.
    uint32_t dtype;
    uint32_t unused; // 0.
};

// Names by which a module is asked for them.
#define DEVICE_PACK "lockstep_pack"
#define DEVICE_FINISH "lockstep_finish"
#define DEVICE_GATHER "lockstep_gather"
#define DEVICE_SCATTER "lockstep_scatter"
#define DEVICE_ADD "lockstep_add"

#ifdef __cplusplus
}
#endif

#endif
