// SPDX-License-Identifier: Apache-2.0
//
// The socket between `lockstep run` and its coordinator, both ends of it, when the launcher reads
// later than the coordinator writes.

#include "cli/run/joins.h"
#include "cli/run/relay.h"
#include "cli/run/run.h"
#include "server/launcher.h"

#include "base/thread.h"
#include "protos/up.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <cmocka.h>

static struct joins joins;
static struct launcher launcher;
static atomic_uint words_read; // By the launcher's end of the coordinator.
static atomic_bool ends;

// report.c asks this, which no test does.
bool run_may_restart(const struct run_options *options, int result, bool signalled)
{
    (void)options;
    (void)result;
    (void)signalled;
    return false;
}

static void woken(void *context)
{
    (void)context;
    atomic_fetch_add(&words_read, 1);
}

static void rest(void)
{
    const struct timespec moment = {.tv_nsec = 1000 * 1000};
    nanosleep(&moment, NULL);
}

static int begin(void **state)
{
    (void)state;
    joins = (struct joins){.fd = -1, .coordinator_fd = -1, .cause = JOINS_NO_RANK};
    atomic_store(&words_read, 0);
    atomic_store(&ends, false);
    assert_int_equal(joins_open(&joins), 0);
    assert_int_equal(launcher_start(&launcher, joins.coordinator_fd, woken, NULL), 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    launcher_stop(&launcher);
    joins_close(&joins);
    return 0;
}

// Most ranks of a world join while the launcher does not read, and then the job ends.
static void say_all(void)
{
    for (uint32_t rank = 1; rank < LOCKSTEP_MAX_WORLD; rank++) {
        const struct up_hello hello = {.has_rank_hint = true, .rank_hint = rank};
        launcher_say_hello(&launcher, &hello, false);
    }
    launcher_say_cause(&launcher, 7);
    assert_false(launcher_flush(&launcher)); // Else the socket is too large for this test.
}

// Takes turns as the stream thread does.
static void take_turns(void *argument)
{
    struct launcher_word word;
    (void)argument;
    while (!atomic_load(&ends)) {
        while (launcher_take(&launcher, &word))
            launcher_answer(&launcher);
        (void)launcher_flush(&launcher);
        rest();
    }
}

static void a_late_reader_is_told_all(void **state)
{
    struct thread stream;
    (void)state;
    say_all();
    assert_int_equal(thread_start(&stream, "stream", take_turns, NULL), 0);
    for (uint32_t tries = 0; joins.behind || tries == 0; tries++) {
        joins_read_all(&joins);
        rest(); // More than the second that joins_read_all waits: this machine is very slow.
    }
    assert_int_equal(joins.count, LOCKSTEP_MAX_WORLD - 1);
    assert_true(joins_lacks(&joins, 0));
    for (uint32_t rank = 1; rank < LOCKSTEP_MAX_WORLD; rank++)
        assert_false(joins_lacks(&joins, rank));
    assert_int_equal(joins.cause, 7);
    atomic_store(&ends, true);
    thread_join(&stream);
}

// Condition: the coordinator is stopped. Decision: no rank counts as one that has not joined.
static void nothing_is_certain_without_an_answer(void **state)
{
    (void)state;
    say_all();
    joins_read_all(&joins);
    assert_true(joins.count < LOCKSTEP_MAX_WORLD - 1);
    assert_false(joins_lacks_any(&joins, LOCKSTEP_MAX_WORLD));
}

static void a_stop_counts_beside_many_absent(void **state)
{
    static const char absent[] = "absent job rank 1 ended";
    static const char stopping[] = "stopping SIGINT";
    struct launcher_word word;
    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(send(joins.fd, absent, strlen(absent), 0), strlen(absent));
    assert_int_equal(send(joins.fd, stopping, strlen(stopping), 0), strlen(stopping));
    while (atomic_load(&words_read) < 101)
        rest();
    assert_true(launcher_take(&launcher, &word));
    assert_int_equal(word.kind, LAUNCHER_ABSENT);
    assert_string_equal(word.text, "rank 1 ended");
    while (word.kind == LAUNCHER_ABSENT)
        assert_true(launcher_take(&launcher, &word));
    assert_int_equal(word.kind, LAUNCHER_STOPPING);
}

static void take_text(const struct run_options *options, const char *text)
{
    char bytes[RELAY_TEXT_BYTES] = "";
    snprintf(bytes, sizeof(bytes), "%s", text);
    joins_expect_text(&joins);
    for (uint32_t i = 0; i < sizeof(bytes); i++)
        assert_true(joins_take_text(&joins, options, (unsigned char)bytes[i]));
    assert_false(joins_take_text(&joins, options, RELAY_ALIVE));
}

static void join(uint32_t rank)
{
    const struct up_hello hello = {.has_rank_hint = true, .rank_hint = rank};
    launcher_say_hello(&launcher, &hello, false);
}

static struct launcher_word next_word(void)
{
    struct launcher_word word;
    while (!launcher_take(&launcher, &word))
        rest();
    return word;
}

// A failure of another host keeps a world from forming. It is not told once all have joined.
static void a_failure_elsewhere_is_told_while_ranks_lack(void **state)
{
    const struct run_options options = {.job = "job", .workers = 1, .world_size = 2};
    (void)state;
    join(0);
    take_text(&options, "rank 1 on b ended with status 5 after 0.1 s");
    const struct launcher_word word = next_word();
    assert_int_equal(word.kind, LAUNCHER_ABSENT);
    assert_string_equal(word.job, "job");
    assert_string_equal(word.text, "rank 1 on b ended with status 5 after 0.1 s: see what it "
                                   "printed, then start the job again");
    join(1);
    take_text(&options, "rank 1 on b ended with status 5 after 9.9 s");
    joins_say_stopping(&joins, SIGINT);
    assert_int_equal(next_word().kind, LAUNCHER_STOPPING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_late_reader_is_told_all, begin, end),
        cmocka_unit_test_setup_teardown(nothing_is_certain_without_an_answer, begin, end),
        cmocka_unit_test_setup_teardown(a_stop_counts_beside_many_absent, begin, end),
        cmocka_unit_test_setup_teardown(a_failure_elsewhere_is_told_while_ranks_lack, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
