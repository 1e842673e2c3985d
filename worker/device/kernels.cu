// SPDX-License-Identifier: Apache-2.0
//
// The kernels of kernels.h, which says what each one computes. tests/support/device_reference.c
// computes the same bits in slow and obvious C. formats.cuh has what is done with one element. There
// is no host code here, and nothing of the runtime API: nvcc makes an image of machine code of this
// file, which goes into the library as bytes.
//
// Memory bounds all of the kernels, so this file is about moving 16 bytes at a time.
//
//   *Run*: what a tile and a piece have in common. A warp moves one run after the other.
//
//   *Unit*: as many elements as make 16 bytes on the narrower side, so that each side of it is one
//   or two vectors. Units begin where the destination is a multiple of 16 bytes; the elements
//   before the first unit and behind the last one (fewer than 32 each) are moved one by one, by a
//   lane each.
//
//   *Skew*: by how many bytes the source is off then. It is the same for all units of a run. With a
//   skew a lane loads one vector more than it needs, from multiples of 16 bytes again, and shifts
//   them together: the second load of a vector is a hit in the first cache, so a tensor of an odd
//   size costs those behind it nothing of the memory's bandwidth.
//
//   *Batch*: the units of a lane that are loaded before the first of them is stored, so that 64
//   bytes are on their way for each lane: several times what the latency of the memory asks for.
//
//   *Plain*: elements that have a quick way (formats.cuh). A unit with one that is not plain is done
//   again, element by element, which is slow and rare.
//
// Nothing outside of a piece's own memory is read, also not the rest of a vector.
//
// Bits. Products, sums and quotients are the intrinsics that round once and are never contracted;
// denormals are kept. A device's own NaNs have a payload of their own, so one is put in their
// place.

#include "worker/device/formats.cuh"
#include "worker/device/kernels.h"

#include <stddef.h>

// ---- units --------------------------------------------------------------------------------------

// Element i of a row of words, and the place for one. All indexes are constants once loops are
// unrolled.
template <int BYTES>
__device__ inline typename bits_of<BYTES>::type word_get(const uint32_t *words, int i)
{
    if (BYTES == 8)
        return (typename bits_of<BYTES>::type)(words[2 * i] | (uint64_t)words[2 * i + 1] << 32);
    return (typename bits_of<BYTES>::type)(words[i * BYTES / 4] >> i * BYTES % 4 * 8);
}

template <int BYTES> __device__ inline void word_put(uint32_t *words, int i, uint64_t bits)
{
    if (BYTES == 8)
        words[2 * i + 1] = (uint32_t)(bits >> 32);
    words[i * BYTES / 4] = (uint32_t)bits;
}

// The first 4 * COUNT words of what begins `skew` bytes behind words[0]; 4 * COUNT + 4 words are
// there. An element of BYTES is never cut by a boundary that it is a multiple of.
template <int COUNT, int BYTES> __device__ inline void unskew(uint32_t *words, uint32_t skew)
{
    const bool eight = (skew & 8) != 0;
    const bool four = (skew & 4) != 0;
#pragma unroll
    for (int i = 0; i < 4 * COUNT + 2; i++)
        words[i] = eight ? words[i + 2] : words[i];
    if constexpr (BYTES < 8) {
#pragma unroll
        for (int i = 0; i < 4 * COUNT + 1; i++)
            words[i] = four ? words[i + 1] : words[i];
    }
    if constexpr (BYTES < 4) {
#pragma unroll
        for (int i = 0; i < 4 * COUNT; i++)
            words[i] = __funnelshift_r(words[i], words[i + 1], (skew & 3) * 8);
    }
}

template <class WORK> struct unit {
    enum {
        ELEMENTS = 16 / ((int)WORK::IN < (int)WORK::OUT ? (int)WORK::IN : (int)WORK::OUT),
        INS = ELEMENTS * WORK::IN / 16, // Vectors.
        OUTS = ELEMENTS * WORK::OUT / 16,
        WIDER = (int)INS > (int)OUTS ? (int)INS : (int)OUTS,
        VECTORS = !WORK::MOVES && WORK::IN == 8 ? 2 : 4, // What is computed in float64 needs room.
        BATCH = VECTORS / WIDER,
    };
};

