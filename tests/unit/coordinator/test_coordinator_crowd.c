// SPDX-License-Identifier: Apache-2.0
//
// One client cannot fill the table of jobs: the number of waiting jobs from one address is bounded,
// and so is the time for which a job waits.

#include "coordinator/coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HERE UINT64_C(11)
#define THERE UINT64_C(12)

static struct {
    void *memory;
    struct coordinator *core;
    uint64_t now_ms;
    coordinator_peer peer; // The latest.
    unsigned welcomed;
    unsigned refused;
    char text[LOCKSTEP_TEXT_BYTES]; // Text of the latest refusal.
} story;

static void act(void *context, const struct coordinator_action *action)
{
    (void)context;
    if (action->kind != ACTION_SEND)
        return;
    story.welcomed += action->message->kind == DOWN_WELCOME ? 1 : 0;
    if (action->message->kind != DOWN_REFUSED)
        return;
    story.refused++;
    snprintf(story.text, sizeof(story.text), "%s", action->message->u.refused.text);
}

static void step(struct coordinator_event *event)
{
    const struct coordinator_sink sink = {act, NULL};
    coordinator_step(story.core, event, story.now_ms, sink);
}

static void say_hello(const char *job, uint64_t origin, uint32_t world, uint32_t timeout_ms)
{
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *hello = &message.u.hello;
    struct coordinator_event event = {
        .kind = EVENT_MESSAGE, .peer = ++story.peer, .message = &message, .origin = origin};
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    hello->world_min = hello->world_max = world;
    hello->open_timeout_ms = timeout_ms;
    hello->on_failure = FAILURE_ERROR;
    memcpy(&hello->uuid, &story.peer, sizeof(story.peer));
    snprintf(hello->job, sizeof(hello->job), "%s", job);
    snprintf(hello->host, sizeof(hello->host), "a");
    snprintf(hello->host_id, sizeof(hello->host_id), "a");
    snprintf(hello->address, sizeof(hello->address), "tcp:127.0.0.1:1");
    snprintf(hello->device, sizeof(hello->device), "cpu");
    story.welcomed = story.refused = 0;
    step(&event);
}

static void fill(const char *prefix, uint64_t origin, uint32_t count)
{
    char job[32];
    for (uint32_t i = 0; i < count; i++) {
        snprintf(job, sizeof(job), "%s%u", prefix, (unsigned)i);
        say_hello(job, origin, 2, UINT32_MAX);
        assert_int_equal(story.welcomed, 1);
    }
}

static int begin(void **state)
{
    const struct coordinator_config config = {.incarnation = 1};
    (void)state;
    story.memory = calloc(1, coordinator_bytes());
    story.core = coordinator_init(story.memory, &config);
    story.now_ms = 1000;
    story.peer = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    free(story.memory);
    return 0;
}

// Condition: from one address come first workers of as many jobs as it may begin, and one more.
// Decision: that one is refused with the reason; further workers of jobs that wait are taken, and
// so is a job that begins elsewhere, also where nobody knows.
static void one_address_has_a_bound(void **state)
{
    (void)state;
    fill("h", HERE, LOCKSTEP_ORIGIN_GATHERING);
    say_hello("more", HERE, 2, 1000);
    assert_int_equal(story.refused, 1);
    assert_string_equal(story.text,
                        "32 jobs that began at this worker's address are waiting for their "
                        "workers, the limit: start the workers of those, or wait until one has "
                        "ended");
    say_hello("more", THERE, 2, 1000);
    assert_int_equal(story.welcomed, 1);
    say_hello("any", 0, 2, 1000);
    assert_int_equal(story.welcomed, 1);
    say_hello("more", HERE, 2, 1000); // The second worker: that job is complete.
    assert_true(story.welcomed == 1 && story.refused == 0);
    say_hello("h0", HERE, 2, 1000); // And this one.
    assert_true(story.welcomed == 1 && story.refused == 0);
    say_hello("next", HERE, 2, 1000); // One has begun, so there is a place again.
    assert_true(story.welcomed == 1 && story.refused == 0);
}

// Condition: workers say that they wait for 49 days. Decision: they have waited for a day.
static void nobody_waits_longer_than_a_day(void **state)
{
    struct coordinator_event tick = {.kind = EVENT_TICK};
    (void)state;
    fill("h", HERE, 2);
    assert_true(coordinator_deadline(story.core) <= 1000 + LOCKSTEP_OPEN_TIMEOUT_MAX_MS);
    story.refused = 0;
    for (int i = 0; i < 8 && story.refused < 2; i++) {
        story.now_ms = 1000 + LOCKSTEP_OPEN_TIMEOUT_MAX_MS + (uint64_t)i;
        step(&tick);
    }
    assert_int_equal(story.refused, 2);
    assert_non_null(strstr(story.text, "1 of 2 workers joined job"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_address_has_a_bound, begin, end),
        cmocka_unit_test_setup_teardown(nobody_waits_longer_than_a_day, begin, end),
    };
    return cmocka_run_group_tests_name("coordinator_crowd", tests, NULL, NULL);
}
