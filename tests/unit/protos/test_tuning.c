// SPDX-License-Identifier: Apache-2.0
//
// The rule that chooses the algorithm of a collective, over worlds, sizes and wishes.

#include "protos/tuning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SMALL 1024
#define MEDIUM 65536
#define LARGE (1 << 20)

// An algorithm that is not built yet falls back to the ring.
#define PAIR(algorithm) (TUNING_HAS_PAIR ? (algorithm) : ALGORITHM_RING)
#define SHARED (TUNING_HAS_SHARED ? ALGORITHM_SHARED : ALGORITHM_RING)
#define TWO_LEVEL (TUNING_HAS_TWO_LEVEL ? ALGORITHM_TWO_LEVEL : ALGORITHM_RING)

static enum plan_algorithm choose(uint32_t world_size, uint32_t hosts, bool shares, uint32_t wish,
                                  bool broadcast, uint64_t bytes)
{
    const struct tuning_world world = {world_size, hosts};
    const struct tuning tuning = {
        .doubling_bytes = SMALL, .halving_bytes = MEDIUM, .shares = shares, .wish = wish};
    return tuning_choose(&tuning, &world, broadcast, bytes);
}

static enum plan_algorithm by_size(uint32_t world_size, uint32_t hosts, bool shares, uint64_t bytes)
{
    return choose(world_size, hosts, shares, ALGORITHM_BY_SIZE, false, bytes);
}

static void test_sizes_decide_between_hosts(void **state)
{
    (void)state;
    assert_int_equal(by_size(4, 4, true, 0), PAIR(ALGORITHM_DOUBLING));
    assert_int_equal(by_size(4, 4, true, SMALL), PAIR(ALGORITHM_DOUBLING));
    assert_int_equal(by_size(4, 4, true, SMALL + 1), PAIR(ALGORITHM_HALVING));
    assert_int_equal(by_size(4, 4, true, MEDIUM), PAIR(ALGORITHM_HALVING));
    assert_int_equal(by_size(4, 4, true, MEDIUM + 1), ALGORITHM_RING);
    assert_int_equal(by_size(4, 4, true, UINT64_MAX), ALGORITHM_RING);
}

static void test_one_host_that_shares_uses_memory_only(void **state)
{
    (void)state;
    assert_int_equal(by_size(4, 1, true, 0), SHARED);
    assert_int_equal(by_size(4, 1, true, LARGE), SHARED);
    assert_int_equal(choose(4, 1, true, ALGORITHM_BY_SIZE, true, LARGE), SHARED);
    assert_int_equal(by_size(4, 1, false, LARGE), ALGORITHM_RING);
    assert_int_equal(by_size(4, 1, false, 1), PAIR(ALGORITHM_DOUBLING));
}

static void test_hosts_with_several_ranks_have_two_levels(void **state)
{
    (void)state;
    assert_int_equal(by_size(4, 2, true, LARGE), TWO_LEVEL);
    assert_int_equal(by_size(4, 2, true, SMALL), PAIR(ALGORITHM_DOUBLING));
    assert_int_equal(by_size(4, 2, false, LARGE), ALGORITHM_RING);
    assert_int_equal(by_size(4, 0, true, LARGE), ALGORITHM_RING);
}

static void test_broadcasts_go_through_memory_or_along_the_ring(void **state)
{
    (void)state;
    assert_int_equal(choose(4, 4, true, ALGORITHM_BY_SIZE, true, 1), ALGORITHM_RING);
    assert_int_equal(choose(4, 2, true, ALGORITHM_BY_SIZE, true, LARGE), ALGORITHM_RING);
    assert_int_equal(choose(4, 4, true, ALGORITHM_DOUBLING, true, 1), ALGORITHM_RING);
    assert_int_equal(choose(4, 1, true, ALGORITHM_RING, true, 1), ALGORITHM_RING);
    assert_int_equal(choose(4, 1, true, ALGORITHM_SHARED, true, 1), ALGORITHM_SHARED);
}

