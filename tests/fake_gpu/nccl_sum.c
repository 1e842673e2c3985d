// SPDX-License-Identifier: Apache-2.0
//
// See nccl_sum.h.
#include "tests/fake_gpu/nccl_sum.h"

#include "worker/device/nccl.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static const struct {
    size_t bytes;
    const char *name;
} types[] = {
    [NCCL_INT8] = {1, "int8"},       [NCCL_UINT8] = {1, "uint8"},
    [NCCL_INT32] = {4, "int32"},     [NCCL_UINT32] = {4, "uint32"},
    [NCCL_INT64] = {8, "int64"},     [NCCL_UINT64] = {8, "uint64"},
    [NCCL_FLOAT16] = {2, "float16"}, [NCCL_FLOAT32] = {4, "float32"},
    [NCCL_FLOAT64] = {8, "float64"}, [NCCL_BFLOAT16] = {2, "bfloat16"},
};

enum {
    TYPES = sizeof(types) / sizeof(types[0])
};

size_t nccl_type_bytes(int type)
{
    return type >= 0 && type < TYPES ? types[type].bytes : 0;
}

const char *nccl_type_name(int type)
{
    return type >= 0 && type < TYPES ? types[type].name : "?";
}

// ---- floats of 16 bits --------------------------------------------------------------------------

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float from_bfloat16(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

static uint16_t to_bfloat16(float value)
{
    const uint32_t bits = bits_of_float(value);
    if (value != value)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_float16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 31;
    const uint32_t fraction = bits & 1023;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent)
        return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float tiny = (float)fraction * 0x1p-24f;
    return sign ? -tiny : tiny;
}

static uint16_t to_float16(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const float magnitude = float_of_bits(bits & 0x7fffffff);
    if (value != value)
        return 0x7fff;
    if (magnitude >= 65520.0f)
        return sign | 0x7c00;
    if (magnitude < 0x1p-14f) // Adding 0.5 rounds to the last bit of a denormal float16.
        return sign | (uint16_t)(bits_of_float(magnitude + 0.5f) - bits_of_float(0.5f));
    const uint32_t even = bits_of_float(magnitude) + 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((even >> 13) - (112 << 10));
}

// ---- one operation, two elements ----------------------------------------------------------------

#define COMBINE(a, b) \
    (op == REDUCTION_PROD  ? (a) * (b) \
     : op == REDUCTION_MAX ? ((a) > (b) ? (a) : (b)) \
     : op == REDUCTION_MIN ? ((a) < (b) ? (a) : (b)) \
                           : (a) + (b))

// `wide` is a type in which the sum does not overflow or wraps without undefined behaviour.
#define LOOP(type, wide) \
    do { \
        type *to = acc; \
        const type *from = in; \
        for (size_t i = 0; i < count; i++) \
            to[i] = (type)COMBINE((wide)to[i], (wide)from[i]); \
    } while (0)

#define LOOP_16(read, write) \
    do { \
        uint16_t *to = acc; \
        const uint16_t *from = in; \
        for (size_t i = 0; i < count; i++) \
            to[i] = write(COMBINE(read(to[i]), read(from[i]))); \
    } while (0)

void nccl_combine(enum nccl_reduction op, int type, void *acc, const void *in, size_t count)
{
    const bool ordered = op == REDUCTION_MAX || op == REDUCTION_MIN;
    switch ((enum nccl_type)type) {
    case NCCL_INT8:
        LOOP(int8_t, int32_t);
        break;
    case NCCL_UINT8:
        LOOP(uint8_t, uint32_t);
        break;
    case NCCL_INT32:
        LOOP(int32_t, int64_t);
        break;
    case NCCL_UINT32:
        LOOP(uint32_t, uint64_t);
        break;
    case NCCL_INT64:
        if (ordered)
            LOOP(int64_t, int64_t);
        else
            LOOP(int64_t, uint64_t);
        break;
    case NCCL_UINT64:
        LOOP(uint64_t, uint64_t);
        break;
    case NCCL_FLOAT32:
        LOOP(float, float);
        break;
    case NCCL_FLOAT64:
        LOOP(double, double);
        break;
    case NCCL_FLOAT16:
        LOOP_16(from_float16, to_float16);
        break;
    case NCCL_BFLOAT16:
        LOOP_16(from_bfloat16, to_bfloat16);
        break;
    }
}

void nccl_average(int type, void *acc, size_t count, unsigned ranks)
{
    for (size_t i = 0; i < count; i++) {
        if (type == NCCL_FLOAT32)
            ((float *)acc)[i] /= (float)ranks;
        else if (type == NCCL_FLOAT64)
            ((double *)acc)[i] /= ranks;
        else if (type == NCCL_FLOAT16)
            ((uint16_t *)acc)[i] = to_float16(from_float16(((uint16_t *)acc)[i]) / (float)ranks);
        else if (type == NCCL_BFLOAT16)
            ((uint16_t *)acc)[i] = to_bfloat16(from_bfloat16(((uint16_t *)acc)[i]) / (float)ranks);
    }
}
