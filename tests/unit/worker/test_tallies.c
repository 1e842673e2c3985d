// SPDX-License-Identifier: Apache-2.0
//
// The weight in a step's report is the same, whatever order the step's buckets end in.

#include "worker/session/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct bucket {
    uint32_t slot;
    bool of_group;
    uint64_t weight;
};

static uint64_t weigh(const struct bucket *buckets, uint32_t count, uint32_t first)
{
    struct tallies tallies = {0};
    for (uint32_t i = 0; i < count; i++) {
        const struct bucket *bucket = &buckets[(first + i) % count];
        tallies_weigh(&tallies, bucket->slot, bucket->of_group, bucket->weight);
    }
    return atomic_load(&tallies.weight_total);
}

static void the_last_bucket_of_all_ranks_counts(void **state)
{
    static const struct bucket buckets[] = {
        {0, false, 5}, {1, true, 2}, {2, false, 0}, {LOCKSTEP_MAX_SLOTS - 1, true, 3}};
    (void)state;
    for (uint32_t first = 0; first < 4; first++)
        assert_int_equal(weigh(buckets, 4, first), 0);
    for (uint32_t first = 0; first < 2; first++)
        assert_int_equal(weigh(buckets, 2, first), 5);
}

static void without_one_the_last_bucket_of_a_group_counts(void **state)
{
    static const struct bucket buckets[] = {{0, true, 2}, {2, true, 3}, {1, true, 4}};
    (void)state;
    for (uint32_t first = 0; first < 3; first++)
        assert_int_equal(weigh(buckets, 3, first), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_bucket_of_all_ranks_counts),
        cmocka_unit_test(without_one_the_last_bucket_of_a_group_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
