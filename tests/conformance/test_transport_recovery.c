// SPDX-License-Identifier: Apache-2.0
//
// A rank stops for ever at every turn of every way of reducing. The others freeze, and finish what
// was begun by the coordinator's rule. Every element must be a mean over a set that contains all
// survivors, with equal bits on all of them (docs/internals/recovery.md).

#include "tests/conformance/transport_every_death.h"
#include "worker/kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

struct way {
    const char *name;
    enum plan_algorithm algorithm;
    bool cuts; // True if a rank can have a part of a slot final.
};

static const struct way ways[] = {
    {"ring", ALGORITHM_RING, true},
    {"doubling", ALGORITHM_DOUBLING, false},
    {"halving", ALGORITHM_HALVING, true},
    {"direct", ALGORITHM_DIRECT, true},
};

static struct crew_plan plan_of(const struct way *way, uint32_t world)
{
    return (struct crew_plan){.name = way->name,
                              .kind = TRANSPORT_LOOPBACK,
                              .torn_bytes = 21,
                              .algorithm = way->algorithm,
                              .world = world,
                              .elements = 97,
                              .chunk_bytes = 64,
                              .slots = 1,
                              .dtype = DTYPE_FLOAT32};
}

static void every_turn_of(const struct way *way, bool second)
{
    struct crew_tally sum = {0};
    uint32_t runs = 0;
    for (uint32_t world = 2 + second; world <= 5; world++) {
        for (uint32_t units = 0; units < CREW_UNITS; units++) {
            struct crew_plan plan = plan_of(way, world);
            plan.units = (enum crew_units)units;
            plan.seed = world * 7 + units;
            plan.victims[0] = (world + units) % world;
            runs += every_death_run(&plan, every_death_stride(second ? 11 : 7), second, &sum);
        }
    }
    every_death_report(way->name, runs, &sum);
    assert_true(sum.have > 0 && sum.again > 0);
    assert_true(sum.reduce > 0 || !way->cuts);
}

static void every_turn(void **state)
{
    (void)state;
    for (size_t w = 0; w < LENGTH(ways); w++)
        every_turn_of(&ways[w], false);
}

static void further_deaths(void **state)
{
    (void)state;
    for (size_t w = 0; w < LENGTH(ways); w++)
        every_turn_of(&ways[w], true);
}

// Formats of frames other than that of memory, several slots, larger elements.
static void formats(void **state)
{
    static const struct {
        enum dtype dtype;
        enum dtype partial;
        enum dtype final;
    } kinds[] = {
        {DTYPE_FLOAT64, DTYPE_NONE, DTYPE_NONE},
        {DTYPE_BFLOAT16, DTYPE_NONE, DTYPE_NONE},
        {DTYPE_FLOAT16, DTYPE_FLOAT32, DTYPE_NONE},
        {DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_BFLOAT16},
    };
    (void)state;
    for (size_t w = 0; w < LENGTH(ways); w++) {
        struct crew_tally sum = {0};
        uint32_t runs = 0;
        for (size_t k = 0; k < LENGTH(kinds); k++) {
            struct crew_plan plan = plan_of(&ways[w], 3);
            plan.dtype = kinds[k].dtype;
            plan.partial = kinds[k].partial;
            plan.final = kinds[k].final;
            plan.units = k % 2 == 0 ? CREW_PLAIN : CREW_SPARSE;
            plan.slots = 2;
            plan.seed = k + 3;
            plan.victims[0] = (uint32_t)k % 3;
            runs += every_death_run(&plan, every_death_stride(9), k == 1, &sum);
        }
        every_death_report(ways[w].name, runs, &sum);
        assert_true(sum.have > 0);
    }
}

// A sum in the order of the ranks, and one of 16-bit floats in memory, which is rounded once, keep
// their bits where a death cuts them. So a mean of large float16 is finite.
static void numerics(void **state)
{
    static const struct {
        struct way way;
        enum dtype dtype;
        bool mates;
    } kinds[] = {
        {{"direct, float32", ALGORITHM_DIRECT, true}, DTYPE_FLOAT32, false},
        {{"direct, bfloat16", ALGORITHM_DIRECT, true}, DTYPE_BFLOAT16, false},
        {{"memory, bfloat16", ALGORITHM_SHARED, true}, DTYPE_BFLOAT16, true},
        {{"memory, float16", ALGORITHM_SHARED, true}, DTYPE_FLOAT16, true},
    };
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct crew_tally sum = {0};
        uint32_t runs = 0;
        for (uint32_t world = 3; world <= 5; world++) {
            struct crew_plan plan = plan_of(&kinds[k].way, world);
            plan.exact = true;
            plan.dtype = kinds[k].dtype;
            plan.mates = kinds[k].mates;
            plan.elements = plan.mates ? 140001 : 9001;
            plan.torn_bytes = 4001;
            plan.chunk_bytes = 4096;
            plan.units = (enum crew_units)(world % CREW_UNITS);
            plan.seed = k + world;
            plan.victims[0] = (uint32_t)k % world;
            runs += every_death_run(&plan, every_death_stride(3), world == 4, &sum);
        }
        every_death_report(kinds[k].way.name, runs, &sum);
        assert_true(sum.reduce > 0);
    }
}

