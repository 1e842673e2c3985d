// SPDX-License-Identifier: Apache-2.0
//
// Deaths in registered memory: ranks store straight into each other's memory. A rank stops for ever
// between two turns, or at a store, or is slow there while another one dies. The others finish, and
// every element is a mean over a set that contains all survivors, with equal bits on all of them
// (docs/internals/recovery.md).

#include "tests/conformance/transport_every_death.h"
#include "tests/support/bounds.h"
#include "worker/kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static void in_registered_memory_of(struct crew_plan *plan, uint32_t step)
{
    static const uint32_t sizes[] = {1001, 9001, 140001};
    const bool sums = plan->sums;
    struct crew_tally sum = {0};
    uint32_t runs = 0;
    for (size_t s = 0; s < LENGTH(sizes); s++) {
        for (uint32_t world = plan->sleeps ? 3 : 2; world <= 5; world++) {
            struct crew_plan one = *plan;
            if (test_slow() > 1 && (world + s) % 2 == 0)
                continue; // A sanitizer sees each size, and each world.
            one.world = world;
            one.elements = sizes[s];
            one.slots = 1 + (uint32_t)(world + s) % 2;
            // A sum of samples makes the means of a pair exact in another way.
            one.sums = sums || world == 4;
            one.dtype = (world + s) % 3 == 1 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
            one.units = (world + s) % 4 == 1 ? CREW_USED : CREW_PLAIN;
            one.seed = world + 10 * s + 100 * (uint32_t)plan->tear;
            one.victims[0] = (uint32_t)(world + s + plan->seed) % world;
            runs += every_death_run(&one, every_death_stride(step), s == 1, &sum);
        }
    }
    every_death_report(plan->name, runs, &sum);
    if (plan->tear != CREW_WHOLE)
        print_message("  %u ranks stopped inside of a turn, %u runs refused\n", sum.torn,
                      sum.refused);
    assert_true(plan->tear == CREW_WHOLE || sum.torn > 0);
    // A block is final on all survivors or on none, unless one of them is slow.
    assert_true(sum.reduce > 0 && (sum.have > 0 || !plan->sleeps));
}

static struct crew_plan registered_plan(const char *name, enum crew_tear tear)
{
    return (struct crew_plan){.name = name,
                              .kind = TRANSPORT_TCP,
                              .algorithm = ALGORITHM_SHARED,
                              .chunk_bytes = 16384,
                              .mates = true,
                              .registered = true,
                              .tear = tear};
}

// Ranks store into each other's memory. The victim dies between two turns.
static void in_registered_memory(void **state)
{
    struct crew_plan plan = registered_plan("registered", CREW_WHOLE);
    (void)state;
    in_registered_memory_of(&plan, 5);
    plan = registered_plan("registered, sums of samples", CREW_WHOLE);
    plan.sums = true;
    in_registered_memory_of(&plan, 9);
}

// The victim dies at a store into its own memory, or into that of a mate. If it only stops, it goes
// on when all others are done.
static void torn_in_registered_memory(void **state)
{
    struct crew_plan plan = registered_plan("registered, torn in its own memory", CREW_TEARS_OWN);
    (void)state;
    in_registered_memory_of(&plan, 4);
    plan = registered_plan("registered, torn in a mate's memory", CREW_TEARS_MATE);
    in_registered_memory_of(&plan, 3);
    plan.sums = true;
    in_registered_memory_of(&plan, 7);
}

// A rank is stopped inside of a mate's memory while another one dies, and it goes on when all
// others have frozen.
static void slow_in_registered_memory(void **state)
{
    struct crew_plan plan = registered_plan("registered, slow in a mate's memory", CREW_TEARS_MATE);
    (void)state;
    plan.sleeps = true;
    in_registered_memory_of(&plan, 3);
    plan = registered_plan("registered, slow in its own memory", CREW_TEARS_OWN);
    plan.sleeps = true;
    in_registered_memory_of(&plan, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_registered_memory),
        cmocka_unit_test(torn_in_registered_memory),
        cmocka_unit_test(slow_in_registered_memory),
    };
    kernels_environment();
    return cmocka_run_group_tests_name("fence", tests, NULL, NULL);
}
