// SPDX-License-Identifier: Apache-2.0
//
// The stash by itself: the taken contribution is exactly the deferred one, in every dtype and with
// every kind of weight. Others were never used, are cut in a new way, or are in flight. The last
// tests check where results go.

#include "worker/kernels/kernels.h"
#include "worker/session/module/stash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum {
    PARAMETERS = 4,
    CALLS = 2,
    ELEMENTS = 2500, // Elements of the largest parameter: more than two pieces.
};

static const uint64_t sizes[PARAMETERS] = {7, ELEMENTS, 0, 1};
static const uint32_t everything[PARAMETERS] = {0, 1, 2, 3};
static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_FLOAT16, DTYPE_BFLOAT16};

static struct stash *make(enum dtype dtype, bool sums, bool holds)
{
    struct bucket_parameter parameters[PARAMETERS];
    const struct stash_config config = {.parameters = parameters,
                                        .parameter_count = PARAMETERS,
                                        .contribution_count = CALLS,
                                        .sums = sums,
                                        .holds = holds};
    struct stash *stash;
    for (uint32_t p = 0; p < PARAMETERS; p++)
        parameters[p] =
            (struct bucket_parameter){.dtype = dtype, .trainable = true, .elements = sizes[p]};
    assert_int_equal(stash_open(&config, &stash), 0);
    return stash;
}

// ---- Numbers of every dtype --------------------------------------------------------------------

static void write_number(enum dtype dtype, void *memory, uint64_t at, double value)
{
    const float narrow = (float)value;
    if (dtype == DTYPE_FLOAT64)
        ((double *)memory)[at] = value;
    else if (dtype == DTYPE_FLOAT32)
        ((float *)memory)[at] = narrow;
    else
        kernel_narrow(dtype, (uint16_t *)memory + at, &narrow, 1);
}

static double read_number(enum dtype dtype, const void *memory, uint64_t at)
{
    float wide;
    if (dtype == DTYPE_FLOAT64)
        return ((const double *)memory)[at];
    if (dtype == DTYPE_FLOAT32)
        return (double)((const float *)memory)[at];
    kernel_widen(dtype, &wide, (const uint16_t *)memory + at, 1);
    return (double)wide;
}

static void assert_number(double found, double wanted)
{
    if (!(found >= wanted && found <= wanted))
        fail_msg("%g, not %g", found, wanted);
}

// A gradient of a parameter: small integers, so that all sums of them are exact in every dtype.
static int known(uint32_t call, uint32_t parameter, uint64_t element)
{
    return (int)((call * 7 + parameter * 3 + element) % 5) - 2;
}

static void *gradient_of(enum dtype dtype, uint32_t call, uint32_t parameter)
{
    static double memory[ELEMENTS];
    for (uint64_t i = 0; i < sizes[parameter]; i++)
        write_number(dtype, memory, i, known(call, parameter, i));
    return memory;
}

static void keep(struct stash *stash, enum dtype dtype, uint32_t call, uint64_t weight)
{
    for (uint32_t p = 0; p < PARAMETERS; p++)
        stash_keep(stash, 0, p, gradient_of(dtype, call, p), weight);
}

// Takes all, as one bucket, with a call of weight; the numbers as sums of w g.
static uint64_t take(struct stash *stash, enum dtype dtype, uint32_t call, uint64_t weight,
                     double sums[PARAMETERS][ELEMENTS])
{
    uint64_t kept;
    assert_true(stash_ready(stash, everything, PARAMETERS, &kept));
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        stash_take(stash, p, gradient_of(dtype, call, p), weight);
        const void *in = stash_taken(stash, p);
        const double factor = stash_gives_sums(stash, dtype) ? 1 : (double)(kept + weight);
        assert_non_null(in);
        for (uint64_t i = 0; i < sizes[p]; i++)
            sums[p][i] = factor * read_number(dtype, in, i);
    }
    return kept + weight;
}

// ---- What is taken -----------------------------------------------------------------------------

