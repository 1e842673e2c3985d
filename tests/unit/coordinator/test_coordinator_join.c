// SPDX-License-Identifier: Apache-2.0
//
// Joining: when a world forms, the rank of each worker, and the answers to workers that are turned
// away.

#include "coordinator/core.h"
#include "coordinator/view.h"
#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_two_workers_form_a_world(void **state)
{
    struct story *story = *state;
    story_join(story, 1, "a");
    story_join(story, 2, "b");
    story_expect(story, "1 > hello job j world 2 host a\n"
                        "1 < welcome\n"
                        "2 > hello job j world 2 host b\n"
                        "2 < welcome\n"
                        "1 < generation 1: rank 0 of 2, local 0 of 1, peers 1@w2\n"
                        "2 < generation 1: rank 1 of 2, local 0 of 1, peers 0@w1\n");
    assert_int_equal(story_job(story, 0).state, JOB_STARTING);
    assert_int_equal(coordinator_deadline(story->core), UINT64_MAX);
}

static void test_a_world_of_one_forms_at_once(void **state)
{
    struct story *story = *state;
    const struct up_hello hello = story_hello("solo", 1, "a");
    story_say_hello(story, 1, &hello);
    story_expect(story, "1 > hello job solo world 1 host a\n"
                        "1 < welcome\n"
                        "1 < generation 1: rank 0 of 1, local 0 of 1, peers\n");
}

static void test_welcome_and_generation_carry_what_was_configured(void **state)
{
    struct story *story = *state;
    story_join(story, 1, "a");
    assert_int_equal(story->last[1].u.welcome.version, LOCKSTEP_PROTOCOL_VERSION);
    assert_int_equal(story->last[1].u.welcome.heartbeat_ms, LOCKSTEP_HEARTBEAT_MS);
    story_join(story, 2, "b");
    assert_int_equal(story->last[2].generation.incarnation, 0xc0);
    assert_int_equal(story->last[2].u.generation_start.chunk_bytes, CORE_CHUNK_BYTES_OF_TWO);
    assert_memory_equal(story->secret[1], story->secret[2], LOCKSTEP_SECRET_BYTES);
}

static void test_chunks_are_shorter_between_more_than_two(void **state)
{
    struct story *story = *state;
    for (uint32_t peer = 1; peer <= 3; peer++) {
        const struct up_hello hello = story_hello("j", 3, "a");
        story_say_hello(story, peer, &hello);
    }
    assert_int_equal(story->last[3].u.generation_start.world_size, 3);
    assert_int_equal(story->last[3].u.generation_start.chunk_bytes, CORE_CHUNK_BYTES);
}

static void test_two_jobs_do_not_see_each_other(void **state)
{
    struct story *story = *state;
    const struct up_hello other = story_hello("k", 2, "b");
    story_join(story, 1, "a");
    story_say_hello(story, 2, &other);
    story_expect(story, "1 > hello job j world 2 host a\n"
                        "1 < welcome\n"
                        "2 > hello job k world 2 host b\n"
                        "2 < welcome\n");
    assert_int_equal(coordinator_job_count(story->core), 2);
}

static struct up_hello elastic(const char *host)
{
    struct up_hello hello = story_hello("j", 2, host);
    hello.world_max = 4;
    hello.window_ms = 500;
    return hello;
}

static void test_the_window_starts_again_with_each_worker(void **state)
{
    struct story *story = *state;
    const struct up_hello hello = elastic("a");
    story_say_hello(story, 1, &hello);
    story_sleep(story, 2000);
    story_say_hello(story, 2, &hello);
    story_sleep(story, 499);
    story_say_hello(story, 3, &hello);
    story_sleep(story, 499);
    story_expect(story, "1 > hello job j world 2..4 host a\n"
                        "1 < welcome\n"
                        "2 > hello job j world 2..4 host a\n"
                        "2 < welcome\n"
                        "3 > hello job j world 2..4 host a\n"
                        "3 < welcome\n");
    story_sleep(story, 1);
    story_expect(story, "-- 2999 ms\n"
                        "1 < generation 1: rank 0 of 3, local 0 of 3, peers 1@w2 2@w3\n"
                        "2 < generation 1: rank 1 of 3, local 1 of 3, peers 0@w1 2@w3\n"
                        "3 < generation 1: rank 2 of 3, local 2 of 3, peers 0@w1 1@w2\n");
}

