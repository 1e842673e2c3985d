// SPDX-License-Identifier: Apache-2.0
//
// The loops over several sources at once. loops.h includes this file once for each level, and the
// rules of loops.h apply here, too. Pure; any thread.
//
// Each loop computes one result from up to four sources. So a sum over n ranks reads every source
// once and stores once, where loops of two operands store n - 1 times. The order is that of the
// definition, ((a op b) op c) op d, and products are rounded before they are added. combine.c
// combines more than four sources with these loops.

// A loop for each number of sources. one, two, three and four are the expressions, of a[i] to d[i].
#define KERNEL_COUNTED(name, type, begin, one, two, three, four) \
    KERNEL_TARGET static void name(void *out, const struct kernel_operands *from, size_t count) \
    { \
        type *into = out; \
        const type *a = from->sources[0]; \
        const type *b = from->sources[1]; \
        const type *c = from->sources[2]; \
        const type *d = from->sources[3]; \
        begin; \
        switch (from->count) { \
        case 1: \
            KERNEL_INDEPENDENT \
            for (size_t i = 0; i < count; i++) \
                into[i] = (type)(one); \
            break; \
        case 2: \
            KERNEL_INDEPENDENT \
            for (size_t i = 0; i < count; i++) \
                into[i] = (type)(two); \
            break; \
        case 3: \
            KERNEL_INDEPENDENT \
            for (size_t i = 0; i < count; i++) \
                into[i] = (type)(three); \
            break; \
        default: \
            KERNEL_INDEPENDENT \
            for (size_t i = 0; i < count; i++) \
                into[i] = (type)(four); \
            break; \
        } \
    }

// op(a, b) is a macro or a function.
#define KERNEL_COMBINE(name, type, op) \
    KERNEL_COUNTED(combine_##name, type, (void)0, a[i], op(a[i], b[i]), op(op(a[i], b[i]), c[i]), \
                   op(op(op(a[i], b[i]), c[i]), d[i]))

// Each weight is rounded once to the type in which the loop computes.
#define KERNEL_WEIGHTS(computed) \
    const computed u = (computed)from->weights[0]; \
    const computed v = (computed)from->weights[1]; \
    const computed w = (computed)from->weights[2]; \
    const computed x = (computed)from->weights[3]

#define KERNEL_TIMES(a, b) ((a) * (b))

