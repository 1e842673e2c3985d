// SPDX-License-Identifier: Apache-2.0
//
// Sums over a tree of leaves, for every number of leaves and of ranks, against the recursion that
// docs/numbers.md states: a run of more than one leaf is split behind the largest power of two that
// is less than its length.

#include "worker/kernels/kernels.h"
#include "worker/kernels/tree.h"

#include <stdlib.h>
#include <string.h>

// cmocka.h needs the headers before it.
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ELEMENTS 5
#define BYTES (ELEMENTS * 8)

struct leaf {
    uint8_t gradient[BYTES];
    uint64_t weight;
    bool absent;
};

static struct leaf leaves[LOCKSTEP_MAX_LEAVES];

static uint64_t noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state ^ *state >> 29;
}

static void fill(enum dtype dtype)
{
    uint64_t state = dtype;
    for (uint32_t l = 0; l < LOCKSTEP_MAX_LEAVES; l++) {
        leaves[l].weight = 1 + l % 3;
        leaves[l].absent = l % 7 == 5;
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            const double wide = (double)(int64_t)noise(&state) / 9e18 * (1 << (l % 5));
            const float value = (float)wide;
            if (dtype == DTYPE_FLOAT64)
                ((double *)(void *)leaves[l].gradient)[i] = wide;
            else if (dtype == DTYPE_FLOAT32)
                ((float *)(void *)leaves[l].gradient)[i] = value;
            else
                kernel_narrow(dtype, (uint16_t *)(void *)leaves[l].gradient + i, &value, 1);
        }
    }
}

// ---- The reference ------------------------------------------------------------------------------

static double read_one(enum dtype dtype, const void *memory)
{
    float wide;
    if (dtype == DTYPE_FLOAT64)
        return *(const double *)memory;
    if (dtype == DTYPE_FLOAT32)
        return *(const float *)memory;
    kernel_widen(dtype, &wide, memory, 1);
    return wide;
}

// A value that was computed in `in`, rounded to `to`. Both are DTYPE_FLOAT64, or none is.
static double rounded(enum dtype to, double value)
{
    const float narrow = (float)value;
    uint16_t small;
    if (to == DTYPE_FLOAT64)
        return value;
    if (to == DTYPE_FLOAT32)
        return narrow;
    kernel_narrow(to, &small, &narrow, 1);
    return read_one(to, &small);
}

// One operation in float64, or in float32 for all other dtypes.
static double product(enum dtype dtype, double a, double b)
{
    return dtype == DTYPE_FLOAT64 ? a * b : (double)((float)a * (float)b);
}

static double reference(const struct tree_format *format, uint32_t first, uint32_t count,
                        uint32_t element)
{
    uint32_t half = 1;
    if (count == 1) {
        const struct leaf *leaf = &leaves[first];
        if (leaf->absent)
            return 0;
        double value =
            read_one(format->dtype, leaf->gradient + element * dtype_size(format->dtype));
        for (int e = format->exponent; e < 0; e++)
            value = product(format->dtype, value, 0.5);
        return rounded(format->partial, product(format->dtype, value, (double)leaf->weight));
    }
    while (half * 2 < count)
        half *= 2;
    const double left = reference(format, first, half, element);
    const double right = reference(format, first + half, count - half, element);
    if (format->dtype == DTYPE_FLOAT64)
        return left + right;
    return rounded(format->partial, (float)left + (float)right);
}

static double reference_mean(const struct tree_format *format, uint32_t count, uint64_t total,
                             uint32_t element)
{
    const double sum = reference(format, 0, count, element);
    double mean =
        format->dtype == DTYPE_FLOAT64 ? sum / (double)total : (double)((float)sum / (float)total);
    for (int e = format->exponent; e < 0; e++)
        mean = product(format->dtype, mean, 2);
    return rounded(format->final, mean);
}

// ---- What a job does ----------------------------------------------------------------------------

// One rank folds its leaves, and adds its blocks to the inputs. Returns the rooms that it used.
static uint32_t fold_rank(const struct tree_format *format, struct tree_block run, uint8_t *memory,
                          struct tree_inputs *inputs)
{
    struct tree_stack stack = {.count = 0};
    uint32_t most = 0;
    for (uint32_t l = run.first; l < run.end; l++) {
        uint8_t gradient[BYTES];
        uint8_t zeros[BYTES] = {0};
        uint8_t *blocks[TREE_BLOCKS];
        const uint32_t merges = tree_push(&stack, (struct tree_block){l, l + 1});
        const uint32_t into = stack.count - 1;
        const struct tree_leaf leaf = {format, leaves[l].weight, blocks, merges, true};
        for (uint32_t m = 0; m < merges; m++)
            blocks[m] = memory + (size_t)(into + m) * BYTES;
        memcpy(gradient, leaves[l].gradient, BYTES);
        tree_fold(&leaf, leaves[l].absent ? NULL : gradient, memory + (size_t)into * BYTES,
                  ELEMENTS);
        if (!leaves[l].absent)
            assert_memory_equal(gradient, zeros, ELEMENTS * dtype_size(format->dtype));
        most = stack.count > most ? stack.count : most;
    }
    for (uint32_t i = 0; i < stack.count; i++) {
        inputs->blocks[inputs->count] = stack.blocks[i];
        inputs->memory[inputs->count++] = memory + (size_t)i * BYTES;
    }
    return most;
}