// Condition: a window is longer than the open timeout. Decision: the world forms when the timeout
// of its first worker passes.
static void test_a_timeout_ends_the_window(void **state)
{
    struct story *story = *state;
    struct up_hello hello = elastic("a");
    hello.window_ms = 5000;
    hello.open_timeout_ms = 3000;
    story_say_hello(story, 1, &hello);
    story_sleep(story, 1000);
    story_say_hello(story, 2, &hello);
    story_sleep(story, 1999);
    assert_int_equal(story_job(story, 0).state, JOB_GATHERING);
    story_forget(story);
    story_sleep(story, 1);
    story_expect(story, "-- 3000 ms\n"
                        "1 < generation 1: rank 0 of 2, local 0 of 2, peers 1@w2\n"
                        "2 < generation 1: rank 1 of 2, local 1 of 2, peers 0@w1\n");
}

static void test_the_maximum_ends_the_window(void **state)
{
    struct story *story = *state;
    const struct up_hello hello = elastic("a");
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_say_hello(story, peer, &hello);
    assert_int_equal(story_job(story, 0).state, JOB_GATHERING);
    story_say_hello(story, 4, &hello);
    assert_int_equal(story_job(story, 0).state, JOB_STARTING);
    assert_int_equal(story_job(story, 0).world_size, 4);
}

static void test_two_worlds_due_at_once_get_two_secrets(void **state)
{
    struct story *story = *state;
    struct up_hello hello = elastic("a");
    for (uint32_t peer = 1; peer <= 4; peer++) {
        snprintf(hello.job, sizeof(hello.job), "%s", peer <= 2 ? "j" : "k");
        story_say_hello(story, peer, &hello);
    }
    story_sleep(story, 500);
    assert_int_equal(story_job(story, 0).state, JOB_STARTING);
    assert_int_equal(story_job(story, 1).state, JOB_STARTING);
    assert_memory_equal(story->secret[1], story->secret[2], LOCKSTEP_SECRET_BYTES);
    assert_memory_not_equal(story->secret[1], story->secret[3], LOCKSTEP_SECRET_BYTES);
}

static void test_a_world_that_does_not_form_says_who_is_missing(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 4, "a");
    hello.has_rank_hint = true;
    for (uint32_t peer = 1; peer <= 3; peer++) {
        hello.rank_hint = peer == 3 ? 3 : peer - 1;
        story_say_hello(story, peer, &hello);
    }
    story_forget(story);
    story_sleep(story, 10000);
    story_expect(story,
                 "-- 10000 ms\n"
                 "3 < refused (timeout): 3 of 4 workers joined job 'j' in 10.0 s; missing rank "
                 "hints: 2; present: a (hint 0), a (hint 1), a (hint 3); start the missing workers "
                 "in time, or raise the open timeout\n"
                 "3 closed\n"
                 "2 < refused (timeout): 3 of 4 workers joined job 'j' in 10.0 s; missing rank "
                 "hints: 2; present: a (hint 0), a (hint 1), a (hint 3); start the missing workers "
                 "in time, or raise the open timeout\n"
                 "2 closed\n"
                 "1 < refused (timeout): 3 of 4 workers joined job 'j' in 10.0 s; missing rank "
                 "hints: 2; present: a (hint 0), a (hint 1), a (hint 3); start the missing workers "
                 "in time, or raise the open timeout\n"
                 "1 closed\n");
    assert_int_equal(coordinator_deadline(story->core), UINT64_MAX);
}

