// SPDX-License-Identifier: Apache-2.0
//
// Conformance: metrics, which ride in the wave that ends a step. Case numbers are those of the list
// of cases for reducers. Every value that a rank reads is in its digest, and the digests of all
// ranks have to be equal.

#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STEPS 3
#define VALUES 3 // Values of one rank in a step.

static const uint64_t sizes[] = {70, 5, 300};
static const struct module_shape shape = {.name = "net", .count = 3, .elements = sizes};

// Reads a metric and adds the bits to the rank's digest.
static double metric_value(struct rank *rank, const char *name, uint64_t expected_count)
{
    double value = -1;
    uint64_t count = UINT64_MAX;
    RANK_OK(rank, lockstep_metric_read(rank->session, name, &value, &count));
    RANK_EQUAL(rank, count, expected_count);
    rank_digest(rank, &value, sizeof(value));
    return value;
}

static void metric_add(struct rank *rank, const char *name, lockstep_metric_kind kind, double value)
{
    RANK_OK(rank, lockstep_metric_add(rank->session, name, kind, value));
}

// Compares bits: 0 and -0 differ, and a NaN equals itself.
static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

// A value with 53 bits that depends on everything, so that another order of additions gives another
// sum.
static double noise(uint32_t rank, uint64_t step, uint32_t index)
{
    uint64_t state = ((uint64_t)rank << 40) + (step << 8) + index;
    const uint64_t bits = trainer_random(&state);
    return ((double)(bits >> 11) - 0x1p52) * pow(2, (double)(bits % 16) - 60);
}

// The sum of all ranks' values as the header and wave.h describe it: first those of each rank, then
// each extra with its core rank, then pairs.
static double expected_sum(uint32_t world, uint64_t step)
{
    double sums[CLUSTER_MAX_WORLD] = {0};
    uint32_t core = 1;
    for (uint32_t r = 0; r < world; r++) {
        sums[r] = noise(r, step, 0);
        for (uint32_t i = 1; i < VALUES; i++)
            sums[r] += noise(r, step, i);
    }
    while (2 * core <= world)
        core *= 2;
    for (uint32_t r = core; r < world; r++)
        sums[r - core] += sums[r];
    for (uint32_t apart = 1; apart < core; apart *= 2)
        for (uint32_t r = 0; r < core; r += 2 * apart)
            sums[r] += sums[r + apart];
    return sums[0];
}

static double expected_most(uint32_t world, uint64_t step, int sign)
{
    double most = -INFINITY;
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t i = 0; i < VALUES; i++)
            most = fmax(most, sign * noise(r, step, i));
    return sign * most;
}

// ---- Values ------------------------------------------------------------------------------------

static void values_body(struct rank *rank)
{
    const uint64_t all = (uint64_t)VALUES * rank->world_size;
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= STEPS; step++) {
        trainer_begin(rank, NULL);
        for (uint32_t i = 0; i < VALUES; i++) {
            const double value = noise(rank->rank, step, i);
            metric_add(rank, "sum", LOCKSTEP_METRIC_SUM, value);
            metric_add(rank, "loss/mean", LOCKSTEP_METRIC_MEAN, value);
            metric_add(rank, "least", LOCKSTEP_METRIC_MIN, value);
            metric_add(rank, "most", LOCKSTEP_METRIC_MAX, value);
        }
        // What is added in the step is not read before its end.
        (void)metric_value(rank, "sum", step == 1 ? 0 : all);
        trainer_fill_known(&module, rank->rank, step);
        trainer_call(rank, &module);
        trainer_end(rank);
        trainer_expect_mean(rank, &module, step, NULL);
        const double sum = expected_sum(rank->world_size, step);
        RANK_TRUE(rank, same_bits(metric_value(rank, "sum", all), sum));
        RANK_TRUE(rank, same_bits(metric_value(rank, "loss/mean", all), sum / (double)all));
        RANK_TRUE(rank, same_bits(metric_value(rank, "least", all),
                                  expected_most(rank->world_size, step, -1)));
        RANK_TRUE(rank, same_bits(metric_value(rank, "most", all),
                                  expected_most(rank->world_size, step, 1)));
    }
    trainer_free(&module);
}

static void case_48_values_by_kind(const struct setting *setting)
{
    ranks_run(setting, values_body, NULL);
}