// Weights whose sum is a power of two: the mean of a 16-bit gradient is exact then.
static void is_all_that_was_put_off(void **state)
{
    static double sums[PARAMETERS][ELEMENTS];
    (void)state;
    for (uint32_t d = 0; d < LENGTH(dtypes); d++) {
        struct stash *stash = make(dtypes[d], false, false);
        keep(stash, dtypes[d], 0, 3);
        keep(stash, dtypes[d], 1, 1);
        keep(stash, dtypes[d], 2, 0); // Contributes nothing.
        assert_int_equal(take(stash, dtypes[d], 3, 4, sums), 8);
        for (uint32_t p = 0; p < PARAMETERS; p++) {
            for (uint64_t i = 0; i < sizes[p]; i++)
                assert_number(sums[p][i], 3 * known(0, p, i) + known(1, p, i) + 4 * known(3, p, i));
        }
        stash_close(stash);
    }
}

static void of_sums_is_not_weighted(void **state)
{
    static double sums[PARAMETERS][ELEMENTS];
    (void)state;
    for (uint32_t d = 0; d < LENGTH(dtypes); d++) {
        struct stash *stash = make(dtypes[d], true, false);
        keep(stash, dtypes[d], 0, 5);
        assert_true(stash_gives_sums(stash, dtypes[d]));
        assert_int_equal(take(stash, dtypes[d], 1, 3, sums), 8);
        for (uint32_t p = 0; p < PARAMETERS; p++) {
            for (uint64_t i = 0; i < sizes[p]; i++)
                assert_number(sums[p][i], known(0, p, i) + known(1, p, i));
        }
        stash_close(stash);
    }
}

// A call of weight 0 takes what is kept along, and adds nothing of its own.
static void goes_with_a_call_without_weight(void **state)
{
    static double sums[PARAMETERS][ELEMENTS];
    struct stash *stash = make(DTYPE_FLOAT32, false, false);
    (void)state;
    keep(stash, DTYPE_FLOAT32, 0, 2);
    assert_int_equal(take(stash, DTYPE_FLOAT32, 1, 0, sums), 2);
    assert_number(sums[1][1], 2 * known(0, 1, 1));
    stash_close(stash);
}

// Each product and each sum is rounded once, in the dtype: as if a rank had sent it.
static void is_rounded_like_a_sum_that_travels(void **state)
{
    const float a = 0.1f;
    const float b = 1e-7f;
    volatile float wanted = 3 * a;
    volatile float product = 7 * b;
    struct stash *stash = make(DTYPE_FLOAT32, false, false);
    (void)state;
    wanted = wanted + product;
    stash_keep(stash, 0, 3, &a, 3);
    stash_take(stash, 3, &b, 7);
    const float *in = stash_taken(stash, 3);
    assert_memory_equal(in, (const void *)&wanted, sizeof(*in));
    stash_close(stash);
}

// The largest gradients that a loss scale may make, with the weight of a batch: as a sum they would
// be infinite.
static void of_float16_does_not_overflow(void **state)
{
    struct stash *stash = make(DTYPE_FLOAT16, false, false);
    uint16_t large;
    (void)state;
    write_number(DTYPE_FLOAT16, &large, 0, 65504);
    stash_keep(stash, 0, 3, &large, 32);
    stash_keep(stash, 0, 3, &large, 32);
    stash_take(stash, 3, &large, 64);
    const uint16_t *in = stash_taken(stash, 3);
    assert_false(stash_gives_sums(stash, DTYPE_FLOAT16));
    assert_number(read_number(DTYPE_FLOAT16, in, 0), 65504);
    stash_close(stash);
}

// 16-bit floats are summed in float32: 256 + 1 is no bfloat16, twice that is.
static void of_bfloat16_is_rounded_once(void **state)
{
    struct stash *stash = make(DTYPE_BFLOAT16, true, false);
    uint16_t numbers[2];
    (void)state;
    write_number(DTYPE_BFLOAT16, numbers, 0, 256);
    write_number(DTYPE_BFLOAT16, numbers, 1, 1);
    stash_keep(stash, 0, 3, &numbers[0], 1);
    stash_keep(stash, 0, 3, &numbers[1], 1);
    stash_take(stash, 3, &numbers[1], 1);
    const uint16_t *in = stash_taken(stash, 3);
    assert_number(read_number(DTYPE_BFLOAT16, in, 0), 258);
    stash_close(stash);
}