template <int VECTORS> __device__ inline void vectors_load(uint32_t *words, const byte *from)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint4 vector = reinterpret_cast<const uint4 *>(from)[v];
        words[4 * v] = vector.x;
        words[4 * v + 1] = vector.y;
        words[4 * v + 2] = vector.z;
        words[4 * v + 3] = vector.w;
    }
}

template <int VECTORS> __device__ inline void vectors_store(byte *to, const uint32_t *words)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        reinterpret_cast<uint4 *>(to)[v] =
            make_uint4(words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]);
}

// Returns false, and stores nothing, where an element is not plain.
template <class WORK>
__device__ inline bool unit_store(const WORK &work, byte *to, const uint32_t *words)
{
    if constexpr (WORK::MOVES) {
        vectors_store<unit<WORK>::OUTS>(to, words);
    } else {
        uint32_t made[4 * unit<WORK>::OUTS];
        bool plain = true;
#pragma unroll
        for (int i = 0; i < unit<WORK>::ELEMENTS; i += 2) {
            typename WORK::value low = work.quick(word_get<WORK::IN>(words, i), plain);
            typename WORK::value high = work.quick(word_get<WORK::IN>(words, i + 1), plain);
            work.round_two(low, high);
            if constexpr (WORK::OUT == 2) {
                made[i / 2] = WORK::to::narrow_two(low, high);
            } else {
                word_put<WORK::OUT>(made, i, WORK::to::narrow(low));
                word_put<WORK::OUT>(made, i + 1, WORK::to::narrow(high));
            }
        }
        if (!plain)
            return false;
        vectors_store<unit<WORK>::OUTS>(to, made);
    }
    return true;
}

// ---- runs ---------------------------------------------------------------------------------------

// Memory of a device or of the host, never a block's own: what it saves is a test for each vector.
__device__ inline const byte *global(const void *memory)
{
    __builtin_assume(__isGlobal(memory));
    return (const byte *)memory;
}

__device__ inline byte *global(void *memory)
{
    __builtin_assume(__isGlobal(memory));
    return (byte *)memory;
}

struct run {
    const byte *from;
    byte *to;
    uint32_t elements; // Of the tile, so few.
    const byte *lowest; // What may be read around from: from here ...
    const byte *limit; // ... to here.
};

template <class WORK>
__device__ inline void element_move(const WORK &work, const byte *from, byte *to, uint32_t element)
{
    const typename WORK::in bits = reinterpret_cast<const typename WORK::in *>(from)[element];
    reinterpret_cast<typename WORK::out *>(to)[element] = work(bits);
}

// Units of a run, in batches. The gate is asked when the first batch is on its way.
template <bool SKEWED, class WORK, class GATE>
__device__ inline void units_move(const WORK &work, GATE &gate, const byte *from, byte *to,
                                  uint32_t units)
{
    enum {
        INS = unit<WORK>::INS,
        WORDS = 4 * INS + (SKEWED ? 4 : 0),
        BATCH = SKEWED && (int)unit<WORK>::BATCH > 1 ? unit<WORK>::BATCH / 2 : unit<WORK>::BATCH,
    };
    const uint32_t skew = SKEWED ? (uint32_t)(uintptr_t)from % 16 : 0;
    const uint32_t lane = threadIdx.x % DEVICE_WARP;
#pragma unroll 1
    for (uint32_t base = 0; base < units; base += BATCH * DEVICE_WARP) { // All lanes come along.
        uint32_t words[BATCH][WORDS];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t u = base + b * DEVICE_WARP + lane;
            if (u < units)
                vectors_load<WORDS / 4>(words[b], from + (uint64_t)u * INS * 16 - skew);
        }
        if (!gate.open())
            return;
        uint32_t odd = 0; // Units with an element that is not plain: these go one by one.
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t u = base + b * DEVICE_WARP + lane;
            if constexpr (SKEWED)
                unskew<INS, WORK::IN>(words[b], skew);
            byte *unit_to = to + (uint64_t)u * unit<WORK>::OUTS * 16;
            if (u < units && !unit_store(work, unit_to, words[b]))
                odd |= 1u << b;
        }