static void test_a_wish_takes_the_place_of_the_rule(void **state)
{
    (void)state;
    assert_int_equal(choose(4, 1, true, ALGORITHM_RING, false, 1), ALGORITHM_RING);
    assert_int_equal(choose(4, 1, true, ALGORITHM_HALVING, false, LARGE), ALGORITHM_HALVING);
    assert_int_equal(choose(4, 4, true, ALGORITHM_DOUBLING, false, LARGE), ALGORITHM_DOUBLING);
    assert_int_equal(choose(4, 2, true, ALGORITHM_TWO_LEVEL, false, 1), ALGORITHM_TWO_LEVEL);
    assert_int_equal(choose(4, 1, true, ALGORITHM_TWO_LEVEL, false, 1), ALGORITHM_SHARED);
    assert_int_equal(choose(4, 4, true, ALGORITHM_TWO_LEVEL, false, 1), ALGORITHM_RING);
}

static void test_a_world_of_one_computes(void **state)
{
    (void)state;
    for (uint32_t wish = 0; wish <= ALGORITHM_BY_SIZE; wish++)
        assert_int_equal(choose(1, 1, true, wish, false, 1), ALGORITHM_RING);
}

// No collective may ever be launched with anything else.
static void test_there_is_always_an_algorithm(void **state)
{
    (void)state;
    for (uint32_t wish = 0; wish <= ALGORITHM_BY_SIZE; wish++)
        for (uint32_t world = 1; world <= 5; world++)
            for (uint32_t hosts = 0; hosts <= world; hosts++)
                for (int bits = 0; bits < 4; bits++)
                    assert_true((uint32_t)choose(world, hosts, bits & 1, wish, bits & 2, MEDIUM) <
                                PLAN_ALGORITHMS);
}

static const char *refusal(uint32_t world_size, uint32_t hosts, bool shares, uint32_t wish)
{
    const struct tuning_world world = {world_size, hosts};
    const struct tuning tuning = {.shares = shares, .wish = wish};
    return tuning_refusal(&tuning, &world);
}

static void test_wishes_that_cannot_be_had(void **state)
{
    (void)state;
    assert_null(refusal(4, 4, false, ALGORITHM_RING));
    assert_null(refusal(4, 4, false, ALGORITHM_BY_SIZE));
    assert_int_equal(!refusal(4, 4, false, ALGORITHM_HALVING), TUNING_HAS_PAIR);
    assert_int_equal(!refusal(4, 1, true, ALGORITHM_SHARED), TUNING_HAS_SHARED);
    assert_int_equal(!refusal(1, 1, false, ALGORITHM_SHARED), TUNING_HAS_SHARED);
    assert_non_null(refusal(4, 1, false, ALGORITHM_SHARED));
    assert_non_null(refusal(4, 2, true, ALGORITHM_SHARED));
    assert_int_equal(!refusal(4, 2, true, ALGORITHM_TWO_LEVEL), TUNING_HAS_TWO_LEVEL);
    assert_non_null(refusal(4, 2, false, ALGORITHM_TWO_LEVEL));
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(tuning_name(ALGORITHM_RING), "ring");
    assert_string_equal(tuning_name(ALGORITHM_TWO_LEVEL), "two_level");
    assert_string_equal(tuning_name(ALGORITHM_BY_SIZE), "auto");
    assert_string_equal(tuning_name(ALGORITHM_BY_SIZE + 1), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_decide_between_hosts),
        cmocka_unit_test(test_one_host_that_shares_uses_memory_only),
        cmocka_unit_test(test_hosts_with_several_ranks_have_two_levels),
        cmocka_unit_test(test_broadcasts_go_through_memory_or_along_the_ring),
        cmocka_unit_test(test_a_wish_takes_the_place_of_the_rule),
        cmocka_unit_test(test_a_world_of_one_computes),
        cmocka_unit_test(test_there_is_always_an_algorithm),
        cmocka_unit_test(test_wishes_that_cannot_be_had),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
