// SPDX-License-Identifier: Apache-2.0
//
// What travels between `lockstep run --hosts` and a host: frames, the request, the list of hosts;
// and which rank is the cause when the ends of several hosts come in any order.

#include "cli/run/host_list.h"
#include "cli/run/relay.h"
#include "cli/run/report.h"
#include "cli/run/request.h"
#include "cli/run/verdict.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// ---- Frames ------------------------------------------------------------------------------------

static void frames_come_back(void **state)
{
    unsigned char bytes[64];
    const struct relay_header header = {
        .kind = RELAY_OUTPUT, .stream = 1, .rank = RELAY_COORDINATOR, .size = RELAY_PAYLOAD_BYTES};
    const struct relay_ended ended = {
        .at_ms = UINT64_MAX - 7, .status = 0x8b, .exec_error = 2, .stopped = true, .cause = 1023};
    const struct relay_started started = {.at_ms = 1ull << 40, .pid = 4194304};
    struct relay_header header_back;
    struct relay_ended ended_back;
    struct relay_started started_back;
    (void)state;
    relay_put_header(bytes, &header);
    assert_true(relay_get_header(bytes, &header_back));
    assert_int_equal(header_back.kind, header.kind);
    assert_int_equal(header_back.stream, header.stream);
    assert_int_equal(header_back.rank, header.rank);
    assert_int_equal(header_back.size, header.size);
    relay_put_ended(bytes, &ended);
    assert_true(relay_get_ended(bytes, RELAY_ENDED_BYTES, &ended_back));
    assert_true(ended_back.at_ms == ended.at_ms && ended_back.status == ended.status &&
                ended_back.exec_error == ended.exec_error && ended_back.stopped &&
                ended_back.cause == ended.cause);
    assert_false(relay_get_ended(bytes, RELAY_ENDED_BYTES - 1, &ended_back));
    relay_put_started(bytes, &started);
    assert_true(relay_get_started(bytes, RELAY_STARTED_BYTES, &started_back));
    assert_true(started_back.at_ms == started.at_ms && started_back.pid == started.pid);
    assert_false(relay_get_started(bytes, RELAY_STARTED_BYTES + 1, &started_back));
}

static void foreign_frames_are_refused(void **state)
{
    static const struct relay_header wrong[] = {
        {.kind = 0},
        {.kind = RELAY_ENDED + 1},
        {.kind = RELAY_OUTPUT, .stream = 2},
        {.kind = RELAY_OUTPUT, .size = RELAY_PAYLOAD_BYTES + 1},
        {.kind = RELAY_OUTPUT, .size = UINT32_MAX},
    };
    unsigned char bytes[RELAY_HEADER_BYTES];
    struct relay_header header;
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        relay_put_header(bytes, &wrong[i]);
        assert_false(relay_get_header(bytes, &header));
    }
}

// ---- The request -------------------------------------------------------------------------------

static const struct run_host hosts[] = {{"a", 4, 0}, {"user@b", 2, 4}};