// A parameter that the calls did not use has their weight all the same.
static void knows_what_was_not_used(void **state)
{
    const float one = 1;
    struct stash *stash = make(DTYPE_FLOAT32, false, false);
    uint64_t kept;
    (void)state;
    for (uint32_t p = 0; p < PARAMETERS; p++)
        stash_keep(stash, 0, p, NULL, 2);
    assert_true(stash_ready(stash, everything, PARAMETERS, &kept));
    assert_int_equal(kept, 2);
    stash_take(stash, 0, NULL, 3);
    assert_null(stash_taken(stash, 0));
    stash_take(stash, 3, &one, 3);
    const float *in = stash_taken(stash, 3);
    assert_number((double)*in, 3);
    stash_close(stash);
}

// ---- When it is taken --------------------------------------------------------------------------

static void waits_for_equal_weights(void **state)
{
    const float number = 5;
    static const uint32_t apart[] = {0, 3};
    struct stash *stash = make(DTYPE_FLOAT32, false, false);
    uint64_t kept;
    (void)state;
    assert_false(stash_ready(stash, everything, PARAMETERS, &kept));
    stash_keep(stash, 0, 0, gradient_of(DTYPE_FLOAT32, 0, 0), 4);
    assert_false(stash_ready(stash, apart, 2, &kept)); // A new layout: 3 was in another bucket.
    assert_true(stash_ready(stash, apart, 1, &kept));
    stash_keep(stash, 0, 3, &number, 4);
    assert_true(stash_ready(stash, apart, 2, &kept));
    assert_int_equal(kept, 4);
    assert_int_equal(stash_left(stash), 2);
    assert_int_equal(stash_left_weight(stash), 4);
    stash_close(stash);
}

// A contribution that was taken is in flight until the step has settled. It is not touched, and
// contributions that are deferred meanwhile are for the next step.
static void is_taken_once_in_a_step(void **state)
{
    const float first = 5;
    const float second = 9;
    const uint32_t parameter = 3;
    struct stash *stash = make(DTYPE_FLOAT32, false, false);
    uint64_t kept;
    (void)state;
    stash_keep(stash, 0, parameter, &first, 1);
    stash_take(stash, parameter, &first, 1);
    const float *in = stash_taken(stash, parameter);
    stash_keep(stash, 1, parameter, &second, 2);
    assert_false(stash_ready(stash, &parameter, 1, &kept));
    assert_number((double)*in, 10);
    stash_settle(stash);
    assert_true(stash_ready(stash, &parameter, 1, &kept));
    stash_take(stash, parameter, NULL, 1);
    in = stash_taken(stash, parameter);
    assert_number((double)*in, 18);
    assert_true(stash_is_busy(stash));
    stash_settle(stash);
    assert_false(stash_is_busy(stash));
    assert_int_equal(stash_left(stash), 0);
    stash_close(stash);
}

// ---- Results -----------------------------------------------------------------------------------

static void holds_results_for_each_call(void **state)
{
    float memory[CALLS] = {1, 2};
    struct stash *stash = make(DTYPE_FLOAT32, false, true);
    (void)state;
    for (uint32_t c = 0; c < CALLS; c++) {
        stash_keep(stash, c, 3, &memory[c], 1);
        *(float *)stash_hold(stash, c, 3) = 10.0f * (float)(c + 1);
    }
    for (uint32_t c = 0; c < CALLS; c++) {
        assert_false(stash_put_back(stash, c, 3, &memory[c], true));
        assert_number((double)memory[c], 10.0 * (c + 1));
        memory[c] = 3;
        assert_false(stash_put_back(stash, c, 3, &memory[c], true)); // Only once.
        assert_number((double)memory[c], 3);
    }
    stash_close(stash);
}

static void asks_for_zeros_where_nobody_contributed(void **state)
{
    float memory = 7;
    struct stash *stash = make(DTYPE_FLOAT32, false, true);
    (void)state;
    // Neither held nor deferred; held without a result, and not deferred; deferred; the same again.
    assert_false(stash_put_back(stash, 0, 3, &memory, true));
    *(float *)stash_hold(stash, 0, 3) = 4;
    assert_false(stash_put_back(stash, 0, 3, &memory, false));
    assert_number((double)memory, 7);
    stash_keep(stash, 0, 3, &memory, 1);
    assert_true(stash_put_back(stash, 0, 3, &memory, false));
    assert_false(stash_put_back(stash, 0, 3, &memory, false));
    stash_keep(stash, 0, 3, &memory, 1);
    assert_true(stash_put_back(stash, 0, 3, NULL, false));
    stash_close(stash);
}

