// SPDX-License-Identifier: Apache-2.0
//
// A collective that differs between two ranks. The coordinator gets both versions in either order,
// late, never, from a third rank, or from ranks that lie.

#include "tests/unit/coordinator/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TWO "lockstep_allreduce with 2 elements of float32, sum"
#define FOUR "lockstep_allreduce with 4 elements of float32, sum"

static const char both[] = "collective 'loss' (use 1) differs: rank 0 (host h1) calls " TWO
                           "; rank 2 (host h3) calls " FOUR "; make both calls alike";
static const char one[] = "rank 0 (host h1): what rank 0 saw";

static struct up_message report(const char *form)
{
    struct up_message message = {.kind = UP_FAIL};
    struct up_fail *fail = &message.u.fail;
    fail->kind = HALT_COLLECTIVE;
    fail->space = 77;
    snprintf(fail->text, sizeof(fail->text), "what rank 0 saw");
    snprintf(fail->name, sizeof(fail->name), "loss");
    snprintf(fail->form, sizeof(fail->form), "%s", form);
    return message;
}

static void say(struct story *story, uint32_t peer, const char *form)
{
    struct up_message message = report(form);
    story_say(story, peer, &message);
}

static void expect_waits(struct story *story)
{
    for (uint32_t peer = 1; peer <= 3; peer++)
        assert_int_equal(story->last[peer].kind, DOWN_QUERY);
}

static void expect_halt(struct story *story, const char *text)
{
    for (uint32_t peer = 1; peer <= 3; peer++) {
        const struct down_message *last = &story->last[peer];
        assert_int_equal(last->kind, DOWN_HALT);
        assert_int_equal(last->u.halt.kind, HALT_COLLECTIVE);
        assert_int_equal(last->u.halt.step, 0);
        assert_false(last->u.halt.has_rank);
        assert_string_equal(last->u.halt.text, text);
    }
}

// All ranks are asked, and the lower rank comes first in either order.
static void either_order(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say(story, 1, TWO);
    expect_waits(story);
    const struct down_query *query = &story->last[3].u.query;
    assert_true(query->form);
    assert_int_equal(query->key_count, 1);
    assert_int_equal(query->keys[0].kind, AWAIT_COLLECTIVE);
    assert_int_equal(query->keys[0].space, 77);
    assert_int_equal(query->keys[0].number, 0);
    say(story, 3, FOUR);
    expect_halt(story, both);
}

static void the_other_order(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say(story, 3, FOUR);
    expect_waits(story);
    say(story, 1, TWO);
    expect_halt(story, both);
}

// A rank that calls it as the reporter does has nothing to add, nor has the reporter itself.
static void a_third_rank(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say(story, 1, TWO);
    say(story, 2, TWO);
    say(story, 1, FOUR);
    expect_waits(story);
    say(story, 3, FOUR);
    expect_halt(story, both);
}

// No rank answers the coordinator's question, so only one side is known.
static void the_deadline(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say(story, 1, TWO);
    story_sleep(story, LOCKSTEP_SIDES_MS - 1);
    expect_waits(story);
    story_sleep(story, 1);
    expect_halt(story, one);
    story_forget(story);
    say(story, 3, FOUR); // Too late.
    assert_int_equal(story->last[1].kind, DOWN_HALT);
    expect_halt(story, one);
    story_sleep(story, 10 * LOCKSTEP_SIDES_MS);
    expect_halt(story, one);
}

// A report without a form is told at once, as reports of other kinds are.
static void no_form(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say(story, 1, "");
    expect_halt(story, one);
}

// The first known failure is the verdict: ranks end because of it.
static void a_rank_is_lost_meanwhile(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say(story, 1, TWO);
    story_close(story, 2, "reset");
    for (uint32_t peer = 1; peer <= 3; peer += 2)
        assert_string_equal(story->last[peer].u.halt.text, one);
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
    story_sleep(story, 10 * LOCKSTEP_SIDES_MS);
    assert_string_equal(story->last[1].u.halt.text, one);
}

// Another collective, and another use of this one, are not the other side.
static void not_the_same(void **state)
{
    struct story *story = *state;
    struct up_message other = report(FOUR);
    story_run(story, 3);
    say(story, 1, TWO);
    other.u.fail.space = 78;
    story_say(story, 3, &other);
    other.u.fail.space = 77;
    other.u.fail.use = 1;
    story_say(story, 3, &other);
    expect_waits(story);
    say(story, 3, FOUR);
    expect_halt(story, both);
}