static void the_request_comes_back(void **state)
{
    char *trainer[] = {"./train", "", "a = 'b'\n", NULL};
    char *variables[] = {"TEST_HOSTS_ONE=1=2", "TEST_HOSTS_TWO", "TEST_HOSTS_EMPTY="};
    const struct run_options options = {.command = "run",
                                        .job = "mnist",
                                        .world_size = 6,
                                        .workers = 6,
                                        .hosts = hosts,
                                        .host_count = 2,
                                        .timeout_ms = 5000,
                                        .grace_ms = 1500,
                                        .survive = 3,
                                        .http = "off",
                                        .bind = "10.0.0.1:1",
                                        .trainer = trainer,
                                        .variables = variables,
                                        .variable_count = 3};
    struct run_options back = {.command = "run"};
    char before[4096];
    char after[4096];
    size_t size = 0;
    size_t announced = 0;
    (void)state;
    setenv("TEST_HOSTS_TWO", "two", 1);
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
    char *bytes = request_make(&options, 1, "10.0.0.1:29400", false, &size);
    assert_non_null(bytes);
    assert_true(request_size(bytes, &announced));
    assert_int_equal(announced, size - REQUEST_SIZE_BYTES);
    unsetenv("TEST_HOSTS_TWO");
    unsetenv("LOCKSTEP_TRANSPORT");
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(request_take(bytes + REQUEST_SIZE_BYTES, announced, &back), 0);
    assert_non_null(getcwd(after, sizeof(after)));
    assert_string_equal(before, after);
    assert_string_equal(back.job, "mnist");
    assert_true(back.workers == 2 && back.first_rank == 4 && back.world_size == 6);
    assert_true(back.nodes == 2 && back.node_rank == 1 && !back.serves && !back.bind);
    assert_true(back.timeout_ms == 5000 && back.grace_ms == 1500 && back.survive == 3);
    assert_string_equal(back.http, "off");
    assert_string_equal(back.coordinator, "10.0.0.1:29400");
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(back.trainer[i], trainer[i]);
    assert_null(back.trainer[3]);
    assert_string_equal(getenv("TEST_HOSTS_ONE"), "1=2");
    assert_string_equal(getenv("TEST_HOSTS_TWO"), "two");
    assert_string_equal(getenv("TEST_HOSTS_EMPTY"), "");
    assert_string_equal(getenv("LOCKSTEP_TRANSPORT"), "tcp");
    unsetenv("LOCKSTEP_TRANSPORT");
    free(back.trainer);
    free(bytes);
}

// Every cut and every changed byte of a request is taken or refused, and nothing else happens.
static void broken_requests_are_refused(void **state)
{
    static const char good[] =
        "job=x\0workers=1\0first-rank=0\0world-size=1\0http=off\0argument=true";
    (void)state;
    for (size_t i = 0; i <= 2 * sizeof(good); i++) {
        char bytes[sizeof(good)];
        struct run_options options = {.command = "run"};
        const bool cut = i <= sizeof(good);
        memcpy(bytes, good, sizeof(good));
        if (!cut)
            bytes[i - sizeof(good) - 1] = '\0';
        const int result = request_take(bytes, cut ? i : sizeof(good), &options);
        assert_true(i != sizeof(good) || result == 0);
        assert_true(!cut || i == sizeof(good) || result != 0);
        free(options.trainer);
    }
}

// ---- The list ----------------------------------------------------------------------------------

static void the_list_counts_ranks(void **state)
{
    struct run_options options = {.command = "run", .workers = 3};
    (void)state;
    assert_int_equal(host_list_read(&options, "a:4,user@[fe80::1]:2,b"), 0);
    assert_int_equal(options.host_count, 3);
    assert_int_equal(options.world_size, 9);
    assert_int_equal(options.workers, 9);
    assert_string_equal(options.hosts[0].name, "a");
    assert_string_equal(options.hosts[1].name, "user@fe80::1");
    assert_true(options.hosts[1].workers == 2 && options.hosts[1].first_rank == 4);
    assert_true(options.hosts[2].workers == 3 && options.hosts[2].first_rank == 6);
    free((void *)(uintptr_t)options.hosts[0].name);
    free((void *)(uintptr_t)options.hosts);
}

// ---- The cause ---------------------------------------------------------------------------------