#pragma unroll 1
        for (; odd != 0; odd &= odd - 1) {
            const uint32_t u = base + (__ffs((int)odd) - 1) * DEVICE_WARP + lane;
#pragma unroll 1
            for (uint32_t i = 0; i < unit<WORK>::ELEMENTS; i++)
                element_move(work, from, to, u * unit<WORK>::ELEMENTS + i);
        }
    }
}

// How a run is cut. Both ends may give up one unit more, so that no vector is read that reaches out
// of what may be read.
template <class WORK, class GATE>
__device__ inline void run_move(const WORK &work, GATE &gate, const run &run)
{
    const uint32_t lane = threadIdx.x % DEVICE_WARP;
    uint32_t head = (uint32_t)(0 - (uintptr_t)run.to) % 16 / WORK::OUT;
    head = min(head, run.elements);
    const byte *from = run.from + head * WORK::IN;
    const uint32_t skew = (uint32_t)(uintptr_t)from % 16;
    if (skew != 0 && from - skew < run.lowest)
        head = min(head + unit<WORK>::ELEMENTS, run.elements);
    from = run.from + head * WORK::IN;
    uint32_t units = (run.elements - head) / unit<WORK>::ELEMENTS;
    if (skew != 0 && units > 0 && from + units * unit<WORK>::INS * 16 - skew + 16 > run.limit)
        units--;
    if (skew == 0)
        units_move<false>(work, gate, from, run.to + head * WORK::OUT, units);
    else
        units_move<true>(work, gate, from, run.to + head * WORK::OUT, units);
    if (!gate.open())
        return;
    const uint32_t tail = head + units * unit<WORK>::ELEMENTS;
    if (lane < head)
        element_move(work, run.from, run.to, lane);
    if (lane < run.elements - tail)
        element_move(work, run.from, run.to, tail + lane);
}

// ---- rows ---------------------------------------------------------------------------------------

__device__ inline uint64_t warp_tile()
{
    return (uint64_t)blockIdx.x * (DEVICE_THREADS / DEVICE_WARP) + threadIdx.x / DEVICE_WARP;
}

// The tables are read one after the other, and before anything else: each warp has the memory send
// its entry of `tiles`, and each thread a line of the pieces, before they are asked for.
__device__ inline void tables_fetch(const device_row &row)
{
    const uint64_t tile = warp_tile();
    const uint64_t line = ((uint64_t)blockIdx.x * DEVICE_THREADS + threadIdx.x) * DEVICE_LINE;
    if (threadIdx.x % DEVICE_WARP == 0 && tile * DEVICE_TILE_ELEMENTS < row.elements)
        line_fetch(row.tiles + tile);
    if (line < row.count * sizeof(device_piece))
        line_fetch((const byte *)row.pieces + line);
}

// Calls work(piece, first element of the piece, first element of the row, elements) for each run of
// this warp's tile.
template <class EACH> __device__ inline void row_walk(const device_row &row, EACH each)
{
    const uint64_t tile = warp_tile();
    uint64_t at = tile * DEVICE_TILE_ELEMENTS;
    if (at >= row.elements)
        return;
    const uint64_t end = min(at + DEVICE_TILE_ELEMENTS, row.elements);
#pragma unroll 1
    for (const device_piece *piece = row.pieces + (row.count == 1 ? 0 : row.tiles[tile]); at < end;
         piece++) {
        const uint64_t elements = min(end, piece[1].first) - at;
        each(*piece, at - piece->first, at, (uint32_t)elements);
        at += elements;
    }
}

__device__ inline uint64_t piece_elements(const device_piece &piece)
{
    return (&piece)[1].first - piece.first;
}

// Of kernels that have nothing to ask.
struct gate_open {
    __device__ bool open() { return true; }
};

