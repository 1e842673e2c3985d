// SPDX-License-Identifier: Apache-2.0
//
// Sums of squares: every level of the kernels gives the bits of the obvious loop, for every length
// and start, and 16-bit floats count as their widened values.

#include "tests/support/choice.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#define MOST 2100 // More than two tiles of 16-bit floats.

// volatile: every product and sum is stored, so that no compiler can join two of them.
static double obvious(const double *values, size_t count)
{
    volatile double lanes[KERNEL_LANES] = {0};
    for (size_t i = 0; i < count; i++) {
        volatile double square = values[i] * values[i];
        lanes[i % KERNEL_LANES] += square;
    }
    for (size_t apart = KERNEL_LANES / 2; apart > 0; apart /= 2)
        for (size_t lane = 0; lane < apart; lane++)
            lanes[lane] += lanes[lane + apart];
    return lanes[0];
}

static void expect_bits(double found, double expected)
{
    assert_memory_equal(&found, &expected, sizeof(found));
}

static void test_levels(void **state)
{
    static float singles[MOST];
    static double doubles[MOST];
    static double values[MOST];
    uint64_t random = 7;
    (void)state;
    for (size_t i = 0; i < MOST; i++) {
        doubles[i] =
            ldexp((double)(int64_t)choice_random(&random), (int)(choice_random(&random) % 40) - 80);
        singles[i] = (float)doubles[i];
        values[i] = (double)singles[i];
    }
    for (unsigned l = 0; kernel_level(l); l++) {
        for (size_t count = 0; count < 70; count++) {
            double of_singles[KERNEL_LANES] = {0};
            double of_doubles[KERNEL_LANES] = {0};
            double expected[KERNEL_LANES] = {0};
            kernel_level(l)->squares[DTYPE_FLOAT32](of_singles, singles + l + 1, count);
            kernel_level(l)->squares[DTYPE_FLOAT64](of_doubles, doubles + l, count);
            for (size_t i = 0; i < count; i++)
                expected[i % KERNEL_LANES] += values[l + 1 + i] * values[l + 1 + i];
            assert_memory_equal(of_singles, expected, sizeof(expected));
            memset(expected, 0, sizeof(expected));
            for (size_t i = 0; i < count; i++) {
                volatile double square = doubles[l + i] * doubles[l + i];
                expected[i % KERNEL_LANES] += square;
            }
            assert_memory_equal(of_doubles, expected, sizeof(expected));
        }
    }
    for (size_t count = 0; count <= MOST; count += 131) {
        expect_bits(kernel_squares(DTYPE_FLOAT32, singles, count), obvious(values, count));
        expect_bits(kernel_squares(DTYPE_FLOAT64, doubles, count), obvious(doubles, count));
    }
}

static void test_small(void **state)
{
    static const enum dtype smalls[] = {DTYPE_FLOAT16, DTYPE_BFLOAT16};
    static uint16_t halves[MOST];
    static float wide[MOST];
    static double values[MOST];
    uint64_t random = 3;
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        for (size_t i = 0; i < MOST; i++) // Finite, of both signs.
            halves[i] = (uint16_t)(choice_random(&random) & 0xbbff);
        kernel_widen(smalls[d], wide, halves, MOST);
        for (size_t i = 0; i < MOST; i++)
            values[i] = (double)wide[i];
        for (size_t count = 0; count <= MOST; count += 131)
            expect_bits(kernel_squares(smalls[d], halves, count), obvious(values, count));
    }
}

static void test_impossible(void **state)
{
    double values[40] = {0};
    (void)state;
    values[38] = -INFINITY;
    assert_true(isinf(kernel_squares(DTYPE_FLOAT64, values, 40)));
    values[3] = NAN;
    assert_true(isnan(kernel_squares(DTYPE_FLOAT64, values, 40)));
    assert_true(kernel_squares(DTYPE_FLOAT64, values, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_impossible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
