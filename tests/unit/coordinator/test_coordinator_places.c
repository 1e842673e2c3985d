// SPDX-License-Identifier: Apache-2.0
//
// Where workers are, in the coordinator: names of modules, processes of mates, reports of blocked
// ranks, places in heartbeats, and inspections with their answers.

#include "coordinator/view.h"
#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// ---- Names of modules --------------------------------------------------------------------------

static void name_modules(struct story *story, uint32_t peer, uint32_t first, uint32_t count)
{
    struct up_message message = {.kind = UP_MODULES};
    struct up_modules *modules = &message.u.modules;
    modules->total = LOCKSTEP_MAX_MODULES;
    modules->first = first;
    modules->count = count;
    for (uint32_t i = 0; i < count; i++)
        snprintf(modules->names[i], sizeof(modules->names[i]), "m%" PRIu32 "\n", first + i);
    story_say(story, peer, &message);
}

static void test_rank_0_names_modules_part_by_part(void **state)
{
    struct story *story = *state;
    struct module_view view;
    story_run(story, 2);
    assert_false(coordinator_module_view(story->core, 0, 0, &view));
    name_modules(story, 1, 0, 16);
    name_modules(story, 1, 16, 2);
    assert_true(coordinator_module_view(story->core, 0, 17, &view));
    assert_string_equal(view.name, "m17?"); // A name with a newline is shown without.
    assert_false(coordinator_module_view(story->core, 0, 18, &view));
    assert_false(coordinator_module_view(story->core, 1, 0, &view));
    // The next round of lockstep_start says all of it again.
    name_modules(story, 1, 0, 1);
    assert_true(coordinator_module_view(story->core, 0, 0, &view));
    assert_false(coordinator_module_view(story->core, 0, 1, &view));
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

static void test_names_out_of_order_are_impossible(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    name_modules(story, 1, 16, 1);
    story_expect_piece(story, "named module 16 after 0 others");
}

static void expect_names(struct story *story, uint32_t count)
{
    struct module_view view;
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    assert_false(coordinator_module_view(story->core, 0, count, &view));
    for (uint32_t m = 0; m < count; m++) {
        char name[16];
        snprintf(name, sizeof(name), "m%" PRIu32 "?", m);
        assert_true(coordinator_module_view(story->core, 0, m, &view));
        assert_string_equal(view.name, name);
    }
}

// Condition: ranks come back to a new coordinator, rank 0 in the middle of another one's names.
static void test_any_rank_names_modules_that_have_no_names(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    name_modules(story, 2, 0, 16);
    expect_names(story, 16);
    name_modules(story, 1, 0, 8);
    expect_names(story, 8);
    name_modules(story, 2, 16, 2); // Rank 0 has not come so far.
    expect_names(story, 8);
    name_modules(story, 1, 8, 8);
    name_modules(story, 2, 0, 16);
    expect_names(story, 16);
    name_modules(story, 1, 16, 2);
    expect_names(story, 18);
}

static void test_other_ranks_change_no_names(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_MODULES, .u.modules = {.total = 1, .count = 1}};
    story_run(story, 2);
    name_modules(story, 1, 0, 2);
    snprintf(message.u.modules.names[0], sizeof(message.u.modules.names[0]), "other");
    story_say(story, 2, &message);
    expect_names(story, 2);
}

static void test_too_many_names_are_impossible(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    name_modules(story, 2, LOCKSTEP_MAX_MODULES, 1);
    story_expect_piece(story, "named 1 modules after 64 others");
}

static void test_names_end_with_their_generation(void **state)
{
    struct story *story = *state;
    struct module_view view;
    story_run(story, 2);
    name_modules(story, 1, 0, 1);
    story_leave(story, 1, 0);
    story_leave(story, 2, 0);
    assert_true(coordinator_module_view(story->core, 0, 0, &view));
    story_join(story, 3, "a");
    assert_false(coordinator_module_view(story->core, 0, 0, &view));
}

// ---- Mates, places, blocked ranks ---------------------------------------------------------------