// Packed memory gets a run, of zeros where there is no input.
template <class WORK>
__device__ inline void row_pack(const WORK &work, const device_row &row, void *packed, bool empty)
{
    gate_open gate;
    row_walk(row, [&](const device_piece &piece, uint64_t inside, uint64_t at, uint32_t elements) {
        byte *to = global(packed) + at * WORK::OUT;
        if (empty || piece.in == NULL) {
#pragma unroll 1
            for (uint32_t i = threadIdx.x % DEVICE_WARP; i < elements; i += DEVICE_WARP)
                reinterpret_cast<typename WORK::out *>(to)[i] = 0;
            return;
        }
        const byte *in = global(piece.in);
        run_move(work, gate,
                 run{in + inside * WORK::IN, to, elements, in,
                     in + piece_elements(piece) * WORK::IN});
    });
}

// User memory gets what is wanted of a piece.
template <class WORK, class GATE, class WANTED>
__device__ inline void row_unpack(const WORK &work, GATE &gate, const device_row &row,
                                  const void *packed, WANTED wanted)
{
    const byte *begin = global(packed);
    row_walk(row, [&](const device_piece &piece, uint64_t inside, uint64_t at, uint32_t elements) {
        if (piece.out == NULL || !wanted(piece.unit))
            return;
        run_move(work, gate,
                 run{begin + at * WORK::IN, global(piece.out) + inside * WORK::OUT, elements,
                     begin, begin + row.elements * WORK::IN});
    });
}

// ---- lockstep_pack ------------------------------------------------------------------------------

// The last block has the least to do.
__device__ inline void header_copy(const device_pack &pack)
{
    if (blockIdx.x != gridDim.x - 1)
        return;
    for (uint32_t i = threadIdx.x; i < pack.header_words; i += DEVICE_THREADS)
        pack.header_to[i] = pack.header_from[i];
}

template <class FROM, class TO> __device__ inline void pack_as(const device_pack &pack)
{
    const bool empty = pack.weight == 0;
    const bool moves = pack.dtype == pack.wire && pack.weight <= 1 && pack.exponent == 0;
    if (moves)
        row_pack(move<FROM::BYTES>(), pack.row, pack.packed, empty);
    else
        row_pack(weigh<FROM, TO>(pack), pack.row, pack.packed, empty);
}

#define PAIR(dtype, wire) ((dtype)*8 + (wire))

extern "C" __global__ void __launch_bounds__(DEVICE_THREADS, 6)
    lockstep_pack(const __grid_constant__ device_pack pack)
{
    tables_fetch(pack.row);
    header_copy(pack);
    switch (PAIR(pack.dtype, pack.wire)) {
    case PAIR(DEVICE_FLOAT32, DEVICE_FLOAT32):
        return pack_as<float32, float32>(pack);
    case PAIR(DEVICE_FLOAT64, DEVICE_FLOAT64):
        return pack_as<float64, float64>(pack);
    case PAIR(DEVICE_FLOAT16, DEVICE_FLOAT16):
        return pack_as<float16, float16>(pack);
    case PAIR(DEVICE_BFLOAT16, DEVICE_BFLOAT16):
        return pack_as<bfloat16, bfloat16>(pack);
    case PAIR(DEVICE_FLOAT32, DEVICE_BFLOAT16):
        return pack_as<float32, bfloat16>(pack);
    case PAIR(DEVICE_FLOAT16, DEVICE_FLOAT32):
        return pack_as<float16, float32>(pack);
    case PAIR(DEVICE_BFLOAT16, DEVICE_FLOAT32):
        return pack_as<bfloat16, float32>(pack);
    }
}

// ---- lockstep_finish ----------------------------------------------------------------------------

// The first that asks looks at the host's word, a microsecond away. All others wait for what it saw,
// which is not long: it runs already. So nothing depends on which blocks run together.
__device__ inline uint32_t finish_decides(const device_finish &finish)
{
    uint32_t decision = atomicCAS(finish.decision, DEVICE_UNDECIDED, DEVICE_DECIDING);
    if (decision == DEVICE_UNDECIDED) {
        const uint32_t revoked = *(const volatile uint32_t *)finish.revoked;
        decision = revoked != 0 ? DEVICE_SKIPS : DEVICE_WRITES;
        atomicExch(finish.decision, decision);
    }
    while (decision == DEVICE_DECIDING) {
        __nanosleep(100);
        decision = *(volatile uint32_t *)finish.decision;
    }
    return decision;
}