static void test_each_worker_waits_as_long_as_it_wants_to(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 3, "a");
    hello.open_timeout_ms = 2500;
    story_say_hello(story, 1, &hello);
    hello.open_timeout_ms = 0; // The default.
    story_say_hello(story, 2, &hello);
    story_forget(story);
    story_sleep(story, 3000);
    story_expect(story,
                 "-- 2500 ms\n"
                 "1 < refused (timeout): 2 of 3 workers joined job 'j' in 2.5 s; present: a, "
                 "a; start the missing workers in time, or raise the open timeout\n"
                 "1 closed\n");
    assert_int_equal(coordinator_deadline(story->core), 1000 + LOCKSTEP_OPEN_TIMEOUT_MS);
}

// A worker that does not agree with those that wait may be a stranger, so these wait on. Then they
// hear of it.
static void test_who_waits_hears_of_a_worker_that_was_refused(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 2, "a");
    story_say_hello(story, 1, &hello);
    hello = story_hello("j", 3, "b");
    story_say_hello(story, 2, &hello);
    story_expect_piece(story, "2 < refused (invalid): job 'j' waits for 2 workers (said a), the "
                              "worker on b wants 3 workers: give every worker the same world "
                              "size\n");
    story_forget(story);
    story_sleep(story, 10000);
    story_expect_piece(story, "1 < refused (timeout): 1 of 2 workers joined job 'j' in 10.0 s; a "
                              "worker was refused: job 'j' waits for 2 workers (said a), the "
                              "worker on b wants 3 workers: give every worker the same world "
                              "size; present: a; start the missing workers in time, or raise the "
                              "open timeout\n");
    // The next world knows nothing of it.
    story_say_hello(story, 3, &hello);
    story_forget(story);
    story_sleep(story, 10000);
    story_expect_piece(story, "3 < refused (timeout): 1 of 3 workers joined job 'j' in 10.0 s; "
                              "present: b; start");
}

static void test_a_window_that_differs_is_named(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 2, "a");
    hello.world_max = 3;
    hello.window_ms = 70;
    story_say_hello(story, 1, &hello);
    hello.window_ms = 80;
    story_say_hello(story, 2, &hello);
    story_expect_piece(story, "with a window of 80 ms: give every worker the same "
                              "LOCKSTEP_WORLD_WINDOW_MS\n");
}

// All workers of a world that did not form get the same error, whenever their timeouts end. A
// worker that joins later begins another world.
static void test_all_of_a_world_hear_the_same(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 4, "a");
    hello.has_rank_hint = true;
    for (uint32_t peer = 1; peer <= 3; peer++) {
        hello.rank_hint = peer - 1;
        story_say_hello(story, peer, &hello);
        story_sleep(story, 100);
    }
    story_sleep(story, 9750);
    story_expect_piece(story, "1 < refused (timeout): 3 of 4 workers joined job 'j' in 10.0 s; "
                              "missing rank hints: 3; present: a (hint 0), a (hint 1), a (hint 2)");
    story_sleep(story, 100);
    story_expect_piece(story, "2 < refused (timeout): 3 of 4 workers joined job 'j' in 10.0 s; "
                              "missing rank hints: 3; present: a (hint 0), a (hint 1), a (hint 2)");
    hello.rank_hint = 3; // It never saw the first two.
    story_say_hello(story, 4, &hello);
    story_sleep(story, 100);
    story_expect_piece(story, "3 < refused (timeout): at most 3 of 4 workers joined job 'j' in "
                              "10.0 s, and 2 waited to the end;");
    story_sleep(story, 10000);
    story_expect_piece(story, "4 < refused (timeout): at most 3 of 4 workers joined job 'j' in "
                              "10.0 s, and 2 waited to the end;");
}

static void test_a_running_job_of_one_is_full(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 1, "a");
    story_say_hello(story, 1, &hello);
    story_say_hello(story, 2, &hello);
    story_expect_piece(story, "2 < refused (full): job 'j' is running with 1 worker: wait");
}

// A worker that opens again while some have not closed is admitted later. A worker that comes to a
// job that goes on does not belong to it.
static void test_a_world_that_is_ending_is_waited_for(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 2, "a");
    story_say_hello(story, 1, &hello);
    story_say_hello(story, 2, &hello);
    story_say_hello(story, 3, &hello);
    story_expect_piece(story, "3 < refused (full): job 'j' is running with 2 workers: wait");
    story_leave(story, 1, 0);
    story_say_hello(story, 4, &hello);
    story_expect_piece(story, "4 < refused (draining): job 'j' has not ended: 1 of its 2 workers "
                              "have closed their sessions and the others have not; it can be "
                              "joined when all have");
    story_leave(story, 2, 0);
    story_say_hello(story, 5, &hello);
    story_expect_piece(story, "5 < welcome");
}