static uint32_t log2_of(uint32_t count)
{
    uint32_t log = 0;
    while (count > 1u << log)
        log++;
    return log;
}

// lost: a rank whose leaves are absent, and that gives no blocks; `ranks`: none.
static void check_world(const struct tree_format *format, uint32_t count, uint32_t ranks,
                        uint32_t lost)
{
    static uint8_t memory[LOCKSTEP_MAX_LEAVES][(TREE_BLOCKS + 1) * BYTES];
    struct tree_inputs inputs = {.count = 0};
    uint8_t result[BYTES];
    uint64_t total = 0;
    uint32_t next = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct tree_block run = tree_dealt(count, ranks, r);
        const uint32_t before = inputs.count;
        assert_int_equal(run.first, next);
        assert_true(run.end > run.first);
        next = run.end;
        if (r == lost)
            continue;
        tree_fill(&inputs, run.first);
        const uint32_t rooms = fold_rank(format, run, memory[r], &inputs);
        if (rooms > log2_of(count) + 1)
            fail_msg("%u leaves, rank %u of %u: %u rooms", count, r, ranks, rooms);
        assert_true(inputs.count - before <= tree_most_blocks(count, ranks) || lost < ranks);
    }
    tree_fill(&inputs, count);
    assert_int_equal(next, count);
    for (uint32_t l = 0; l < count; l++)
        total += leaves[l].absent ? 0 : leaves[l].weight;
    if (total == 0)
        return;
    tree_sum(format, &inputs, total, 0, result, ELEMENTS);
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        const double wanted = reference_mean(format, count, total, i);
        const double got = read_one(format->final, result + i * dtype_size(format->final));
        if (memcmp(&wanted, &got, sizeof(got)) != 0)
            fail_msg("%u leaves, %u ranks, dtype %d: element %u is %.17g, not %.17g", count, ranks,
                     (int)format->dtype, i, got, wanted);
    }
}

static void check_format(struct tree_format format)
{
    fill(format.dtype);
    for (uint32_t count = 1; count <= LOCKSTEP_MAX_LEAVES; count++)
        for (uint32_t ranks = 1; ranks <= count; ranks++)
            check_world(&format, count, ranks, ranks);
}

// The leaves of a rank that is gone count as leaves that are absent.
static void test_a_lost_rank(void **state)
{
    static const struct tree_format format = {DTYPE_FLOAT32, DTYPE_FLOAT32, DTYPE_FLOAT32, 0};
    (void)state;
    for (uint32_t count = 2; count <= 24; count++)
        for (uint32_t ranks = 2; ranks <= count; ranks++)
            for (uint32_t lost = 0; lost < ranks; lost++) {
                const struct tree_block run = tree_dealt(count, ranks, lost);
                fill(format.dtype);
                for (uint32_t l = run.first; l < run.end; l++)
                    leaves[l].absent = true;
                check_world(&format, count, ranks, lost);
            }
}

static void test_every_world(void **state)
{
    (void)state;
    check_format((struct tree_format){DTYPE_FLOAT32, DTYPE_FLOAT32, DTYPE_FLOAT32, 0});
    check_format((struct tree_format){DTYPE_FLOAT64, DTYPE_FLOAT64, DTYPE_FLOAT64, 0});
    check_format((struct tree_format){DTYPE_BFLOAT16, DTYPE_BFLOAT16, DTYPE_BFLOAT16, 0});
    check_format((struct tree_format){DTYPE_FLOAT16, DTYPE_FLOAT16, DTYPE_FLOAT16, -3});
    check_format((struct tree_format){DTYPE_BFLOAT16, DTYPE_FLOAT32, DTYPE_BFLOAT16, 0});
    check_format((struct tree_format){DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_BFLOAT16, 0});
}

// A long run crosses tiles, and may begin inside of the blocks. Blocks that are NULL are zeros.
static void test_long_runs(void **state)
{
    enum {
        LONG = 3000,
        FROM = 7
    };
    static float blocks[3][FROM + LONG];
    static float sums[LONG];
    const struct tree_format format = {DTYPE_FLOAT32, DTYPE_FLOAT32, DTYPE_FLOAT32, 0};
    const struct tree_inputs inputs = {.count = 4,
                                       .blocks = {{0, 2}, {2, 3}, {3, 4}, {4, 5}},
                                       .memory = {(const uint8_t *)blocks[0], NULL,
                                                  (const uint8_t *)blocks[1],
                                                  (const uint8_t *)blocks[2]}};
    uint64_t random = 5;
    (void)state;
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t i = 0; i < FROM + LONG; i++)
            blocks[b][i] = (float)(int64_t)noise(&random) / 9e18f;
    tree_sum(&format, &inputs, 5, FROM, sums, LONG);
    for (uint32_t i = 0; i < LONG; i++) {
        const float right = blocks[1][FROM + i] + 0.0f;
        const float left = blocks[0][FROM + i] + right;
        const float wanted = (left + blocks[2][FROM + i]) / 5;
        assert_memory_equal(&sums[i], &wanted, sizeof(wanted));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_world),
        cmocka_unit_test(test_a_lost_rank),
        cmocka_unit_test(test_long_runs),
    };
    return cmocka_run_group_tests_name("kernels_tree", tests, NULL, NULL);
}