// Sums that are multiplied by a factor at the end, or divided. The factor is 1, or 1 / total if
// total is a power of two; the multiplication then gives the same bits as a division and is
// cheaper. In the loops without weights all weights are 1.
#define KERNEL_COMBINE_FLOAT(type) \
    KERNEL_COUNTED(combine_sum_##type, type, const type f = (type)from->factor, a[i] * f, \
                   (a[i] + b[i]) * f, (a[i] + b[i] + c[i]) * f, (a[i] + b[i] + c[i] + d[i]) * f) \
    KERNEL_COUNTED(combine_weighted_##type, type, KERNEL_WEIGHTS(type); \
                   const type f = (type)from->factor, u * a[i] * f, (u * a[i] + v * b[i]) * f, \
                   (u * a[i] + v * b[i] + w * c[i]) * f, \
                   (u * a[i] + v * b[i] + w * c[i] + x * d[i]) * f) \
    KERNEL_COUNTED(combine_divided_##type, type, KERNEL_WEIGHTS(type); \
                   const type t = (type)from->total, u * a[i] / t, (u * a[i] + v * b[i]) / t, \
                   (u * a[i] + v * b[i] + w * c[i]) / t, \
                   (u * a[i] + v * b[i] + w * c[i] + x * d[i]) / t) \
    KERNEL_COMBINE(product_##type, type, KERNEL_TIMES) \
    KERNEL_COMBINE(min_##type, type, minimum_##type) \
    KERNEL_COMBINE(max_##type, type, maximum_##type)

#define KERNEL_LESSER(a, b) ((a) < (b) ? (a) : (b))
#define KERNEL_GREATER(a, b) ((a) > (b) ? (a) : (b))
#define KERNEL_EITHER(a, b) ((a) | (b))
#define KERNEL_BOTH(a, b) ((a) & (b))
#define KERNEL_ONE_OF(a, b) ((a) ^ (b))

// As KERNEL_WORD and KERNEL_ORDER.
#define KERNEL_COMBINE_WORD(word, computed) \
    static inline word plus_##word(word a, word b) \
    { \
        return (word)((computed)a + (computed)b); \
    } \
    static inline word times_##word(word a, word b) \
    { \
        return (word)((computed)a * (computed)b); \
    } \
    KERNEL_COMBINE(sum_##word, word, plus_##word) \
    KERNEL_COMBINE(product_##word, word, times_##word) \
    KERNEL_COMBINE(or_##word, word, KERNEL_EITHER) \
    KERNEL_COMBINE(and_##word, word, KERNEL_BOTH) \
    KERNEL_COMBINE(xor_##word, word, KERNEL_ONE_OF)
#define KERNEL_COMBINE_ORDER(type) \
    KERNEL_COMBINE(min_##type, type, KERNEL_LESSER) \
    KERNEL_COMBINE(max_##type, type, KERNEL_GREATER)
// Booleans are 0 or 1 before they are combined, so a single source is 0 or 1, too.
#define KERNEL_COMBINE_BOOL(name, op) \
    KERNEL_COUNTED(combine_##name, uint8_t, (void)0, a[i] != 0, op(a[i] != 0, b[i] != 0), \
                   op(op(a[i] != 0, b[i] != 0), c[i] != 0), \
                   op(op(op(a[i] != 0, b[i] != 0), c[i] != 0), d[i] != 0))

// ---- 16-bit floats ------------------------------------------------------------------------------

// Values that are the same for all elements of a loop.
struct kernel_constants {
    float weights[KERNEL_OPERANDS];
    float last; // The factor, or the divisor.
};

static inline struct kernel_constants kernel_constants(const struct kernel_operands *from,
                                                       float last)
{
    return (struct kernel_constants){{(float)from->weights[0], (float)from->weights[1],
                                      (float)from->weights[2], (float)from->weights[3]},
                                     last};
}

// Two elements at a time, as in KERNEL_SMALL_LOOP and for the same reason. n is the number of
// sources, a constant where the function is inlined. joins: + or *. In products all weights and the
// factor are 1.
#define KERNEL_SMALL_OF(name, type, joins, finish) \
    static inline uint32_t name##_of_one(const uint32_t *halves, unsigned n, \
                                         const struct kernel_constants *constants) \
    { \
        float sum = constants->weights[0] * widen_##type(halves[0]); \
        for (unsigned s = 1; s < n; s++) \
            sum = sum joins(constants->weights[s] * widen_##type(halves[s])); \
        return narrow_##type(sum finish constants->last); \
    } \
    static inline uint32_t name##_of_two(const uint16_t *const *sources, size_t i, unsigned n, \
                                         const struct kernel_constants *constants) \
    { \
        uint32_t lower[KERNEL_OPERANDS], upper[KERNEL_OPERANDS]; \
        for (unsigned s = 0; s < n; s++) { \
            const uint32_t pair = small_pair(sources[s] + 2 * i); \
            lower[s] = pair & 0xffff; \
            upper[s] = pair >> 16; \
        } \
        return name##_of_one(lower, n, constants) | name##_of_one(upper, n, constants) << 16; \
    }

#define KERNEL_SMALL_CASE(name, n) \
    KERNEL_INDEPENDENT \
    for (size_t i = 0; i < count / 2; i++) { \
        const uint32_t pair = name##_of_two(sources, i, n, &constants); \
        memcpy(into + 2 * i, &pair, sizeof(pair)); \
    }

#define KERNEL_COMBINE_SMALL(name, type, joins, finish, constant) \
    KERNEL_SMALL_OF(name, type, joins, finish) \
    KERNEL_TARGET static void name(void *out, const struct kernel_operands *from, size_t count) \
    { \
        uint16_t *into = out; \
        const uint16_t *const sources[KERNEL_OPERANDS] = {from->sources[0], from->sources[1], \
                                                          from->sources[2], from->sources[3]}; \
        const struct kernel_constants constants = kernel_constants(from, (float)(constant)); \
        switch (from->count) { \
        case 1: \
            KERNEL_SMALL_CASE(name, 1) \
            break; \
        case 2: \
            KERNEL_SMALL_CASE(name, 2) \
            break; \
        case 3: \
            KERNEL_SMALL_CASE(name, 3) \
            break; \
        default: \
            KERNEL_SMALL_CASE(name, 4) \
            break; \
        } \
        if (count % 2 != 0) { \
            uint32_t last[KERNEL_OPERANDS] = {0}; \
            for (unsigned s = 0; s < from->count; s++) \
                last[s] = sources[s][count - 1]; \
            into[count - 1] = (uint16_t)name##_of_one(last, from->count, &constants); \
        } \
    }

#define KERNEL_COMBINE_SMALLS(type, infinity) \
    KERNEL_COMBINE_SMALL(combine_weighted_##type, type, +, *, from->factor) \
    KERNEL_COMBINE_SMALL(combine_divided_##type, type, +, /, from->total) \
    KERNEL_COMBINE_SMALL(combine_product_##type, type, *, *, from->factor) \
    static inline uint16_t lesser_##type(uint16_t a, uint16_t b) \
    { \
        return small_minimum(a, b, infinity); \
    } \
    static inline uint16_t greater_##type(uint16_t a, uint16_t b) \
    { \
        return small_maximum(a, b, infinity); \
    } \
    KERNEL_COMBINE(min_##type, uint16_t, lesser_##type) \
    KERNEL_COMBINE(max_##type, uint16_t, greater_##type)

KERNEL_COMBINE_FLOAT(float)
KERNEL_COMBINE_FLOAT(double)
KERNEL_COMBINE_SMALLS(float16, FLOAT16_INFINITY)
KERNEL_COMBINE_SMALLS(bfloat16, BFLOAT16_INFINITY)
KERNEL_COMBINE_WORD(uint8_t, uint32_t)
KERNEL_COMBINE_WORD(uint16_t, uint32_t)
KERNEL_COMBINE_WORD(uint32_t, uint32_t)
KERNEL_COMBINE_WORD(uint64_t, uint64_t)
KERNEL_COMBINE_ORDER(int8_t)
KERNEL_COMBINE_ORDER(uint8_t)
KERNEL_COMBINE_ORDER(int16_t)
KERNEL_COMBINE_ORDER(uint16_t)
KERNEL_COMBINE_ORDER(int32_t)
KERNEL_COMBINE_ORDER(uint32_t)
KERNEL_COMBINE_ORDER(int64_t)
KERNEL_COMBINE_ORDER(uint64_t)
KERNEL_COMBINE_BOOL(or_bool, KERNEL_EITHER)
KERNEL_COMBINE_BOOL(and_bool, KERNEL_BOTH)
KERNEL_COMBINE_BOOL(xor_bool, KERNEL_ONE_OF)