static void test_a_worker_that_goes_before_the_world_forms_is_forgotten(void **state)
{
    struct story *story = *state;
    story_join(story, 1, "a");
    story_close(story, 1, "reset");
    story_join(story, 2, "b");
    story_leave(story, 2, 0);
    story_join(story, 3, "c");
    story_join(story, 4, "d");
    story_expect(story, "1 > hello job j world 2 host a\n"
                        "1 < welcome\n"
                        "1 broke\n"
                        "2 > hello job j world 2 host b\n"
                        "2 < welcome\n"
                        "2 > leave settled 0\n"
                        "2 closed\n"
                        "3 > hello job j world 2 host c\n"
                        "3 < welcome\n"
                        "4 > hello job j world 2 host d\n"
                        "4 < welcome\n"
                        "3 < generation 1: rank 0 of 2, local 0 of 1, peers 1@w4\n"
                        "4 < generation 1: rank 1 of 2, local 0 of 1, peers 0@w3\n");
}

// ---- Ranks -----------------------------------------------------------------------------------

struct placing {
    const char *host;
    int hint; // -1: none.
    uint32_t rank;
    uint32_t local_rank;
    uint32_t local_size;
};

static void place(struct story *story, uint32_t min, const struct placing *placing, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct up_hello hello = story_hello("j", min, placing[i].host);
        hello.world_max = min == count ? min : count + 4;
        hello.window_ms = 10;
        hello.has_rank_hint = placing[i].hint >= 0;
        hello.rank_hint = (uint32_t)(placing[i].hint >= 0 ? placing[i].hint : 0);
        story_say_hello(story, i + 1, &hello);
    }
    story_sleep(story, 10);
    for (uint32_t i = 0; i < count; i++) {
        const struct down_generation *start = &story->last[i + 1].u.generation_start;
        assert_int_equal(story->last[i + 1].kind, DOWN_GENERATION);
        assert_int_equal(start->rank, placing[i].rank);
        assert_int_equal(start->world_size, count);
        assert_int_equal(start->local_rank, placing[i].local_rank);
        assert_int_equal(start->local_size, placing[i].local_size);
    }
}

static void test_workers_of_a_host_are_neighbours(void **state)
{
    static const struct placing placing[] = {
        {"a", -1, 0, 0, 2}, {"b", -1, 2, 0, 2}, {"a", -1, 1, 1, 2},
        {"c", -1, 4, 0, 1}, {"b", -1, 3, 1, 2},
    };
    place(*state, 5, placing, 5);
}

static void test_hints_are_ranks(void **state)
{
    static const struct placing placing[] = {
        {"a", 3, 3, 1, 2}, {"b", 1, 1, 0, 2}, {"a", 0, 0, 0, 2}, {"b", 2, 2, 1, 2}};
    place(*state, 4, placing, 4);
}

static void test_workers_without_hints_fill_the_gaps_by_host(void **state)
{
    static const struct placing placing[] = {
        {"a", -1, 0, 0, 2}, {"b", -1, 4, 1, 2}, {"c", 1, 1, 0, 1},
        {"a", -1, 2, 1, 2}, {"b", 3, 3, 0, 2},
    };
    place(*state, 5, placing, 5);
}

static void test_hints_beyond_the_world_that_formed_are_ignored(void **state)
{
    static const struct placing placing[] = {{"a", 5, 0, 0, 1}, {"b", 0, 1, 0, 1}};
    place(*state, 1, placing, 2);
}

