// SPDX-License-Identifier: Apache-2.0
//
// Answers of workers, part by part, and the questions to them.

#include "server/state/archive.h"
#include "server/state/asks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static struct archive archive;
static struct up_answer answer;
static const struct archive_job job = {.name = "job"};

static int setup(void **state)
{
    (void)state;
    archive_init(&archive);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    archive_fini(&archive);
    return 0;
}

static void put(uint32_t rank, uint64_t now_ms)
{
    struct peer_view who = {.job = "job", .rank = rank, .pid = 1000 + rank};
    archive_put(&archive, &who, &answer, now_ms);
}

static void put_threads(uint32_t rank, uint64_t id, uint32_t count, bool last, uint64_t now_ms)
{
    answer = (struct up_answer){.id = id, .last = last, .kind = ANSWER_THREADS};
    answer.u.threads.count = count;
    for (uint32_t i = 0; i < count; i++)
        answer.u.threads.threads[i].tid = (uint32_t)id;
    put(rank, now_ms);
}

static void put_frames(uint32_t rank, uint64_t id, uint32_t count, bool last, uint64_t now_ms)
{
    answer = (struct up_answer){.id = id, .last = last, .kind = ANSWER_FRAMES};
    answer.u.frames.count = count;
    put(rank, now_ms);
}

static void put_events(uint32_t rank, uint64_t id, uint32_t count, bool last, uint64_t now_ms)
{
    answer = (struct up_answer){.id = id, .last = last, .kind = ANSWER_EVENTS, .clock_ns = 77};
    answer.u.events.count = count;
    put(rank, now_ms);
}

static void answer_shows_when_it_is_whole(void **state)
{
    (void)state;
    struct archived copy;
    put_threads(3, 1, 2, false, 100);
    assert_int_equal(archive_time(&archive, &job, 3, INSPECT_STACKS), 0);
    put_frames(3, 1, LOCKSTEP_FRAMES_PART, false, 110);
    put_frames(3, 1, 5, true, 120);
    assert_int_equal(archive_time(&archive, &job, 3, INSPECT_STACKS), 120);
    assert_int_equal(archive_time(&archive, &job, 3, INSPECT_EVENTS), 0);
    assert_true(archive_copy(&archive, &job, 3, &copy));
    assert_int_equal(copy.threads.count, 2);
    assert_int_equal(copy.frames.count, LOCKSTEP_FRAMES_PART + 5);
    assert_int_equal(copy.who.pid, 1003);
    archive_copy_fini(&copy);
    assert_false(archive_copy(&archive, &job, 2, &copy));
    assert_false(archive_copy(&archive, &(struct archive_job){.name = "jo"}, 3, &copy));
}

// While the next answer comes in, the last one stays; events do not take stacks away.
static void later_answer_replaces_the_same(void **state)
{
    (void)state;
    struct archived copy;
    put_threads(3, 1, 2, true, 100);
    put_threads(3, 2, 1, false, 200);
    assert_true(archive_copy(&archive, &job, 3, &copy));
    assert_int_equal(copy.threads.count, 2);
    archive_copy_fini(&copy);
    put_events(3, 3, 4, true, 300); // The second one was never finished.
    assert_true(archive_copy(&archive, &job, 3, &copy));
    assert_int_equal(copy.threads.count, 2);
    assert_int_equal(copy.stacks_ms, 100);
    assert_int_equal(copy.events.count, 4);
    assert_int_equal(copy.events_ms, 300);
    assert_int_equal(copy.clock_ns, 77);
    archive_copy_fini(&copy);
    put_threads(3, 4, 1, true, 400);
    assert_true(archive_copy(&archive, &job, 3, &copy));
    assert_int_equal(copy.threads.count, 1);
    assert_int_equal(((struct stack_thread *)copy.threads.items)->tid, 4);
    assert_int_equal(copy.frames.count, 0); // Those of the old threads say nothing of the new ones.
    archive_copy_fini(&copy);
}

// The job runs again: what the ranks of its former generation said is not shown, nor mixed with
// what the new ones say.
static void answers_are_of_one_generation(void **state)
{
    (void)state;
    struct archive_job again = {.name = "job", .generation = {2, 5}};
    struct peer_view who = {.job = "job", .rank = 3, .generation = 2, .incarnation = 5};
    struct archived copy;
    put_threads(3, 1, 2, true, 100);
    put_events(3, 2, 4, true, 110);
    assert_false(archive_copy(&archive, &again, 3, &copy));
    assert_int_equal(archive_time(&archive, &again, 3, INSPECT_STACKS), 0);
    archive_put(&archive, &who, &answer, 200);
    assert_int_equal(archive_time(&archive, &again, 3, INSPECT_EVENTS), 200);
    assert_int_equal(archive_time(&archive, &again, 3, INSPECT_STACKS), 0);
    assert_int_equal(archive_time(&archive, &job, 3, INSPECT_STACKS), 0);
    again.generation.incarnation = 6;
    assert_false(archive_copy(&archive, &again, 3, &copy));
}

static void lists_end_at_their_bounds(void **state)
{
    (void)state;
    struct archived copy;
    put_threads(0, 1, 1, false, 1);
    for (int i = 0; i < 1000; i++)
        put_frames(0, 1, LOCKSTEP_FRAMES_PART, false, 1);
    for (int i = 0; i < 100; i++)
        put_events(0, 1, LOCKSTEP_EVENTS_PART, i == 99, 1);
    assert_true(archive_copy(&archive, &job, 0, &copy));
    assert_int_equal(copy.frames.count, ARCHIVE_FRAMES);
    assert_int_equal(copy.events.count, LOCKSTEP_TRACE_EVENTS);
    archive_copy_fini(&copy);
}

// More ranks than there is room for: those who answered last are there, and memory has its bound.
static void oldest_rank_goes_first(void **state)
{
    (void)state;
    struct archived copy;
    for (uint32_t rank = 0; rank < 100; rank++) {
        put_threads(rank, rank + 1, 1, false, rank);
        for (int i = 0; i < 64; i++)
            put_frames(rank, rank + 1, LOCKSTEP_FRAMES_PART, i == 63, rank);
        assert_true(archive.bytes <= ARCHIVE_BYTES);
    }
    assert_false(archive_copy(&archive, &job, 0, &copy));
    assert_true(archive_copy(&archive, &job, 99, &copy));
    archive_copy_fini(&copy);
}

static void asks_are_bounded(void **state)
{
    (void)state;
    struct asks asks;
    struct ask ask;
    asks_init(&asks);
    assert_false(asks_take(&asks, &ask));
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < ASKS; i++)
            assert_true(asks_post(&asks, "job", i, INSPECT_STACKS));
        assert_false(asks_post(&asks, "job", 99, INSPECT_STACKS));
        for (uint32_t i = 0; i < ASKS; i++) {
            assert_true(asks_take(&asks, &ask));
            assert_int_equal(ask.rank, i);
            assert_string_equal(ask.job, "job");
        }
    }
    assert_false(asks_take(&asks, &ask));
    asks_fini(&asks);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(answer_shows_when_it_is_whole), TEST(later_answer_replaces_the_same),
        TEST(answers_are_of_one_generation), TEST(lists_end_at_their_bounds),
        TEST(oldest_rank_goes_first),        cmocka_unit_test(asks_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