// Asked by all warps of a block, by all lanes at once, for the first time each at its own place:
// one thread finds out, because thousands that wait for one word hold each other up. The barrier has
// a number and a count, because __syncthreads is for one place.
struct gate_decided {
    const device_finish &finish;
    uint32_t *shared;
    bool asked;

    __device__ bool open()
    {
        if (finish.revoked == NULL)
            return true;
        if (!asked) {
            asked = true;
            if (threadIdx.x == 0)
                *shared = finish_decides(finish);
            block_meet();
        }
        return *shared == DEVICE_WRITES;
    }
};

template <class FROM, class TO>
__device__ inline void finish_as(const device_finish &finish, gate_decided &gate)
{
    const uint64_t *header = finish.header;
    const uint64_t total = finish.divides != 0 ? header[0] : 1;
    const bool moves = finish.dtype == finish.wire && finish.final == finish.dtype && total == 1 &&
                       finish.exponent == 0;
    const auto wanted = [&](uint32_t unit) {
        return header == NULL || unit == DEVICE_NO_UNIT || header[1 + (uint64_t)unit] > 0;
    };
    if (total == 0)
        return;
    if (moves)
        row_unpack(move<FROM::BYTES>(), gate, finish.row, finish.packed, wanted);
    else
        row_unpack(divide<FROM, TO>(finish, total), gate, finish.row, finish.packed, wanted);
}

__device__ inline void finish_pair(const device_finish &finish, gate_decided &gate)
{
    switch (PAIR(finish.dtype, finish.wire)) {
    case PAIR(DEVICE_FLOAT32, DEVICE_FLOAT32):
        return finish_as<float32, float32>(finish, gate);
    case PAIR(DEVICE_FLOAT64, DEVICE_FLOAT64):
        return finish_as<float64, float64>(finish, gate);
    case PAIR(DEVICE_FLOAT16, DEVICE_FLOAT16):
        return finish_as<float16, float16>(finish, gate);
    case PAIR(DEVICE_BFLOAT16, DEVICE_BFLOAT16):
        return finish_as<bfloat16, bfloat16>(finish, gate);
    case PAIR(DEVICE_FLOAT32, DEVICE_BFLOAT16):
        return finish_as<bfloat16, float32>(finish, gate);
    case PAIR(DEVICE_FLOAT16, DEVICE_FLOAT32):
        return finish_as<float32, float16>(finish, gate);
    case PAIR(DEVICE_BFLOAT16, DEVICE_FLOAT32):
        return finish_as<float32, bfloat16>(finish, gate);
    }
}

// Blocks for each multiprocessor. With a sixth, sm_80 has too few registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define FINISH_BLOCKS 5
#else
#define FINISH_BLOCKS 6
#endif

extern "C" __global__ void __launch_bounds__(DEVICE_THREADS, FINISH_BLOCKS)
    lockstep_finish(const __grid_constant__ device_finish finish)
{
    __shared__ uint32_t decided;
    gate_decided gate = {finish, &decided, false};
    tables_fetch(finish.row);
    if (finish.revoked != NULL && blockIdx.x == 0 && threadIdx.x == 0)
        finish_decides(finish); // Now, so that the answer is there when all others want it.
    finish_pair(finish, gate);
    gate.open(); // A warp that had nothing to write: the others of its block wait for it.
}

// ---- lockstep_gather, lockstep_scatter ----------------------------------------------------------

__device__ inline int dtype_width(uint32_t dtype)
{
    switch (dtype) {
    case DEVICE_UINT8:
    case DEVICE_INT8:
    case DEVICE_BOOL:
        return 1;
    case DEVICE_FLOAT16:
    case DEVICE_BFLOAT16:
    case DEVICE_INT16:
    case DEVICE_UINT16:
        return 2;
    case DEVICE_FLOAT32:
    case DEVICE_INT32:
    case DEVICE_UINT32:
        return 4;
    case DEVICE_FLOAT64:
    case DEVICE_INT64:
    case DEVICE_UINT64:
        return 8;
    }
    return 0;
}