// An end that came late but happened earlier is the cause, and a SIGKILL is one whenever it comes.
static void the_cause_does_not_depend_on_the_order(void **state)
{
    const struct run_options options = {.workers = 4, .grace_ms = 1000};
    struct verdict verdict;
    (void)state;
    assert_true(verdict_init(&verdict, &options));
    verdict.running = 4;
    verdict_end(&verdict, 0, 3 << 8, 520, true, 5000);
    assert_int_equal(verdict.kill_at, 6000);
    verdict_end(&verdict, 3, 7 << 8, 510, false, 5001);
    assert_int_equal(verdict.result.first_failed, 3);
    verdict_end(&verdict, 1, 3 << 8, 530, false, 5002);
    assert_int_equal(verdict.result.first_failed, 3);
    assert_int_equal(verdict_status(&verdict), 7 << 8);
    verdict_end(&verdict, 2, 9, 540, false, 5003);
    assert_int_equal(verdict.result.first_failed, 2);
    assert_int_equal(verdict.running, 0);
    assert_int_equal(verdict.kill_at, 6000);
    verdict_fini(&verdict);
}

// Condition: the coordinator has ended the job because of rank 1, which ends after the ranks that
// it has failed, or before the coordinator's word comes. Decision: its end is the cause, and an
// abort or an earlier end of another rank is not. A SIGKILL is.
static void the_rank_that_ended_the_job_is_the_cause(void **state)
{
    const struct run_options options = {.workers = 4, .grace_ms = 1000};
    struct verdict verdict;
    (void)state;
    for (int late = 0; late < 2; late++) {
        assert_true(verdict_init(&verdict, &options));
        verdict.running = 4;
        if (late == 0)
            verdict_accuse(&verdict, 1);
        verdict_end(&verdict, 0, 3 << 8, 500, true, 500);
        assert_int_equal(verdict.result.first_failed, 0);
        verdict_end(&verdict, 1, 7 << 8, 700, true, 700);
        if (late == 1)
            verdict_accuse(&verdict, 1);
        assert_int_equal(verdict.result.first_failed, 1);
        assert_int_equal(verdict.result.status, 7 << 8);
        verdict_end(&verdict, 2, SIGABRT, 400, true, 700);
        assert_int_equal(verdict.result.first_failed, 1);
        verdict_accuse(&verdict, 4); // A rank of another launcher.
        verdict_end(&verdict, 3, SIGKILL, 800, false, 800);
        assert_int_equal(verdict.result.first_failed, 3);
        verdict_accuse(&verdict, 1);
        assert_int_equal(verdict.result.first_failed, 3);
        verdict_fini(&verdict);
    }
}

// Condition: the accused rank ends well, or is killed by the supervisor. Decision: the status of
// the run is that of the first failure. The report names the accused rank (test_run_starts.sh).
static void an_accused_rank_has_to_fail(void **state)
{
    const struct run_options options = {.workers = 3, .grace_ms = 1000};
    struct verdict verdict;
    (void)state;
    assert_true(verdict_init(&verdict, &options));
    verdict.running = 3;
    verdict_accuse(&verdict, 1);
    verdict_end(&verdict, 2, 3 << 8, 500, true, 500);
    verdict_end(&verdict, 1, 0, 510, true, 510);
    assert_int_equal(verdict.result.first_failed, 2);
    verdict_accuse(&verdict, 0);
    verdict_stop(&verdict);
    verdict_end(&verdict, 0, SIGKILL, 1500, false, 1500);
    assert_int_equal(verdict.result.first_failed, 2);
    verdict_fini(&verdict);
}

// For report.c; the one of run.c needs all of `lockstep run`.
bool run_may_restart(const struct run_options *options, int result, bool signalled)
{
    (void)options;
    (void)result;
    (void)signalled;
    return false;
}

