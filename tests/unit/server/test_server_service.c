// SPDX-License-Identifier: Apache-2.0
//
// The service between the core and its streams, with the real core and invented streams: what was
// sent, finished and aborted is written down and compared.

#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/codec/up.h"
#include "server/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

// The invented streams.
struct streams {
    char trace[4096];
    struct down_message last; // The message that was sent last.
    uint32_t standing;
    bool serving;
    bool stopped;
};

static struct streams streams;
static struct service *service;
static struct rpc_events events;
static struct log log_silent;

static void trace(const char *format, uint64_t peer, const char *text)
{
    size_t size = strlen(streams.trace);
    snprintf(streams.trace + size, sizeof(streams.trace) - size, format, (unsigned)peer, text);
}

static bool fake_send(void *context, rpc_peer peer, const uint8_t *bytes, size_t size)
{
    (void)context;
    assert_int_equal(codec_decode_down(bytes, size, &streams.last, NULL), CODEC_OK);
    trace("send %u %s\n", peer, streams.last.kind == DOWN_WELCOME ? "welcome" : "other");
    return true;
}

// Allows every peer to be a worker of every job but "closed".
static bool fake_allows(void *context, rpc_peer peer, const char *job)
{
    (void)context;
    (void)peer;
    return strcmp(job, "closed") != 0;
}

static uint64_t fake_origin(void *context, rpc_peer peer)
{
    (void)context;
    (void)peer;
    return 0;
}

static void fake_finish(void *context, rpc_peer peer, enum rpc_status status, const char *text)
{
    (void)context;
    (void)status;
    trace("finish %u %s\n", peer, text);
}

static void fake_abort(void *context, rpc_peer peer, enum rpc_status status, const char *text)
{
    (void)context;
    (void)text;
    const char *denied = status == RPC_PERMISSION_DENIED ? "denied" : "other";
    trace("abort %u %s\n", peer, status == RPC_INVALID_ARGUMENT ? "invalid" : denied);
}

static void fake_set_serving(void *context, bool serving)
{
    (void)context;
    streams.serving = serving;
}

static void fake_stop(void *context)
{
    (void)context;
    streams.stopped = true;
}

static struct rpc_counts fake_counts(const void *context)
{
    (void)context;
    return (struct rpc_counts){.streams = streams.standing, .listening = true};
}

static const struct rpc_calls fake_calls = {
    fake_send,  fake_allows,      fake_origin, fake_finish,
    fake_abort, fake_set_serving, fake_stop,   fake_counts,
};

static int open_service(void **state)
{
    (void)state;
    char error[256];
    struct service_config config = {.drain_ms = 1000, .outlive_ms = 500, .log = &log_silent};
    log_init(&log_silent, LOG_LEVEL_DEBUG, NULL, NULL);
    streams = (struct streams){.serving = true};
    if (service_open(&config, &service, error, sizeof(error)) < 0)
        return -1;
    service_attach(service, &fake_calls, NULL);
    events = service_events(service);
    return 0;
}

static int close_service(void **state)
{
    (void)state;
    service_close(service);
    return 0;
}

static void say_hello_of(rpc_peer peer, const char *job, uint32_t world)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    size_t size;
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *hello = &message.u.hello;
    *hello = (struct up_hello){.version = LOCKSTEP_PROTOCOL_VERSION,
                               .host_id = "h",
                               .host = "h",
                               .address = "tcp:127.0.0.1:1",
                               .pid = 1,
                               .world_min = world,
                               .world_max = world,
                               .open_timeout_ms = 60000};
    hello->uuid.bytes[0] = (uint8_t)peer;
    snprintf(hello->job, sizeof(hello->job), "%s", job);
    assert_int_equal(codec_encode_up(&message, bytes, sizeof(bytes), &size), CODEC_OK);
    streams.standing++;
    events.opened(events.context, peer, "test");
    events.message(events.context, peer, bytes, size);
}

static void say_hello_to(rpc_peer peer, const char *job)
{
    say_hello_of(peer, job, 2);
}

static void say_hello(rpc_peer peer)
{
    say_hello_to(peer, "job");
}

static void hello_is_welcomed(void **state)
{
    (void)state;
    say_hello(1);
    assert_string_equal(streams.trace, "send 1 welcome\n");
    assert_int_equal(streams.last.u.welcome.version, LOCKSTEP_PROTOCOL_VERSION);
}

// Condition: a certificate that is not of this job. Decision: its stream ends, and the core has
// never heard of it: nothing is sent, and there is no such job.
static void hello_to_a_closed_job_is_refused(void **state)
{
    (void)state;
    say_hello_to(1, "closed");
    assert_string_equal(streams.trace, "abort 1 denied\n");
    streams.trace[0] = '\0';
    say_hello(2);
    assert_string_equal(streams.trace, "send 2 welcome\n");
}