// ---- Overdue collectives -----------------------------------------------------------------------

// A heartbeat that names use `use` of the collective, and another one that is the same everywhere.
static void is_overdue(struct story *story, uint32_t peer, uint64_t use, uint64_t signature)
{
    struct up_message message = {.kind = UP_HEARTBEAT};
    struct up_heartbeat *beat = &message.u.heartbeat;
    beat->place.module = LOCKSTEP_MAX_MODULES;
    beat->overdue_count = 2;
    beat->overdue[0] = (struct overdue){.space = 5, .use = 3, .signature = 1};
    beat->overdue[1] = (struct overdue){.space = 77, .use = use, .signature = signature};
    story_say(story, peer, &message);
}

static void expect_not_asked(struct story *story)
{
    for (uint32_t peer = 1; peer <= 3; peer++) {
        assert_int_not_equal(story->last[peer].kind, DOWN_QUERY);
        assert_int_not_equal(story->last[peer].kind, DOWN_HALT);
    }
}

// No rank sees the difference: the signatures in heartbeats show it.
static void signatures_of_one_use_differ(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    is_overdue(story, 1, 0, 10);
    is_overdue(story, 2, 0, 10);
    expect_not_asked(story);
    is_overdue(story, 3, 0, 11);
    expect_waits(story);
    const struct down_query *query = &story->last[2].u.query;
    assert_true(query->form);
    assert_int_equal(query->keys[0].kind, AWAIT_COLLECTIVE);
    assert_int_equal(query->keys[0].space, 77);
    assert_int_equal(query->keys[0].number, 0);
    say(story, 1, TWO);
    say(story, 2, TWO);
    say(story, 3, FOUR);
    expect_halt(story, both);
}

// One use may be alike on all ranks, and so are different uses.
static void slow_is_not_different(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    is_overdue(story, 1, 0, 10);
    is_overdue(story, 2, 0, 10);
    is_overdue(story, 3, 1, 11);
    story_sleep(story, 1000);
    expect_not_asked(story);
}

// Text of a worker is cleaned and bounded on both sides.
static void hostile_texts(void **state)
{
    struct story *story = *state;
    struct up_message message = report(TWO);
    struct up_fail *fail = &message.u.fail;
    story->quiet = true;
    story_run(story, 3);
    memset(fail->name, 0x1b, sizeof(fail->name));
    memset(fail->form, 0xe2, sizeof(fail->form));
    memset(fail->text, 0x07, sizeof(fail->text));
    story_say(story, 1, &message);
    memset(fail->form, '\n', sizeof(fail->form));
    story_say(story, 3, &message); // Clean, both are the same.
    expect_waits(story);
    memset(fail->form, 'x', sizeof(fail->form));
    story_say(story, 3, &message);
    const struct down_halt *halt = &story->last[2].u.halt;
    assert_int_equal(story->last[2].kind, DOWN_HALT);
    assert_non_null(strstr(halt->text, "rank 2 (host h3) calls xxx"));
    for (const char *at = halt->text; *at != '\0'; at++)
        assert_in_range(*at, 0x20, 0x7e);
    assert_true(strlen(halt->text) < LOCKSTEP_TEXT_BYTES);
}

// A second generation knows nothing of the first.
static void a_new_generation(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say(story, 1, TWO);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_leave(story, peer, 0);
    story_sleep(story, LOCKSTEP_SIDES_MS);
    story_forget(story);
    for (uint32_t peer = 4; peer <= 6; peer++) {
        struct up_hello hello = story_hello("j", 3, "h");
        story_say_hello(story, peer, &hello);
    }
    story_sleep(story, 10 * LOCKSTEP_SIDES_MS);
    for (uint32_t peer = 4; peer <= 6; peer++)
        assert_int_not_equal(story->last[peer].kind, DOWN_HALT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(either_order, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(the_other_order, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(a_third_rank, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(the_deadline, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(no_form, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(a_rank_is_lost_meanwhile, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(not_the_same, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(signatures_of_one_use_differ, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(slow_is_not_different, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(hostile_texts, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(a_new_generation, story_setup, story_teardown),
    };
    return cmocka_run_group_tests_name("coordinator sides", tests, NULL, NULL);
}