// Only some ranks add in a step, or none does.
static void some_body(struct rank *rank)
{
    const uint32_t last = rank->world_size - 1;
    RANK_OK(rank, lockstep_metric_add(rank->session, "early", LOCKSTEP_METRIC_SUM, 1));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t step = 1; step <= 4; step++) {
        trainer_begin(rank, NULL);
        if (step == 2 && rank->rank == last)
            metric_add(rank, "last", LOCKSTEP_METRIC_MIN, 7);
        if (step == 3 && rank->rank == 0)
            metric_add(rank, "last", LOCKSTEP_METRIC_MIN, 9);
        trainer_end(rank);
        RANK_TRUE(rank, metric_value(rank, "early", rank->world_size) == rank->world_size);
        RANK_TRUE(rank, metric_value(rank, "last", step > 1) == (step == 1   ? 0
                                                                 : step == 2 ? 7
                                                                             : 9));
        RANK_TRUE(rank, metric_value(rank, "unknown", 0) == 0);
    }
    RANK_OK(rank, lockstep_metric_add(rank->session, "early", LOCKSTEP_METRIC_SUM, 2));
    RANK_TRUE(rank, metric_value(rank, "early", rank->world_size) == rank->world_size);
    trainer_begin(rank, NULL);
    trainer_end(rank);
    RANK_TRUE(rank, metric_value(rank, "early", rank->world_size) == 2 * rank->world_size);
}

static void case_48_a_rank_that_adds_nothing(const struct setting *setting)
{
    ranks_run(setting, some_body, NULL);
}

// NaNs with different bits, infinities and zeros of both signs: ranks get equal bits.
static void odd_body(struct rank *rank)
{
    const uint32_t world = rank->world_size;
    const uint32_t last = world - 1;
    const double zero = rank->rank == last ? -0.0 : 0.0;
    uint64_t bits = UINT64_C(0xfff8000000000100) + rank->rank;
    double nan_here;
    double value;
    memcpy(&nan_here, &bits, sizeof(nan_here));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    metric_add(rank, "nan", LOCKSTEP_METRIC_SUM, nan_here);
    metric_add(rank, "one_nan", LOCKSTEP_METRIC_MAX, rank->rank == last ? nan_here : 3);
    metric_add(rank, "one_nan_least", LOCKSTEP_METRIC_MIN, rank->rank == 0 ? nan_here : 3);
    metric_add(rank, "both", LOCKSTEP_METRIC_SUM, rank->rank % 2 ? INFINITY : -INFINITY);
    metric_add(rank, "both.least", LOCKSTEP_METRIC_MIN, rank->rank % 2 ? INFINITY : -INFINITY);
    metric_add(rank, "zero.least", LOCKSTEP_METRIC_MIN, zero);
    metric_add(rank, "zero.most", LOCKSTEP_METRIC_MAX, zero);
    trainer_end(rank);
    RANK_TRUE(rank, isnan(metric_value(rank, "nan", world)));
    RANK_TRUE(rank, isnan(metric_value(rank, "one_nan", world)));
    RANK_TRUE(rank, isnan(metric_value(rank, "one_nan_least", world)));
    value = metric_value(rank, "both", world);
    RANK_TRUE(rank, world == 1 ? value == -INFINITY : isnan(value));
    RANK_TRUE(rank, metric_value(rank, "both.least", world) == -INFINITY);
    RANK_TRUE(rank, same_bits(metric_value(rank, "zero.least", world), -0.0));
    RANK_TRUE(rank, same_bits(metric_value(rank, "zero.most", world), world == 1 ? -0.0 : 0.0));
}

static void case_48_nan_and_infinity(const struct setting *setting)
{
    ranks_run(setting, odd_body, NULL);
}

// In a window of accumulation values travel at its end.
static void window_body(struct rank *rank)
{
    const struct lockstep_step_options within = {
        .struct_bytes = sizeof(within), .weight = 1, .accumulate = 1};
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, &within);
    metric_add(rank, "loss", LOCKSTEP_METRIC_MEAN, 2);
    trainer_end(rank);
    RANK_TRUE(rank, metric_value(rank, "loss", 0) == 0);
    trainer_begin(rank, NULL);
    metric_add(rank, "loss", LOCKSTEP_METRIC_MEAN, 5);
    trainer_end(rank);
    RANK_TRUE(rank, metric_value(rank, "loss", 2 * rank->world_size) == 3.5);
}

static void case_48_values_of_a_window(const struct setting *setting)
{
    ranks_run(setting, window_body, NULL);
}

// ---- Misuse ------------------------------------------------------------------------------------