// Only the victim has a weight. Then each element is its own input or 0, alike on all survivors. Or
// the survivors' memory stays as it is, and the total weight is 0.
static void weight_of_the_dead(void **state)
{
    (void)state;
    for (size_t w = 0; w < LENGTH(ways); w++) {
        struct crew_tally sum = {0};
        struct crew_plan plan = plan_of(&ways[w], 4);
        plan.weightless = true;
        plan.seed = w;
        plan.victims[0] = (uint32_t)w % 3;
        uint32_t runs = every_death_run(&plan, every_death_stride(3), true, &sum);
        plan.units = CREW_SPARSE;
        runs += every_death_run(&plan, every_death_stride(3), true, &sum);
        every_death_report(ways[w].name, runs, &sum);
    }
}

// A group of some ranks, of which the victim is one or none. The members' order is not that of
// their numbers. A group of one member is left, or the group's ranks have become all.
static void of_a_group(void **state)
{
    static const struct {
        uint32_t world;
        uint32_t group;
    } groups[] = {{3, 5}, {4, 11}, {5, 22}, {4, 12}};
    const struct way way = {"group", ALGORITHM_DIRECT, true};
    struct crew_tally sum = {0};
    uint32_t runs = 0;
    (void)state;
    for (size_t g = 0; g < LENGTH(groups); g++) {
        for (uint32_t victim = 0; victim < groups[g].world; victim++) {
            struct crew_plan plan = plan_of(&way, groups[g].world);
            plan.group = groups[g].group;
            plan.units = (enum crew_units)((g + victim) % CREW_UNITS);
            plan.dtype = victim % 2 == 0 ? DTYPE_FLOAT32 : DTYPE_BFLOAT16;
            plan.slots = 1 + (uint32_t)g % 2;
            plan.seed = g * 7 + victim;
            plan.victims[0] = victim;
            runs += every_death_run(&plan, every_death_stride(5), false, &sum);
            runs += every_death_run(&plan, every_death_stride(11), g != 0 && g != 3, &sum);
        }
    }
    every_death_report(way.name, runs, &sum);
    assert_true(sum.have > 0 && sum.again > 0 && sum.reduce > 0);
}

// Real sockets: the kernel decides how much arrives at once.
static void over_tcp(void **state)
{
    (void)state;
    for (size_t w = 0; w < LENGTH(ways); w++) {
        struct crew_tally sum = {0};
        struct crew_plan plan = plan_of(&ways[w], 3);
        plan.kind = TRANSPORT_TCP;
        plan.torn_bytes = 0;
        plan.elements = 30001;
        plan.chunk_bytes = 4096;
        plan.seed = w;
        plan.victims[0] = (uint32_t)w % 3;
        every_death_report(ways[w].name, every_death_run(&plan, every_death_stride(5), true, &sum),
                           &sum);
    }
}

// In memory of one host, and of two: shots, one piece, several pieces.
static void in_memory(void **state)
{
    static const uint32_t sizes[] = {97, 9001, 140001};
    static const struct way memory[] = {
        {"memory", ALGORITHM_SHARED, true},
        {"two levels", ALGORITHM_TWO_LEVEL, false},
    };
    (void)state;
    for (size_t w = 0; w < LENGTH(memory); w++) {
        struct crew_tally sum = {0};
        uint32_t runs = 0;
        for (size_t s = 0; s < LENGTH(sizes); s++) {
            for (uint32_t world = w == 0 ? 2 : 3; world <= 5; world++) {
                struct crew_plan plan = plan_of(&memory[w], world);
                plan.torn_bytes = 4001;
                plan.chunk_bytes = 16384;
                plan.mates = true;
                plan.hosts = w == 0 ? 1 : 2;
                plan.elements = sizes[s];
                plan.units = (enum crew_units)((world + s) % CREW_UNITS);
                plan.seed = world + 10 * s;
                plan.victims[0] = (uint32_t)(world + s) % world;
                runs += every_death_run(&plan, every_death_stride(7), s == 1, &sum);
            }
        }
        every_death_report(memory[w].name, runs, &sum);
        assert_true(sum.have > 0 && sum.again > 0);
        assert_true(sum.reduce > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_turn), cmocka_unit_test(further_deaths),
        cmocka_unit_test(formats),    cmocka_unit_test(weight_of_the_dead),
        cmocka_unit_test(over_tcp),   cmocka_unit_test(in_memory),
        cmocka_unit_test(of_a_group), cmocka_unit_test(numerics),
    };
    kernels_environment();
    return cmocka_run_group_tests_name("recovery", tests, NULL, NULL);
}