static void test_a_worker_is_told_the_processes_of_its_mates(void **state)
{
    struct story *story = *state;
    for (uint32_t peer = 1; peer <= 3; peer++) {
        struct up_hello hello = story_hello("j", 3, peer == 2 ? "b" : "a");
        hello.started = 7 * peer;
        story_say_hello(story, peer, &hello);
    }
    const struct locality *locality = &story->last[1].u.generation_start.locality;
    assert_int_equal(locality->mate_count, 2); // Streams 1 and 3.
    assert_int_equal(locality->mate_pids[0], 101); // As every story says.
    assert_int_equal(locality->mate_started[0], 7);
    assert_int_equal(locality->mate_pids[1], 103);
    assert_int_equal(locality->mate_started[1], 21);
    assert_int_equal(story->last[2].u.generation_start.locality.mate_pids[0], 102);
}

// Pods of one node are hosts of their own. A worker that does not know its cores shares none.
static void test_a_worker_is_told_how_many_share_its_cores(void **state)
{
    static const struct {
        const char *host;
        uint64_t cores;
        uint32_t told;
    } cases[] = {{"a", 0xc0, 3}, {"b", 0xc0, 3}, {"b", 0xc1, 1}, {"c", 0xc0, 3}, {"c", 0, 0}};
    struct story *story = *state;
    for (uint32_t i = 0; i < 5; i++) {
        struct up_hello hello = story_hello("j", 5, cases[i].host);
        hello.cores = cases[i].cores;
        story_say_hello(story, i + 1, &hello);
    }
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(story->last[i + 1].u.generation_start.core_ranks, cases[i].told);
}

static void test_a_view_shows_the_place_of_the_last_heartbeat(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_HEARTBEAT};
    story_run(story, 2);
    message.u.heartbeat.place.position = 3;
    message.u.heartbeat.place.count = 7;
    message.u.heartbeat.place.api = API_CALL_END;
    message.u.heartbeat.flags = PLACE_TRACED;
    story_say(story, 2, &message);
    const struct worker_view worker = story_worker(story, 0, 1);
    assert_memory_equal(&worker.place, &message.u.heartbeat.place, sizeof(worker.place));
    assert_int_equal(worker.flags, PLACE_TRACED);
    assert_int_equal(story_worker(story, 0, 0).place.api, API_NONE);
}

static void test_a_view_shows_the_device_without_what_cannot_be_shown(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 2, "a");
    snprintf(hello.device, sizeof(hello.device), "c\npu");
    hello.has_gpu = true;
    hello.gpu =
        (struct gpu){{{1, 2}}, .capability = 90, .driver_version = 13000, .nccl_version = 22105};
    story_say_hello(story, 1, &hello);
    const struct worker_view worker = story_worker(story, 0, 0);
    assert_string_equal(worker.device, "c?pu");
    assert_true(worker.has_gpu);
    assert_memory_equal(&worker.gpu.uuid, &hello.gpu.uuid, sizeof(worker.gpu.uuid));
    assert_int_equal(worker.gpu.capability, 90);
    assert_int_equal(worker.gpu.driver_version, 13000);
    assert_int_equal(worker.gpu.nccl_version, 22105);
}

static void test_a_blocked_rank_alone_changes_nothing(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_BLOCKED, .u.blocked = {.step = 1, .wait_count = 1}};
    story_run(story, 2);
    story_say(story, 1, &message);
    story_expect(story, "1 > blocked step 1 by 1 waits for 0#0\n"
                        "2 < query step 1\n");
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

// ---- Inspections -------------------------------------------------------------------------------

static void answer(struct story *story, uint32_t peer, uint64_t id, bool last)
{
    struct up_message message = {.kind = UP_ANSWER};
    message.u.answer = (struct up_answer){.id = id, .last = last, .kind = ANSWER_EVENTS};
    story_say(story, peer, &message);
}