// Ranks that use a new name with different kinds get one error, and the session goes on. A rank
// that uses a known name with another kind is told at once.
static void kinds_body(struct rank *rank)
{
    const bool first = rank->rank == 0;
    RANK_OK(rank, lockstep_start(rank->session));
    for (int again = 0; again < 2; again++) {
        trainer_begin(rank, NULL);
        metric_add(rank, "loss", first ? LOCKSTEP_METRIC_MEAN : LOCKSTEP_METRIC_SUM, 1);
        metric_add(rank, "fine", LOCKSTEP_METRIC_SUM, again + 1);
        RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "metric 'loss' is a sum on some ranks and a mean on others");
        RANK_TRUE(rank, metric_value(rank, "fine", rank->world_size) ==
                            (again + 1) * (double)rank->world_size);
        RANK_TRUE(rank, metric_value(rank, "loss", 0) == 0);
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_metric_add(rank->session, "fine", LOCKSTEP_METRIC_MAX, 1));
    RANK_SAYS(rank, "metric 'fine' is a sum; it is now added to as a maximum");
    trainer_begin(rank, NULL);
    metric_add(rank, "loss", LOCKSTEP_METRIC_MEAN, 4);
    trainer_end(rank);
    RANK_TRUE(rank, metric_value(rank, "loss", rank->world_size) == 4);
    // A name that this rank has not read or added to keeps its kind, too.
    trainer_begin(rank, NULL);
    if (first)
        metric_add(rank, "other", LOCKSTEP_METRIC_MAX, 1);
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_metric_add(rank->session, "other", LOCKSTEP_METRIC_MIN, 1));
    RANK_SAYS(rank, "metric 'other' is a maximum");
}

static void case_48_kinds_differ(const struct setting *setting)
{
    ranks_run(setting, kinds_body, NULL);
}

static void sixteen_metrics(struct rank *rank, uint32_t first)
{
    char name[32];
    for (uint32_t i = 0; i < 16; i++) {
        snprintf(name, sizeof(name), "metric_%" PRIu32, first + i);
        metric_add(rank, name, LOCKSTEP_METRIC_SUM, i + 1);
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_metric_add(rank->session, "one_more", LOCKSTEP_METRIC_SUM, 1));
    RANK_SAYS(rank, "'one_more'");
}

static void sixteen_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_start(rank->session));
    for (int step = 0; step < 2; step++) {
        trainer_begin(rank, NULL);
        sixteen_metrics(rank, 0);
        trainer_end(rank);
        RANK_TRUE(rank, metric_value(rank, "metric_15", rank->world_size) == 16 * rank->world_size);
    }
}

// Each rank has a metric that the others do not have: in one step, or in two.
static void overflow_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    sixteen_metrics(rank, rank->rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "16 metrics");
}

static void case_48_too_many_names(const struct setting *setting)
{
    ranks_run(setting, sixteen_body, NULL);
    ranks_run(setting, overflow_body, NULL);
}

static void names_body(struct rank *rank)
{
    static const char *const bad[] = {
        NULL, "", "two words", "k\xc3\xbchl", "a_name_of_24_characters_", "a=b"};
    double value = 0;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_metric_add(rank->session, bad[i], LOCKSTEP_METRIC_SUM, 1));
        RANK_SAYS(rank, "1 to 23 letters");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_metric_read(rank->session, bad[i], &value, NULL));
    }
    for (int kind = -1; kind <= 5; kind += kind == 0 ? 5 : 1) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_metric_add(rank->session, "a", (lockstep_metric_kind)kind, 1));
        RANK_SAYS(rank, "there is no kind");
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_metric_read(rank->session, "a", NULL, NULL));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    metric_add(rank, "a_name_of_23_characters", LOCKSTEP_METRIC_SUM, 1);
    trainer_end(rank);
    RANK_OK(rank, lockstep_metric_read(rank->session, "a_name_of_23_characters", &value, NULL));
    RANK_TRUE(rank, value == rank->world_size);
}

static void case_48_names(const struct setting *setting)
{
    ranks_run(setting, names_body, NULL);
}

// A refused value changes nothing, so the most values of one step are added.
static void most_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_METRIC_VALUES; i++)
        RANK_TRUE(rank, lockstep_metric_add(rank->session, "n", LOCKSTEP_METRIC_SUM, 1) == 0);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_metric_add(rank->session, "n", LOCKSTEP_METRIC_SUM, 1));
    RANK_SAYS(rank, "metric 'n'");
    trainer_end(rank);
    RANK_TRUE(rank,
              metric_value(rank, "n", LOCKSTEP_MAX_METRIC_VALUES) == LOCKSTEP_MAX_METRIC_VALUES);
}

static void case_48_most_values(const struct setting *setting)
{
    if (setting->transport == LOCKSTEP_TRANSPORT_LOOPBACK && setting->torn_bytes == 0)
        ranks_run(setting, most_body, NULL);
}

int main(void)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 7, 11, 0};
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"case_48_values_by_kind", case_48_values_by_kind, worlds},
        {"case_48_a_rank_that_adds_nothing", case_48_a_rank_that_adds_nothing, worlds},
        {"case_48_nan_and_infinity", case_48_nan_and_infinity, worlds},
        {"case_48_values_of_a_window", case_48_values_of_a_window, NULL},
        {"case_48_kinds_differ", case_48_kinds_differ, NULL},
        {"case_48_too_many_names", case_48_too_many_names, NULL},
        {"case_48_names", case_48_names, NULL},
        {"case_48_most_values", case_48_most_values, one},
    };
    return stamp_run("metrics", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