// A parameter that is never trained has no memory here, and no module is too small.
static void needs_no_parameters(void **state)
{
    const struct bucket_parameter integers = {.dtype = DTYPE_INT64, .elements = 5};
    const struct stash_config none = {.contribution_count = 1};
    const struct stash_config some = {
        .parameters = &integers, .parameter_count = 1, .contribution_count = 1, .holds = true};
    struct stash *stash;
    (void)state;
    assert_int_equal(stash_open(&none, &stash), 0);
    assert_int_equal(stash_left(stash), 0);
    stash_close(stash);
    assert_int_equal(stash_open(&some, &stash), 0);
    assert_false(stash_put_back(stash, 0, 0, NULL, true));
    stash_close(stash);
    stash_close(NULL);
}

// ---- All of it, at random ----------------------------------------------------------------------

// Sums of what was reported, contributed, and their weights, of one element of each parameter.
struct ledger {
    int64_t reported[PARAMETERS];
    int64_t contributed[PARAMETERS];
    int64_t reported_weight[PARAMETERS];
    int64_t contributed_weight[PARAMETERS];
};

static void random_call(struct stash *stash, struct ledger *ledger, const uint32_t *bucket,
                        uint32_t count)
{
    const bool deferred = rand() % 3 == 0;
    const uint64_t weight = (uint64_t)(rand() % 4);
    uint64_t kept = 0;
    const bool takes = !deferred && stash_ready(stash, bucket, count, &kept);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t p = bucket[i];
        const double value = rand() % 9 - 4;
        double memory[ELEMENTS] = {value};
        const double *own = rand() % 4 == 0 ? NULL : memory;
        ledger->reported[p] += own ? (int64_t)weight * (int64_t)value : 0;
        ledger->reported_weight[p] += (int64_t)weight;
        if (deferred) {
            stash_keep(stash, 0, p, own, weight);
            continue;
        }
        if (takes)
            stash_take(stash, p, own, weight);
        const double *in = takes ? stash_taken(stash, p) : own;
        const double factor = takes ? 1 : (double)weight;
        ledger->contributed[p] += in && sizes[p] > 0 ? (int64_t)(factor * in[0]) : 0;
        ledger->contributed_weight[p] += (int64_t)(weight + (takes ? kept : 0));
    }
}

// Layouts of one, two and four buckets, in turns that are drawn.
static void loses_nothing_and_counts_nothing_twice(void **state)
{
    struct ledger ledger = {{0}, {0}, {0}, {0}};
    struct stash *stash = make(DTYPE_FLOAT64, false, false);
    uint64_t weight;
    uint32_t taken = 0;
    (void)state;
    srand(17);
    for (int step = 0; step < 20000; step++) {
        const uint32_t each = 1u << rand() % 3;
        for (uint32_t first = 0; first < PARAMETERS; first += each)
            random_call(stash, &ledger, everything + first, each);
        stash_settle(stash);
        taken += stash_left(stash) == 0;
    }
    assert_true(taken > 100);
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        const uint32_t one[] = {p};
        if (stash_ready(stash, one, 1, &weight)) {
            stash_take(stash, p, NULL, 0);
            const double *in = stash_taken(stash, p);
            ledger.contributed[p] += in && sizes[p] > 0 ? (int64_t)in[0] : 0;
            ledger.contributed_weight[p] += (int64_t)weight;
        }
        if (sizes[p] > 0)
            assert_int_equal(ledger.contributed[p], ledger.reported[p]);
        assert_int_equal(ledger.contributed_weight[p], ledger.reported_weight[p]);
    }
    stash_close(stash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_all_that_was_put_off),
        cmocka_unit_test(of_sums_is_not_weighted),
        cmocka_unit_test(goes_with_a_call_without_weight),
        cmocka_unit_test(is_rounded_like_a_sum_that_travels),
        cmocka_unit_test(of_float16_does_not_overflow),
        cmocka_unit_test(of_bfloat16_is_rounded_once),
        cmocka_unit_test(knows_what_was_not_used),
        cmocka_unit_test(waits_for_equal_weights),
        cmocka_unit_test(is_taken_once_in_a_step),
        cmocka_unit_test(holds_results_for_each_call),
        cmocka_unit_test(asks_for_zeros_where_nobody_contributed),
        cmocka_unit_test(needs_no_parameters),
        cmocka_unit_test(loses_nothing_and_counts_nothing_twice),
    };
    return cmocka_run_group_tests_name("stash", tests, NULL, NULL);
}
