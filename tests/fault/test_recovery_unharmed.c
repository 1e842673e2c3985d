// SPDX-License-Identifier: Apache-2.0
//
// A job in which nobody dies ends with the same parameters, bit for bit, whether its survivors
// would go on (config.on_failure continue) or not, in each way in which gradients are reduced.

#include "tests/fault/process_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>

enum {
    SIZE = 3,
    STEPS = 12
};

static struct coordinator_process coordinator;
static struct world world;

// The state hash with which all ranks of such a job end.
static uint64_t hash_of(const struct way *way, bool survives)
{
    struct script scripts[SIZE];
    for (uint32_t rank = 0; rank < SIZE; rank++)
        scripts[rank] = (struct script){.last_step = STEPS, .way = *way, .survives = survives};
    world_start(&world, &coordinator, way->name, SIZE, scripts);
    const uint64_t hash = world_expect_done(&world);
    assert_int_not_equal(hash, 0);
    return hash;
}

static void hashes_are_as_without(void **state)
{
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (size_t w = 0; w < WORLD_WAYS; w++) {
        const uint64_t without = hash_of(&world_ways[w], false);
        const uint64_t with = hash_of(&world_ways[w], true);
        printf("%s: %016llx\n", world_ways[w].name, (unsigned long long)with);
        assert_int_equal(with, without);
    }
    coordinator_stop(&coordinator);
}

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(hashes_are_as_without, teardown)};
    return cmocka_run_group_tests_name("recovery_unharmed", tests, NULL, NULL);
}
