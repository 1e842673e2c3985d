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

static const struct way ways[] = {
    {.name = "shared", .transport = "auto", .algorithm = "shared"},
    {.name = "registered", .transport = "auto", .algorithm = "shared", .registered = true},
    {.name = "two_level", .transport = "auto", .algorithm = "two_level", .two_hosts = true},
    {.name = "ring", .transport = "tcp", .algorithm = "ring"},
    {.name = "doubling", .transport = "tcp", .algorithm = "doubling"},
    {.name = "halving", .transport = "tcp", .algorithm = "halving"},
    {.name = "direct", .transport = "tcp", .algorithm = "direct"},
};

// The state hash with which all ranks of such a job end.
static uint64_t hash_of(const struct way *way, bool survives)
{
    struct script scripts[SIZE];
    struct report done[SIZE];
    for (uint32_t rank = 0; rank < SIZE; rank++)
        scripts[rank] = (struct script){.last_step = STEPS, .way = *way, .survives = survives};
    world_start(&world, &coordinator, way->name, SIZE, scripts);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        world_expect(&world, rank, REPORT_DONE, &done[rank]);
        assert_int_equal(done[rank].value, done[0].value);
    }
    world_join(&world);
    assert_int_not_equal(done[0].value, 0);
    return done[0].value;
}

static void hashes_are_as_without(void **state)
{
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        const uint64_t without = hash_of(&ways[w], false);
        const uint64_t with = hash_of(&ways[w], true);
        printf("%s: %016llx\n", ways[w].name, (unsigned long long)with);
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