// Condition: bytes that are no message. Decision: that stream ends by name, nobody else's does.
static void nonsense_ends_its_stream(void **state)
{
    (void)state;
    say_hello(1);
    streams.trace[0] = '\0';
    events.opened(events.context, 2, "test");
    events.message(events.context, 2, (const uint8_t *)"\xff\xff\xff", 3);
    assert_string_equal(streams.trace, "abort 2 invalid\n");
    events.message(events.context, 3, NULL, 0);
    assert_non_null(strstr(streams.trace, "abort 3 invalid\n"));
}

static void drain_waits_for_streams(void **state)
{
    (void)state;
    streams.standing = 1;
    events.turn(events.context, 1000);
    assert_true(streams.serving);
    service_drain(service);
    assert_int_equal(events.turn(events.context, 1000), 2000);
    assert_false(streams.serving);
    assert_false(streams.stopped);
    streams.standing = 0;
    events.turn(events.context, 1500);
    assert_true(streams.stopped);
}

static void drain_has_a_bound(void **state)
{
    (void)state;
    streams.standing = 1;
    service_drain(service);
    events.turn(events.context, 1000);
    events.turn(events.context, 1999);
    assert_false(streams.stopped);
    events.turn(events.context, 2000);
    assert_true(streams.stopped);
}

// ---- pictures ---------------------------------------------------------------------------------

static void take_turn(void *context)
{
    (void)context;
    events.turn(events.context, 0);
}

static void picture_is_made_when_asked(void **state)
{
    (void)state;
    struct snapshot_board board;
    bool answered = false;
    snapshot_board_init(&board, take_turn, NULL);
    service_show(service, &(struct service_shown){.board = &board});
    say_hello(1);
    // The turn runs inside wake, which holds the mutex in snapshot_read; so ask by hand.
    atomic_store(&board.wanted, true);
    take_turn(NULL);
    snapshot_end(&board);
    const struct snapshot *snapshot = snapshot_read(&board, &answered);
    assert_false(answered); // A stack from before the question is shown, but is no answer to it.
    assert_non_null(snapshot);
    assert_int_equal(snapshot->job_count, 1);
    assert_string_equal(snapshot->jobs[0].view.name, "job");
    assert_int_equal(snapshot->jobs[0].workers.count, 1);
    assert_int_equal(snapshot->counts.received[UP_HELLO], 1);
    snapshot_board_fini(&board);
}

// Condition: the only worker of a world ends. Decision: the verdict counts, though it is sent to
// nobody.
static void verdict_without_a_hearer_counts(void **state)
{
    (void)state;
    struct snapshot_board board;
    bool answered = false;
    snapshot_board_init(&board, take_turn, NULL);
    service_show(service, &(struct service_shown){.board = &board});
    say_hello_of(1, "one", 1);
    streams.standing--;
    events.closed(events.context, 1, "reset");
    atomic_store(&board.wanted, true);
    take_turn(NULL);
    snapshot_end(&board);
    const struct snapshot *snapshot = snapshot_read(&board, &answered);
    assert_non_null(snapshot);
    assert_int_equal(snapshot->jobs[0].view.state, JOB_HALTED);
    assert_int_equal(snapshot->counts.halted[HALT_LOST], 1);
    snapshot_board_fini(&board);
}

// Condition: the parent has ended. Decision: workers are served, also new ones, and the drain
// begins when none has been there for outlive_ms.
static void orphan_outlives_its_workers(void **state)
{
    (void)state;
    say_hello(1);
    service_outlive(service);
    assert_true(events.turn(events.context, 100) > 0 && streams.serving);
    say_hello(2);
    assert_int_equal(streams.last.kind == DOWN_REFUSED, false);
    streams.standing = 0;
    assert_int_equal(events.turn(events.context, 200), 700);
    streams.standing = 1; // A stream comes back.
    events.turn(events.context, 700);
    assert_true(streams.serving);
    streams.standing = 0;
    events.turn(events.context, 900);
    events.turn(events.context, 1399);
    assert_true(streams.serving && !streams.stopped);
    events.turn(events.context, 1400);
    assert_true(!streams.serving && streams.stopped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hello_is_welcomed, open_service, close_service),
        cmocka_unit_test_setup_teardown(hello_to_a_closed_job_is_refused, open_service,
                                        close_service),
        cmocka_unit_test_setup_teardown(nonsense_ends_its_stream, open_service, close_service),
        cmocka_unit_test_setup_teardown(drain_waits_for_streams, open_service, close_service),
        cmocka_unit_test_setup_teardown(drain_has_a_bound, open_service, close_service),
        cmocka_unit_test_setup_teardown(orphan_outlives_its_workers, open_service, close_service),
        cmocka_unit_test_setup_teardown(picture_is_made_when_asked, open_service, close_service),
        cmocka_unit_test_setup_teardown(verdict_without_a_hearer_counts, open_service,
                                        close_service),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