// Condition: a host is lost, and the coordinator accuses a rank that then waits until the
// supervisor stops it. Decision: the report names a rank of the lost host.
static void a_lost_host_is_the_cause(void **state)
{
    const struct run_host two[] = {{"a", 2, 0}, {"b", 1, 2}};
    bool flags[2] = {false, false};
    const struct run_options options = {.command = "run",
                                        .job = "x",
                                        .workers = 3,
                                        .world_size = 3,
                                        .hosts = two,
                                        .host_count = 2,
                                        .json = true,
                                        .unwritten = &flags[0],
                                        .again = &flags[1]};
    struct verdict verdict;
    char said[2048] = "";
    (void)state;
    assert_true(verdict_init(&verdict, &options));
    verdict.running = 3;
    verdict.result.ranks[2].end.lost = true;
    verdict_end(&verdict, 2, 255 << 8, 500, true, 500);
    verdict_accuse(&verdict, 1);
    verdict_stop(&verdict);
    verdict_end(&verdict, 0, SIGKILL, 1500, false, 1500);
    verdict_end(&verdict, 1, SIGKILL, 1500, false, 1500);
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int before = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    run_report(&options, &verdict, 255);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    rewind(file);
    assert_true(fread(said, 1, sizeof(said) - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(said, "\"cause_rank\":2,"));
    verdict_fini(&verdict);
}

// Condition: two of four ranks fail with --survive=2, and then a third one. Decision: the others
// are killed after the grace that begins with the third one, whose status is not that of the run.
static void enough_ranks_survive(void **state)
{
    const struct run_options options = {.workers = 4, .grace_ms = 1000, .survive = 2};
    struct verdict verdict;
    (void)state;
    assert_true(verdict_init(&verdict, &options));
    verdict.running = 4;
    verdict_end(&verdict, 3, 7 << 8, 100, true, 100);
    verdict_end(&verdict, 1, 9, 200, false, 200); // By itself, and no better cause.
    assert_int_equal(verdict_time_left(&verdict, 200), -1);
    assert_false(verdict_doomed(&verdict));
    assert_int_equal(verdict_status(&verdict), 0);
    assert_int_equal(verdict.result.first_failed, 3);
    verdict_accuse(&verdict, 1); // Of a later failure, and ranks may have other numbers.
    assert_int_equal(verdict.result.first_failed, 3);
    assert_int_equal(verdict.result.accused, 4);
    verdict_end(&verdict, 0, 11, 300, false, 300);
    assert_true(verdict_doomed(&verdict));
    assert_int_equal(verdict.kill_at, 1300);
    verdict_end(&verdict, 2, 9, 1300, false, 1300);
    assert_int_equal(verdict.kill_at, 1300);
    assert_int_equal(verdict.result.status, 7 << 8);
    verdict_fini(&verdict);
}

// Condition: with --survive the coordinator ends the job because of a rank, before any has failed.
// Decision: this rank's failure is the cause, although others have failed before it.
static void an_accused_rank_ends_survivors(void **state)
{
    const struct run_options options = {.workers = 3, .grace_ms = 1000, .survive = 2};
    struct verdict verdict;
    (void)state;
    assert_true(verdict_init(&verdict, &options));
    verdict.running = 3;
    verdict_accuse(&verdict, 1);
    verdict_end(&verdict, 2, 3 << 8, 500, true, 500);
    verdict_end(&verdict, 1, 7 << 8, 510, false, 510);
    assert_true(verdict.halted);
    assert_int_equal(verdict.result.accused, 1);
    assert_int_equal(verdict.result.first_failed, 1);
    verdict_fini(&verdict);
}

// Condition: all ranks have ended with 0, and a signal comes while output waits for its reader.
// Decision: it did not stop the job.
static void a_signal_after_all_ends_stops_nothing(void **state)
{
    const struct run_options options = {.workers = 1, .grace_ms = 1000};
    struct verdict verdict;
    (void)state;
    assert_true(verdict_init(&verdict, &options));
    verdict.running = 1;
    verdict_end(&verdict, 0, 0, 100, true, 100);
    verdict_signal(&verdict, SIGTERM, 200);
    assert_int_equal(verdict.result.stopped_by, 0);
    assert_int_equal(verdict_status(&verdict), 0);
    verdict_fini(&verdict);
}

// Condition: a rank fails with --survive, and the user then stops the job by SIGINT. Decision: the
// status is that of the ranks that are left, and none is killed. A hosted run kills none at all.
static void a_stop_of_survivors_is_the_users(void **state)
{
    const struct run_options options = {.workers = 3, .grace_ms = 1000, .survive = 2};
    const struct run_options hosted = {
        .workers = 1, .grace_ms = 1000, .survive = 2, .hosted = true};
    struct verdict verdict;
    (void)state;
    for (int second = 0; second <= SIGINT; second += SIGINT) {
        assert_true(verdict_init(&verdict, &options));
        verdict.running = 3;
        verdict_end(&verdict, 1, 9, 100, true, 100);
        assert_int_equal(verdict_signal(&verdict, SIGINT, 200), SIGINT);
        assert_int_equal(verdict.result.stopped_by, SIGINT);
        verdict_end(&verdict, 0, 0, 300, false, 300);
        verdict_end(&verdict, 2, second, 300, false, 300);
        assert_int_equal(verdict.result.status, second);
        assert_int_equal(verdict_time_left(&verdict, 300), -1);
        verdict_fini(&verdict);
    }
    assert_true(verdict_init(&verdict, &hosted));
    verdict.running = 1;
    verdict_end(&verdict, 0, 9, 100, true, 100);
    assert_int_equal(verdict_time_left(&verdict, 200), -1);
    verdict_fini(&verdict);
}

// Condition: signals that end the job come. Decision: those that come within a second of the first
// are copies of it, as Slurm sends them. A later one kills, and so does SIGKILL, which is the
// launcher's word for it to a hosted run.
static void the_second_interrupt_kills(void **state)
{
    const struct run_options options = {.workers = 1, .grace_ms = 1000};
    struct verdict verdict;
    (void)state;
    assert_true(verdict_init(&verdict, &options));
    assert_int_equal(verdict_signal(&verdict, SIGUSR1, 1), SIGUSR1);
    assert_int_equal(verdict_signal(&verdict, SIGINT, 2), SIGINT);
    assert_int_equal(verdict_time_left(&verdict, 3), -1);
    assert_int_equal(verdict_signal(&verdict, SIGINT, 2), 0);
    assert_int_equal(verdict_signal(&verdict, SIGTERM, 1001), 0);
    assert_int_equal(verdict_signal(&verdict, SIGUSR1, 1001), SIGUSR1);
    assert_false(verdict_given_up(&verdict, 60000));
    assert_int_equal(verdict_signal(&verdict, SIGTERM, 1002), SIGKILL);
    assert_int_equal(verdict.interrupted_by, SIGINT);
    assert_false(verdict_given_up(&verdict, 1003));
    assert_true(verdict_given_up(&verdict, 2000));
    verdict_fini(&verdict);
    assert_true(verdict_init(&verdict, &options));
    assert_int_equal(verdict_signal(&verdict, SIGTERM, 2), SIGTERM);
    assert_int_equal(verdict_signal(&verdict, SIGKILL, 4), SIGKILL);
    assert_true(verdict_given_up(&verdict, 1000));
    verdict_fini(&verdict);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_back),
        cmocka_unit_test(foreign_frames_are_refused),
        cmocka_unit_test(the_request_comes_back),
        cmocka_unit_test(broken_requests_are_refused),
        cmocka_unit_test(the_list_counts_ranks),
        cmocka_unit_test(the_cause_does_not_depend_on_the_order),
        cmocka_unit_test(the_rank_that_ended_the_job_is_the_cause),
        cmocka_unit_test(an_accused_rank_has_to_fail),
        cmocka_unit_test(a_lost_host_is_the_cause),
        cmocka_unit_test(enough_ranks_survive),
        cmocka_unit_test(an_accused_rank_ends_survivors),
        cmocka_unit_test(a_signal_after_all_ends_stops_nothing),
        cmocka_unit_test(a_stop_of_survivors_is_the_users),
        cmocka_unit_test(the_second_interrupt_kills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