static void test_a_thousand_workers_get_a_thousand_ranks(void **state)
{
    struct story *story = *state;
    bool seen[LOCKSTEP_MAX_WORLD] = {false};
    story->quiet = true;
    for (uint32_t peer = 1; peer <= LOCKSTEP_MAX_WORLD; peer++) {
        char host[16];
        snprintf(host, sizeof(host), "h%" PRIu32, peer % 100);
        const struct up_hello hello = story_hello("j", LOCKSTEP_MAX_WORLD, host);
        story_say_hello(story, peer, &hello);
    }
    for (uint32_t peer = 1; peer <= LOCKSTEP_MAX_WORLD; peer++) {
        assert_int_equal(story->received[peer], 2);
        assert_false(seen[story->rank[peer]]);
        seen[story->rank[peer]] = true;
    }
    assert_int_equal(story_job(story, 0).joined, LOCKSTEP_MAX_WORLD);
}

// ---- Refusals --------------------------------------------------------------------------------

static void join_first(struct story *story)
{
    struct up_hello hello = story_hello("j", 2, "a");
    hello.has_rank_hint = true;
    story_say_hello(story, 1, &hello);
    story_forget(story);
}

struct wrong_hello {
    const char *name;
    void (*spoil)(struct up_message *message);
    const char *refused;
};

static void spoil_version(struct up_message *message)
{
    message->u.hello.version = 99;
}
static void spoil_name(struct up_message *message)
{
    snprintf(message->u.hello.job, LOCKSTEP_JOB_NAME_BYTES, "a b");
}
static void spoil_dots(struct up_message *message)
{
    strcpy(message->u.hello.job, "..");
}
static void spoil_empty_name(struct up_message *message)
{
    message->u.hello.job[0] = '\0';
}
static void spoil_zero_world(struct up_message *message)
{
    message->u.hello.world_min = 0;
}
static void spoil_order(struct up_message *message)
{
    message->u.hello.world_min = 3;
}
static void spoil_large_world(struct up_message *message)
{
    message->u.hello.world_max = LOCKSTEP_MAX_WORLD + 1;
}
static void spoil_hint(struct up_message *message)
{
    message->u.hello.has_rank_hint = true;
    message->u.hello.rank_hint = 2;
}
static void spoil_taken_hint(struct up_message *message)
{
    message->u.hello.has_rank_hint = true;
    message->u.hello.rank_hint = 0;
}
static void spoil_world(struct up_message *message)
{
    message->u.hello.world_max = 3;
    message->u.hello.window_ms = 70;
}
static void spoil_address(struct up_message *message)
{
    message->u.hello.address[0] = '\0';
}
static void spoil_uuid(struct up_message *message)
{
    message->u.hello.uuid = (struct uuid){.bytes = {1}};
}
static void spoil_policy(struct up_message *message)
{
    message->u.hello.on_failure = (enum failure_policy)2;
}
static void spoil_kind(struct up_message *message)
{
    message->kind = UP_START;
}

