// SPDX-License-Identifier: Apache-2.0
//
// What the launcher tells the coordinator: a worker that will never come, and the user's signal.

#include "tests/unit/coordinator/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define ABSENT "rank 2 ended with status 3"

static void join(struct story *story, uint32_t peer, const char *job, uint32_t world)
{
    const struct up_hello hello = story_hello(job, world, "a");
    story_say_hello(story, peer, &hello);
}

static void test_gathering_workers_are_refused(void **state)
{
    struct story *story = *state;
    join(story, 1, "j", 3);
    join(story, 2, "j", 3);
    story_forget(story);
    story->logging = true;
    story_absent(story, "j", ABSENT);
    story_expect(story, "absent in j\n"
                        "log job_given_up job=j workers=2\n"
                        "2 < refused (timeout): " ABSENT "\n"
                        "2 closed\n"
                        "1 < refused (timeout): " ABSENT "\n"
                        "1 closed\n");
}

static void test_later_workers_are_refused(void **state)
{
    struct story *story = *state;
    story_absent(story, "j", ABSENT);
    story_absent(story, "j", "a later one");
    join(story, 1, "j", 3);
    story_expect_piece(story, "1 < refused (timeout): " ABSENT "\n");
    join(story, 2, "j", 3);
    story_expect_piece(story, "2 < refused (timeout): " ABSENT "\n");
    join(story, 3, "other", 1);
    story_expect_piece(story, "3 < generation 1:");
}

// A world of two to three workers may form without the third.
static void test_a_world_that_may_be_smaller_forms(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 3, "a");
    hello.world_min = 2;
    story_absent(story, "j", ABSENT);
    story_say_hello(story, 1, &hello);
    story_say_hello(story, 2, &hello);
    story_sleep(story, 60000);
    story_expect_piece(story, "2 < generation 1:");
}

static void test_a_world_that_has_formed_goes_on(void **state)
{
    struct story *story = *state;
    join(story, 1, "j", 2);
    join(story, 2, "j", 2);
    story_forget(story);
    story_absent(story, "j", ABSENT);
    story_expect(story, "absent in j\n");
}

static void test_ranks_that_end_after_the_signal(void **state)
{
    struct story *story = *state;
    join(story, 1, "j", 2);
    join(story, 2, "j", 2);
    story_stopping(story, "SIGINT");
    story_forget(story);
    story->logging = true;
    story_close(story, 1, "reset");
    story_expect(story, "1 broke\n"
                        "2 < halt lost step 0: rank 0 on host a has ended: the job was stopped by "
                        "SIGINT\n"
                        "log job_stopped job=j generation=1 kind=lost text=\"rank 0 on host a has "
                        "ended: the job was stopped by SIGINT\"\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gathering_workers_are_refused, story_setup,
                                        story_teardown),
        cmocka_unit_test_setup_teardown(test_later_workers_are_refused, story_setup,
                                        story_teardown),
        cmocka_unit_test_setup_teardown(test_a_world_that_may_be_smaller_forms, story_setup,
                                        story_teardown),
        cmocka_unit_test_setup_teardown(test_a_world_that_has_formed_goes_on, story_setup,
                                        story_teardown),
        cmocka_unit_test_setup_teardown(test_ranks_that_end_after_the_signal, story_setup,
                                        story_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