extern "C" __global__ void __launch_bounds__(DEVICE_THREADS, 6)
    lockstep_gather(const __grid_constant__ device_gather gather)
{
    tables_fetch(gather.row);
    switch (dtype_width(gather.dtype)) {
    case 1:
        return row_pack(move<1>(), gather.row, gather.packed, false);
    case 2:
        return row_pack(move<2>(), gather.row, gather.packed, false);
    case 4:
        return row_pack(move<4>(), gather.row, gather.packed, false);
    case 8:
        return row_pack(move<8>(), gather.row, gather.packed, false);
    }
}

template <int WIDTH> __device__ inline void scatter_as(const device_scatter &scatter)
{
    gate_open gate;
    const uint64_t *used = scatter.used;
    row_unpack(move<WIDTH>(), gate, scatter.row, scatter.packed, [&](uint32_t unit) {
        return used == NULL || unit == DEVICE_NO_UNIT || (used[unit / 64] >> unit % 64 & 1) != 0;
    });
}

extern "C" __global__ void __launch_bounds__(DEVICE_THREADS, 6)
    lockstep_scatter(const __grid_constant__ device_scatter scatter)
{
    tables_fetch(scatter.row);
    switch (dtype_width(scatter.dtype)) {
    case 1:
        return scatter_as<1>(scatter);
    case 2:
        return scatter_as<2>(scatter);
    case 4:
        return scatter_as<4>(scatter);
    case 8:
        return scatter_as<8>(scatter);
    }
}

// ---- lockstep_add -------------------------------------------------------------------------------

template <class FORMAT> struct add_floats {
    typedef typename FORMAT::bits bits;
    typedef typename FORMAT::value value;
    value divisor;
    bool divides;

    __device__ explicit add_floats(uint64_t number)
        : divisor(FORMAT::of(number)), divides(number != 1)
    {
    }
    __device__ bits operator()(bits a, bits b) const
    {
        const value sum = plus(FORMAT::widen(a), FORMAT::widen(b));
        return only(FORMAT::narrow(unless_nan(sum, FORMAT::nan())));
    }
    __device__ bits only(bits sum) const
    {
        if (!divides)
            return sum;
        const value quotient = over(FORMAT::widen(sum), divisor);
        return FORMAT::narrow(unless_nan(quotient, FORMAT::nan()));
    }
};

template <class WORD> struct add_integers {
    typedef WORD bits;
    __device__ bits operator()(bits a, bits b) const { return (bits)(a + b); }
    __device__ bits only(bits sum) const { return sum; }
};

// Element by element: replicas meet once a step, and lines are full all the same.
template <class SUM> __device__ inline void add_as(const SUM &sum, const device_add &add)
{
    typedef typename SUM::bits bits;
    const uint64_t first = warp_tile() * DEVICE_TILE_ELEMENTS + threadIdx.x % DEVICE_WARP;
    bits *acc = (bits *)add.acc;
    const bits *in = (const bits *)add.in;
#pragma unroll 8
    for (uint32_t i = 0; i < DEVICE_TILE_ELEMENTS; i += DEVICE_WARP) {
        const uint64_t at = first + i;
        if (at < add.elements)
            acc[at] = in != NULL ? sum(acc[at], in[at]) : sum.only(acc[at]);
    }
}

extern "C" __global__ void __launch_bounds__(DEVICE_THREADS, 6)
    lockstep_add(const __grid_constant__ device_add add)
{
    switch (add.dtype) {
    case DEVICE_FLOAT32:
        return add_as(add_floats<float32>(add.divisor), add);
    case DEVICE_FLOAT64:
        return add_as(add_floats<float64>(add.divisor), add);
    case DEVICE_FLOAT16:
        return add_as(add_floats<float16>(add.divisor), add);
    case DEVICE_BFLOAT16:
        return add_as(add_floats<bfloat16>(add.divisor), add);
    case DEVICE_INT32:
        return add_as(add_integers<uint32_t>(), add);
    case DEVICE_INT64:
        return add_as(add_integers<uint64_t>(), add);
    case DEVICE_UINT8:
        return add_as(add_integers<uint8_t>(), add);
    }
}