static void test_a_rank_is_asked_where_it_is(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_ask(story, "j", 1, INSPECT_STACKS);
    story_expect(story, "ask j rank 1\n"
                        "2 < inspect 1 what 2\n");
    answer(story, 2, 1, false);
    answer(story, 2, 1, true);
    assert_int_equal(story_job(story, 0).dropped_total, 0);
    answer(story, 2, 1, true); // The question has been answered.
    answer(story, 1, 1, true); // Another one was asked.
    answer(story, 2, 0, true);
    assert_int_equal(story_job(story, 0).dropped_total, 3);
}

static void test_a_rank_is_not_asked_again_at_once(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_ask(story, "j", 1, INSPECT_STACKS);
    story_forget(story);
    story_sleep(story, LOCKSTEP_INSPECT_PAUSE_MS - 1);
    story_ask(story, "j", 1, INSPECT_STACKS);
    story_ask(story, "j", 0, INSPECT_STACKS); // Another one is.
    story_sleep(story, 1);
    story_ask(story, "j", 1, INSPECT_STACKS);
    story_expect(story, "ask j rank 1\n"
                        "ask j rank 0\n"
                        "1 < inspect 2 what 2\n"
                        "ask j rank 1\n"
                        "2 < inspect 3 what 2\n");
    answer(story, 2, 1, true); // Late: of the first question.
    assert_int_equal(story_job(story, 0).dropped_total, 1);
}

// Condition: a rank has been asked for its events a moment ago. Decision: it is asked for its
// stacks at once, and for both if it has not answered yet.
static void test_stacks_and_events_are_asked_for_apart(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_ask(story, "j", 1, INSPECT_EVENTS);
    answer(story, 2, 1, true);
    story_ask(story, "j", 1, INSPECT_STACKS);
    story_ask(story, "j", 1, INSPECT_ALL);
    story_expect(story, "ask j rank 1\n"
                        "2 < inspect 1 what 4\n"
                        "2 > answer 1, last\n"
                        "ask j rank 1\n"
                        "2 < inspect 2 what 2\n"
                        "ask j rank 1\n");
    story_ask(story, "j", 0, INSPECT_EVENTS);
    story_ask(story, "j", 0, INSPECT_STACKS);
    story_expect(story, "ask j rank 0\n"
                        "1 < inspect 3 what 4\n"
                        "ask j rank 0\n"
                        "1 < inspect 4 what 6\n");
}

static void test_who_is_not_there_is_not_asked(void **state)
{
    struct story *story = *state;
    story_join(story, 1, "a"); // Gathers.
    story_forget(story);
    story_ask(story, "j", 0, INSPECT_STACKS);
    story_ask(story, "k", 0, INSPECT_STACKS);
    story_expect(story, "ask j rank 0\n"
                        "ask k rank 0\n");
    story_join(story, 2, "b");
    story_forget(story);
    story_ask(story, "j", 2, INSPECT_STACKS);
    story_ask(story, "j", 0, 8);
    story_expect(story, "ask j rank 2\n"
                        "ask j rank 0\n");
    story_leave(story, 2, 0);
    story_forget(story);
    story_ask(story, "j", 1, INSPECT_STACKS);
    story_expect(story, "ask j rank 1\n");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_rank_0_names_modules_part_by_part),
        TEST(test_names_out_of_order_are_impossible),
        TEST(test_any_rank_names_modules_that_have_no_names),
        TEST(test_other_ranks_change_no_names),
        TEST(test_too_many_names_are_impossible),
        TEST(test_names_end_with_their_generation),
        TEST(test_a_worker_is_told_the_processes_of_its_mates),
        TEST(test_a_worker_is_told_how_many_share_its_cores),
        TEST(test_a_view_shows_the_place_of_the_last_heartbeat),
        TEST(test_a_view_shows_the_device_without_what_cannot_be_shown),
        TEST(test_a_blocked_rank_alone_changes_nothing),
        TEST(test_a_rank_is_asked_where_it_is),
        TEST(test_a_rank_is_not_asked_again_at_once),
        TEST(test_stacks_and_events_are_asked_for_apart),
        TEST(test_who_is_not_there_is_not_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
