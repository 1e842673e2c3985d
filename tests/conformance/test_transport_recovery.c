// SPDX-License-Identifier: Apache-2.0
//
// A rank stops for ever at every turn of every way of reducing. The others freeze, and finish what
// was begun by the coordinator's rule. Every element must be a mean over a set that contains all
// survivors, with equal bits on all of them (docs/internals/recovery.md).

#include "tests/conformance/transport_crew.h"
#include "tests/support/bounds.h"
#include "worker/kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

// By day every `by_day`-th turn is tried; all with LOCKSTEP_TEST_ALGORITHMS=all.
static uint32_t stride(uint32_t by_day)
{
    return test_everything() ? 1 : by_day;
}

static void add(struct crew_tally *sum, const struct crew_tally *one)
{
    sum->turns += one->turns;
    sum->have += one->have;
    sum->reduce += one->reduce;
    sum->again += one->again;
    sum->whole += one->whole;
}

// One death at every turn of the victim, and once nobody dies. second: also a death in the
// repetition, at a turn that the seed gives.
static uint32_t deaths(const struct crew_plan *plan, uint32_t step, bool second,
                       struct crew_tally *sum)
{
    struct crew_plan run = *plan;
    struct crew_tally tally = {0};
    uint32_t count = 0;
    for (uint32_t i = 0; i < CREW_DEATHS; i++)
        run.turns[i] = CREW_NEVER;
    crew_run(&run, &tally);
    const uint32_t turns = tally.turns;
    for (uint32_t turn = (uint32_t)(plan->seed % step); turn <= turns; turn += step) {
        struct crew_tally one = {0};
        run = *plan;
        run.turns[0] = turn;
        run.seed = plan->seed * 1000 + turn;
        run.end = (enum crew_end)((plan->seed + turn) % CREW_ENDS);
        run.victims[1] = (uint32_t)(run.seed % 3);
        run.turns[1] = second ? (uint32_t)(run.seed * 7 % 41) : CREW_NEVER;
        run.victims[2] = (uint32_t)(run.seed % 2);
        run.turns[2] = second ? (uint32_t)(run.seed * 5 % 53) : CREW_NEVER;
        crew_run(&run, &one);
        add(sum, &one);
        count++;
    }
    return count;
}

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

static void report(const char *what, uint32_t runs, const struct crew_tally *sum)
{
    print_message("%s: %u runs, %u rows given, %u rows summed, %u slots again, %u slots whole\n",
                  what, runs, sum->have, sum->reduce, sum->again, sum->whole);
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
            runs += deaths(&plan, stride(second ? 11 : 7), second, &sum);
        }
    }
    report(way->name, runs, &sum);
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
            runs += deaths(&plan, stride(9), k == 1, &sum);
        }
        report(ways[w].name, runs, &sum);
        assert_true(sum.have > 0);
    }
}

// Only the victim has a weight. Then the mean is its own input, or the survivors' memory stays as
// it is and the total weight is 0.
static void weight_of_the_dead(void **state)
{
    (void)state;
    for (size_t w = 0; w < LENGTH(ways); w++) {
        struct crew_tally sum = {0};
        struct crew_plan plan = plan_of(&ways[w], 4);
        plan.weightless = true;
        plan.seed = w;
        plan.victims[0] = (uint32_t)w % 3;
        report(ways[w].name, deaths(&plan, stride(3), true, &sum), &sum);
    }
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
        report(ways[w].name, deaths(&plan, stride(5), true, &sum), &sum);
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
                runs += deaths(&plan, stride(7), s == 1, &sum);
            }
        }
        report(memory[w].name, runs, &sum);
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
    };
    kernels_environment();
    return cmocka_run_group_tests_name("recovery", tests, NULL, NULL);
}
