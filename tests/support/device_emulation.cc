// SPDX-License-Identifier: Apache-2.0
//
// Names that CUDA's compiler knows by itself, as far as worker/device/kernels.cu uses them. One
// thread.

#include "tests/support/device_emulation.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __builtin_assume(truth) ((void)(truth))

struct index {
    uint32_t x;
};
static struct index threadIdx;
static struct index blockIdx;
static struct index gridDim;

// A load from any other address would be an error of the device, and is one here.
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return uint4{x, y, z, w};
}

template <class T> static inline T min(T a, T b)
{
    return a < b ? a : b;
}

template <class TO, class FROM> static inline TO bits_as(FROM from)
{
    TO to;
    static_assert(sizeof(to) == sizeof(from), "the same bits");
    memcpy(&to, &from, sizeof(to));
    return to;
}

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __ull2float_rn(uint64_t number) { return (float)number; }
static inline double __ull2double_rn(uint64_t number) { return (double)number; }
static inline float __uint_as_float(uint32_t bits) { return bits_as<float>(bits); }
static inline uint32_t __float_as_uint(float value) { return bits_as<uint32_t>(value); }
static inline double __longlong_as_double(long long bits) { return bits_as<double>(bits); }
static inline long long __double_as_longlong(double value) { return bits_as<long long>(value); }
static inline float half_widen(uint16_t from) { return emulated_half_widen(from); }
static inline uint16_t half_narrow(float from) { return emulated_half_narrow(from); }

static inline uint32_t half_narrow_two(float low, float high)
{
    return emulated_half_narrow(low) | (uint32_t)emulated_half_narrow(high) << 16;
}

static inline uint32_t bfloat16_narrow_two(float low, float high)
{
    return emulated_bfloat16_narrow(low) | (uint32_t)emulated_bfloat16_narrow(high) << 16;
}

static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline uint32_t atomicCAS(uint32_t *word, uint32_t expected, uint32_t wanted)
{
    const uint32_t before = *word;
    *word = before == expected ? wanted : before;
    return before;
}

static inline void atomicExch(uint32_t *word, uint32_t wanted) { *word = wanted; }
static inline bool __isGlobal(const void *) { return true; }
static inline void __nanosleep(unsigned) {}
static inline int __ffs(int word) { return __builtin_ffs(word); }
static inline void block_meet() {}
static inline void line_fetch(const void *) {}

#include "worker/device/kernels.cu"

template <class KERNEL> static void emulate(uint32_t blocks, KERNEL kernel)
{
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (threadIdx.x = 0; threadIdx.x < DEVICE_THREADS; threadIdx.x++)
            kernel();
    }
}

void emulate_pack(const struct device_pack *pack)
{
    emulate(device_blocks(pack->row.elements), [=] { lockstep_pack(*pack); });
}

void emulate_finish(const struct device_finish *finish)
{
    emulate(device_blocks(finish->row.elements), [=] { lockstep_finish(*finish); });
}

void emulate_gather(const struct device_gather *gather)
{
    emulate(device_blocks(gather->row.elements), [=] { lockstep_gather(*gather); });
}

void emulate_scatter(const struct device_scatter *scatter)
{
    emulate(device_blocks(scatter->row.elements), [=] { lockstep_scatter(*scatter); });
}

void emulate_add(const struct device_add *add)
{
    emulate(device_blocks(add->elements), [=] { lockstep_add(*add); });
}
