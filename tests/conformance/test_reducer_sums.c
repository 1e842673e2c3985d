// SPDX-License-Identifier: Apache-2.0
//
// Conformance: with LOCKSTEP_SUM_RANKS the bits of a step depend on the inputs and the world size
// alone. Case numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"
#include "worker/kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SUMS_STEPS 3

static const uint64_t sizes[] = {1, 40000, 3, 17, 400, 1000, 3000};
static const lockstep_dtype dtypes[] = {LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT32,  LOCKSTEP_FLOAT64,
                                        LOCKSTEP_FLOAT32, LOCKSTEP_BFLOAT16, LOCKSTEP_FLOAT16,
                                        LOCKSTEP_FLOAT32};
#define SUMS_TENSORS (sizeof(sizes) / sizeof(sizes[0]))

// How one world runs.
struct sums {
    lockstep_sum sum;
    size_t bucket_bytes;
    lockstep_wire wire;
    uint32_t left_out; // The last rank does not use this parameter; SUMS_TENSORS: it uses all.
};

static void sums_configure(struct rank *rank, struct lockstep_config *config)
{
    const struct sums *sums = rank->context;
    config->sum = sums->sum;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes =
        sums->bucket_bytes;
}

// Fills the gradients with noise, also those of 16 bits.
static void sums_fill(struct trained_module *module, uint32_t rank, uint64_t step)
{
    uint64_t state = ((uint64_t)rank << 32) + step;
    for (uint32_t p = 0; p < SUMS_TENSORS; p++) {
        for (uint64_t i = 0; i < sizes[p]; i++) {
            const uint64_t bits = trainer_random(&state);
            const double wide = (double)(int64_t)bits / 9e18 * (double)(1u << (bits & 7));
            const float value = (float)wide;
            if (dtypes[p] == LOCKSTEP_FLOAT64)
                ((double *)module->gradients[p])[i] = wide;
            else if (dtypes[p] == LOCKSTEP_FLOAT32)
                ((float *)module->gradients[p])[i] = value;
            else
                kernel_narrow((enum dtype)dtypes[p], (uint16_t *)module->gradients[p] + i, &value,
                              1);
        }
    }
}

static void sums_body(struct rank *rank)
{
    const struct sums *sums = rank->context;
    const struct module_shape shape = {.name = "net",
                                       .count = SUMS_TENSORS,
                                       .elements = sizes,
                                       .dtypes = dtypes,
                                       .wire = sums->wire,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT};
    const struct lockstep_step_options options = {.struct_bytes = sizeof(options),
                                                  .weight = rank->rank % 2 + 1};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= SUMS_STEPS; step++) {
        const bool last = rank->rank + 1 == rank->world_size;
        sums_fill(&module, rank->rank, step);
        trainer_begin(rank, &options);
        trainer_call_used(rank, &module,
                          last ? UINT64_MAX & ~(1ull << sums->left_out) : UINT64_MAX);
        trainer_end(rank);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static uint64_t sums_run(const char *name, uint32_t hosts, uint32_t world, struct sums sums)
{
    struct setting setting = setting_named(name);
    const struct cluster_test test = {
        .setting = &setting, .configure = sums_configure, .body = sums_body, .context = &sums};
    setting.world_size = world;
    if (hosts > 0)
        setting.hosts = hosts;
    return ranks_run_test(&test);
}

// Buckets of one tensor each, of all tensors of a dtype, TCP, memory, torn bytes, and two hosts.
static uint64_t sums_same_everywhere(uint32_t world, struct sums sums)
{
    static const struct {
        const char *name;
        uint32_t hosts;
        size_t bucket_bytes;
    } ways[] = {{"tcp", 0, 1},
                {"tcp", 0, 1 << 20},
                {"shared", 0, 1 << 20},
                {"shared", 2, 100000},
                {"torn_7", 0, 1000}};
    uint64_t first = 0;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        sums.bucket_bytes = ways[i].bucket_bytes;
        const uint64_t digest = sums_run(ways[i].name, ways[i].hosts, world, sums);
        if (i == 0)
            first = digest;
        if (digest != first)
            fail_msg("%u ranks: other bits with %s, %u hosts, buckets of %zu bytes", world,
                     ways[i].name, ways[i].hosts, ways[i].bucket_bytes);
    }
    return first;
}

static void case_47_same_bits_whatever_the_way(void **state)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    const bool few = sanitizer && sanitizer[0] != '\0' && !test_everything();
    (void)state;
    for (uint32_t world = few ? 3 : 2; world <= (few ? 3 : 5); world++) {
        const struct sums sums = {
            .sum = LOCKSTEP_SUM_RANKS, .wire = LOCKSTEP_WIRE_SAME, .left_out = world % 3};
        (void)sums_same_everywhere(world, sums);
    }
}

static void case_47_same_bits_on_narrow_and_wide_wires(void **state)
{
    static const lockstep_wire wires[] = {LOCKSTEP_WIRE_BFLOAT16, LOCKSTEP_WIRE_FLOAT32};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        (void)sums_same_everywhere(
            3,
            (struct sums){.sum = LOCKSTEP_SUM_RANKS, .wire = wires[i], .left_out = SUMS_TENSORS});
}

// Without it the same noise gives other bits in other buckets. Otherwise the tests above would show
// nothing.
static void case_47_noise_shows_the_order(void **state)
{
    const struct sums one = {.bucket_bytes = 1, .left_out = SUMS_TENSORS};
    const struct sums all = {.bucket_bytes = 1 << 20, .left_out = SUMS_TENSORS};
    (void)state;
    assert_true(sums_run("ring", 0, 3, one) != sums_run("ring", 0, 3, all));
}

// A wish for another algorithm contradicts the order of ranks.
static void case_47_another_algorithm_is_refused(void **state)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session = NULL;
    (void)state;
    config.sum = LOCKSTEP_SUM_RANKS;
    setenv("LOCKSTEP_ALGORITHM", "ring", 1);
    assert_int_equal(lockstep_open(&config, &session), LOCKSTEP_E_CONFIG);
    assert_non_null(strstr(lockstep_error_text(), "LOCKSTEP_SUM=ranks"));
    unsetenv("LOCKSTEP_ALGORITHM");
    setenv("LOCKSTEP_SUM", "sorted", 1);
    assert_int_equal(lockstep_open(&config, &session), LOCKSTEP_E_CONFIG);
    assert_non_null(strstr(lockstep_error_text(), "fast or ranks"));
    unsetenv("LOCKSTEP_SUM");
    config.sum = (lockstep_sum)7;
    assert_int_equal(lockstep_open(&config, &session), LOCKSTEP_E_CONFIG);
    assert_non_null(strstr(lockstep_error_text(), "config.sum 7"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_47_same_bits_whatever_the_way),
        cmocka_unit_test(case_47_same_bits_on_narrow_and_wide_wires),
        cmocka_unit_test(case_47_noise_shows_the_order),
        cmocka_unit_test(case_47_another_algorithm_is_refused),
    };
    return cmocka_run_group_tests_name("sums", tests, NULL, NULL);
}
