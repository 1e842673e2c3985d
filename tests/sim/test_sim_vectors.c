// SPDX-License-Identifier: Apache-2.0
//
// The real cores against the vectors of the order protocol (tests/golden/order/vectors.txt, whose
// head says what they are): every case is run under several schedules, drawn from its line, and
// must end as the vector says. LOCKSTEP_TEST_VECTOR=n runs the cases of line n alone, prints what
// happens in them, and says how often each outcome came.

#include "tests/sim/vectors.h"

#include "tests/support/choice.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    SCHEDULES = 10, // Schedules of each case.
    SCHEDULES_ALONE = 200, // Schedules of each case if one line is run alone.
    MISMATCHES_SHOWN = 20
};

struct tally {
    uint32_t lines;
    uint32_t cases;
    uint64_t events;
    uint32_t mismatches;
};

static struct world world;

static uint32_t draw(uint64_t *random, uint32_t bound)
{
    return (uint32_t)(choice_random(random) % bound);
}

// Lets events happen until none is possible. Returns their number.
static uint64_t run_schedule(uint64_t random, bool prints)
{
    struct world_event events[WORLD_EVENTS];
    char text[WORLD_TEXT];
    uint64_t count = 0;
    uint32_t choices;
    while (world.fault[0] == '\0' && (choices = world_events(&world, events)) > 0) {
        const struct world_event *event = &events[draw(&random, choices)];
        world_event_text(&world, event, text);
        if (prints)
            printf("    %s\n", text);
        world_do(&world, event);
        count++;
    }
    return count;
}

// Runs one schedule of a case. True: the outcome is one that the vector allows.
static bool check_schedule(const struct vector_case *one, char *outcome, size_t bytes)
{
    if (world_outcome(&world, outcome, bytes))
        return vector_allows(one->outcome, outcome);
    snprintf(outcome, bytes, "%s", world.fault);
    return false;
}

static void check_case(const struct vector *vector, const struct vector_case *one, uint32_t line,
                       uint32_t schedules, struct tally *tally)
{
    static struct world_snapshot start;
    char outcome[1024];
    const bool alone = schedules == SCHEDULES_ALONE;
    if (!world_begin(&world, &one->config))
        fail_msg("line %" PRIu32 " of the vectors: %s", line, world.fault);
    world_save(&world, &start);
    for (uint32_t schedule = 0; schedule < schedules; schedule++) {
        world_restore(&world, &start);
        tally->events += run_schedule((uint64_t)line << 32 | schedule, false);
        if (check_schedule(one, outcome, sizeof(outcome)))
            continue;
        if (tally->mismatches++ < MISMATCHES_SHOWN)
            printf("line %" PRIu32 ", %s, %s, schedule %" PRIu32 ": %s\n  the vector says %s\n",
                   line, vector->family, one->name, schedule, outcome, one->outcome);
        if (alone) {
            world_restore(&world, &start);
            run_schedule((uint64_t)line << 32 | schedule, true);
        }
        break;
    }
    world_snapshot_free(&start);
    memset(&start, 0, sizeof(start));
    tally->cases++;
}

static void check_line(const char *text, uint32_t line, uint32_t schedules, struct tally *tally)
{
    static struct vector vector;
    if (!vector_read(&vector, text))
        fail_msg("line %" PRIu32 " of the vectors cannot be read", line);
    for (uint32_t i = 0; i < vector.case_count; i++)
        check_case(&vector, &vector.cases[i], line, schedules, tally);
    tally->lines++;
}

static void test_every_vector_under_several_schedules(void **state)
{
    char text[VECTOR_LINE];
    struct tally tally = {0};
    const char *chosen = getenv("LOCKSTEP_TEST_VECTOR");
    const uint32_t alone = !chosen ? 0 : (uint32_t)strtoul(chosen, NULL, 10);
    FILE *file = fopen("tests/golden/order/vectors.txt", "r");
    (void)state;
    assert_non_null(file);
    for (uint32_t line = 1; fgets(text, sizeof(text), file); line++)
        if (text[0] != '#' && (alone == 0 || alone == line))
            check_line(text, line, alone == 0 ? SCHEDULES : SCHEDULES_ALONE, &tally);
    fclose(file);
    world_end(&world);
    printf("%" PRIu32 " cases in %" PRIu32 " lines, %" PRIu64 " events, %" PRIu32 " mismatches\n",
           tally.cases, tally.lines, tally.events, tally.mismatches);
    assert_true(tally.cases > 0);
    assert_int_equal(tally.mismatches, 0);
}

// A reader that took anything would find no fault.
static void test_outcomes_that_are_not_allowed(void **state)
{
    (void)state;
    assert_true(vector_allows("E1:ORDER|PHASE", "error 1 phase"));
    assert_false(vector_allows("E1:ORDER|PHASE", "error 1 unplanned"));
    assert_false(vector_allows("E1:ORDER", "error 0 order"));
    assert_true(vector_allows("ok:A0=0+1,B0=/A0=1.0A1+1;0.0A0,0.1B0",
                              "ok 0A0={0:0A0,1:0A0} 0B0={} 1A0={1:0A1,1:1A0} "
                              "stash={0:1B0,0:0A0}"));
    assert_false(vector_allows("ok:A0=0+1", "ok 0A0={0:0A0} stash={}"));
    assert_false(vector_allows("ok:A0=0", "ok 0A0={0:0A0} stash={1:0A0}"));
    assert_false(vector_allows("ok:A0=0", "error 0 order"));
    assert_false(vector_allows("ok:A0=0;1.0A0", "ok 0A0={0:0A0} stash={}"));
    assert_true(vector_allows("ok:A0=0 or ok:A0=0,B0=", "ok 0A0={0:0A0} 0B0={} stash={}"));
    assert_false(vector_allows("ok:A0=0 or ok:A0=0,B0=", "ok 0B0={} stash={}"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outcomes_that_are_not_allowed),
        cmocka_unit_test(test_every_vector_under_several_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