static void test_what_is_wrong_with_a_hello_is_said(void **state)
{
    static const struct wrong_hello wrong[] = {
        {"version", spoil_version,
         "2 < refused (version): the worker on b speaks protocol version 99, the coordinator "
         "version 15: install the same Lockstep on both\n"},
        {"name", spoil_name,
         "2 < refused (invalid): 'a b' is no job name: use 1 to 63 letters, digits, '-', '_' and "
         "'.', not '.' or '..' alone\n"},
        {"a name of dots", spoil_dots,
         "2 < refused (invalid): '..' is no job name: use 1 to 63 letters, digits, '-', '_' and "
         "'.', not '.' or '..' alone\n"},
        {"empty name", spoil_empty_name,
         "2 < refused (invalid): '' is no job name: use 1 to 63 letters, digits, '-', '_' and "
         "'.', not '.' or '..' alone\n"},
        {"zero world", spoil_zero_world,
         "2 < refused (invalid): a world of 0 to 2 workers is impossible: the minimum is at least "
         "1 and the maximum not below it\n"},
        {"min above max", spoil_order,
         "2 < refused (invalid): a world of 3 to 2 workers is impossible: the minimum is at least "
         "1 and the maximum not below it\n"},
        {"large world", spoil_large_world,
         "2 < refused (invalid): a world of 1025 workers is above the limit of 1024\n"},
        {"hint", spoil_hint,
         "2 < refused (invalid): rank hint 2 of the worker on b is not below the world size 2: "
         "hints count from 0\n"},
        {"taken hint", spoil_taken_hint,
         "2 < refused (invalid): rank hint 0 is taken: the worker on a (pid 101) has it, the "
         "worker on b (pid 102) wants it too\n"},
        {"another world", spoil_world,
         "2 < refused (invalid): job 'j' waits for 2 workers (said a), the worker on b wants 2 to "
         "3 workers with a window of 70 ms: give every worker the same world size\n"},
        {"no address", spoil_address,
         "2 < refused (invalid): the worker on b named no address for its data plane\n"},
        {"joined already", spoil_uuid,
         "2 < refused (invalid): this worker (on a, pid 101) has joined job 'j' already\n"},
        {"policy", spoil_policy, "2 < refused (invalid): on_failure is 2, which is unknown\n"},
        {"no hello", spoil_kind,
         "2 < refused (invalid): the first message of a stream must be a hello, this one was: "
         "start\n"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        static struct story story;
        struct up_message message = {.kind = UP_HELLO};
        char expected[1024];
        story_begin(&story);
        join_first(&story);
        message.u.hello = story_hello("j", 2, "b");
        snprintf(message.u.hello.address, LOCKSTEP_ADDRESS_BYTES, "w2");
        message.u.hello.pid = 102;
        wrong[i].spoil(&message);
        story_say(&story, 2, &message);
        memmove(story.trace, strchr(story.trace, '\n') + 1, story.used);
        snprintf(expected, sizeof(expected), "%s2 closed\n", wrong[i].refused);
        story_expect(&story, expected);
        assert_int_equal(story_job(&story, 0).joined, 1);
        story_end(&story);
    }
    (void)state;
}

static void test_an_emptied_job_takes_another_world(void **state)
{
    struct story *story = *state;
    const struct up_hello hello = story_hello("j", 1, "b");
    story_join(story, 1, "a");
    story_close(story, 1, NULL);
    story_say_hello(story, 2, &hello);
    story_expect_piece(story, "2 < generation 1: rank 0 of 1");
}

static void test_texts_from_outside_are_cleaned(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 1, "a");
    snprintf(hello.host, sizeof(hello.host), "x\n\xff\xe2\x82\xac\xe2\x82");
    hello.version = LOCKSTEP_PROTOCOL_VERSION + 1;
    story_say_hello(story, 1, &hello);
    story_expect_piece(story, "refused (version): the worker on x??\xe2\x82\xac?? speaks");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_two_workers_form_a_world),
        TEST(test_a_world_of_one_forms_at_once),
        TEST(test_welcome_and_generation_carry_what_was_configured),
        TEST(test_chunks_are_shorter_between_more_than_two),
        TEST(test_two_jobs_do_not_see_each_other),
        TEST(test_the_window_starts_again_with_each_worker),
        TEST(test_a_timeout_ends_the_window),
        TEST(test_the_maximum_ends_the_window),
        TEST(test_two_worlds_due_at_once_get_two_secrets),
        TEST(test_a_world_that_does_not_form_says_who_is_missing),
        TEST(test_each_worker_waits_as_long_as_it_wants_to),
        TEST(test_who_waits_hears_of_a_worker_that_was_refused),
        TEST(test_a_window_that_differs_is_named),
        TEST(test_all_of_a_world_hear_the_same),
        TEST(test_a_running_job_of_one_is_full),
        TEST(test_a_world_that_is_ending_is_waited_for),
        TEST(test_a_worker_that_goes_before_the_world_forms_is_forgotten),
        TEST(test_workers_of_a_host_are_neighbours),
        TEST(test_hints_are_ranks),
        TEST(test_workers_without_hints_fill_the_gaps_by_host),
        TEST(test_hints_beyond_the_world_that_formed_are_ignored),
        TEST(test_a_thousand_workers_get_a_thousand_ranks),
        TEST(test_what_is_wrong_with_a_hello_is_said),
        TEST(test_an_emptied_job_takes_another_world),
        TEST(test_texts_from_outside_are_cleaned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
