// SPDX-License-Identifier: Apache-2.0
//
// All connections together use more memory than their limit. The tests check which connections the
// server ends. The server is a real one in this process, but the test reports its memory use: each
// time it reports one value above the limit, so that the server ends exactly one connection. One
// test is about a stream whose client does not read for a while.

#include "server/rpc/budget.h"
#include "server/rpc/loop.h"
#include "server/rpc/server.h"
#include "tests/conformance/test_server_http2.h"

#include <stdatomic.h>

#define METHOD "/lockstep.v1.Coordinator/Session"
#define BUDGET_BYTES (1024 * 1024)
#define ANSWERS 110 // More than RPC_QUEUE_PAUSE beyond the 64 KiB that a client takes unasked.
#define ANSWER_BYTES 2048
#define LAST_WORDS 40

static struct {
    struct rpc_server *server;
    struct thread thread;
    struct log log;
    // atomic
    atomic_bool above; // True: the next check of memory finds a value above the limit.
    atomic_bool stop;
    atomic_uint messages;
    atomic_bool answers; // True: the next message gets ANSWERS answers.
    atomic_bool held; // True: the server stands still.
    // guarded by mutex
    struct mutex mutex;
    struct cond changed;
    unsigned closed;
    char text[LOCKSTEP_TEXT_BYTES]; // The reason why the last stream was closed.
    uint64_t ended; // Number of connections that the server has ended.
} there;

// ---- the server -------------------------------------------------------------------------------

static uint64_t memory_now(void)
{
    return atomic_exchange(&there.above, false) ? BUDGET_BYTES + 1 : BUDGET_BYTES;
}

static void on_opened(void *context, rpc_peer peer, const char *address)
{
    (void)context;
    (void)peer;
    (void)address;
}

static void on_message(void *context, rpc_peer peer, const uint8_t *bytes, size_t size)
{
    static const uint8_t answer[ANSWER_BYTES];
    (void)context;
    (void)bytes;
    (void)size;
    for (uint32_t i = 0; i < ANSWERS && atomic_load(&there.answers); i++)
        assert_true(rpc_server_calls.send(there.server, peer, answer, sizeof(answer)));
    atomic_store(&there.answers, false);
    atomic_fetch_add(&there.messages, 1);
}

static void on_closed(void *context, rpc_peer peer, const char *text)
{
    (void)context;
    (void)peer;
    mutex_lock(&there.mutex);
    there.closed++;
    snprintf(there.text, sizeof(there.text), "%s", text);
    cond_broadcast(&there.changed);
    mutex_unlock(&there.mutex);
}

static uint64_t on_turn(void *context, uint64_t now_ms)
{
    (void)context;
    mutex_lock(&there.mutex);
    there.ended = rpc_server_calls.counts(there.server).budget_ended;
    cond_broadcast(&there.changed);
    mutex_unlock(&there.mutex);
    while (atomic_load(&there.held))
        usleep(1000);
    if (atomic_load(&there.stop))
        rpc_server_calls.stop(there.server);
    return now_ms + 10;
}

static void serve(void *argument)
{
    (void)argument;
    rpc_server_run(there.server);
}

static void server_start(const char *host)
{
    const struct rpc_config config = {.host = host,
                                      .method = METHOD,
                                      .service = "lockstep.v1.Coordinator",
                                      .log = &there.log,
                                      .memory_bytes = BUDGET_BYTES,
                                      .memory = memory_now};
    const struct rpc_events events = {on_opened, on_message, on_closed, on_turn, NULL};
    char error[LOCKSTEP_TEXT_BYTES];
    memset(&there, 0, sizeof(there));
    mutex_init(&there.mutex);
    cond_init(&there.changed);
    if (rpc_server_open(&config, &events, &there.server, error, sizeof(error)) < 0)
        fail_msg("%s", error);
    assert_int_equal(thread_start(&there.thread, "coordinator", serve, NULL), 0);
}

static void server_end(void)
{
    atomic_store(&there.stop, true);
    rpc_server_wake(there.server);
    thread_join(&there.thread);
    rpc_server_close(there.server);
    cond_fini(&there.changed);
    mutex_fini(&there.mutex);
}

// ---- clients ----------------------------------------------------------------------------------

// Sends a message on the stream, and waits until the server has received it.
static void stream_speak(int fd, uint32_t stream)
{
    const uint64_t until_ms = clock_now_ms() + wait_bound_ms();
    const unsigned before = atomic_load(&there.messages);
    frame_write(fd, FRAME_DATA, 0, stream, "\0\0\0\0\0", 5);
    while (atomic_load(&there.messages) == before) {
        assert_true(clock_now_ms() < until_ms);
        usleep(1000);
    }
}

static int stream_begin(int fd, uint32_t stream)
{
    call_begin(fd, METHOD, stream);
    stream_speak(fd, stream);
    return fd;
}

static int stream_open(void)
{
    return stream_begin(client_open(rpc_server_port(there.server)), 1);
}

// Begins a connection without a stream, and waits until the server has sent its first bytes.
static int idle_begin(int fd)
{
    struct pollfd ready = {client_begin(fd), POLLIN, 0};
    assert_int_equal(poll(&ready, 1, (int)wait_bound_ms()), 1);
    return fd;
}

static void await_ended(uint64_t count)
{
    const uint64_t until_ms = clock_now_ms() + wait_bound_ms();
    mutex_lock(&there.mutex);
    while (there.ended < count && cond_wait_until(&there.changed, &there.mutex, until_ms))
        ;
    assert_int_equal(there.ended, count);
    mutex_unlock(&there.mutex);
}

static void await_closed(unsigned count)
{
    const uint64_t until_ms = clock_now_ms() + wait_bound_ms();
    mutex_lock(&there.mutex);
    while (there.closed < count && cond_wait_until(&there.changed, &there.mutex, until_ms))
        ;
    assert_int_equal(there.closed, count);
    assert_non_null(strstr(there.text, "no memory left for all who are connected"));
    mutex_unlock(&there.mutex);
}

// Checks that the server ends the connection.
static void expect_end(int fd)
{
    char bytes[4096];
    raw_read_all(fd, bytes, sizeof(bytes));
    assert_true(recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) == 0 || errno != EAGAIN);
    close(fd);
}

// Checks that the stream ends with a status whose text contains `text`.
static void expect_told(int fd, const char *text)
{
    char bytes[4096];
    size_t size = 0;
    const uint64_t until_ms = clock_now_ms() + wait_bound_ms();
    struct pollfd ready = {fd, POLLIN, 0};
    while (!memmem(bytes, size, text, strlen(text))) {
        assert_true(clock_now_ms() < until_ms && size < sizeof(bytes));
        if (poll(&ready, 1, 50) <= 0)
            continue;
        const ssize_t got = recv(fd, bytes + size, sizeof(bytes) - size, 0);
        assert_true(got > 0);
        size += (size_t)got;
    }
    close(fd);
}

// ---- tests ------------------------------------------------------------------------------------

// Condition: memory is above its limit three times. There are two connections with one stream, one
// without a stream, and one with two calls, which no worker makes. Decision: the server first ends
// the connection without a stream, then the one with two calls, then the latest stream, with a
// reason. The first stream goes on.
static void what_a_job_misses_least_ends_first(void **state)
{
    (void)state;
    server_start("127.0.0.1");
    const int first = stream_open();
    const int busy = stream_begin(stream_open(), 3);
    const int latest = stream_open();
    const int idle = idle_begin(raw_connect(rpc_server_port(there.server)));

    atomic_store(&there.above, true);
    await_ended(1);
    expect_end(idle);
    stream_speak(first, 1);
    stream_speak(busy, 1);
    stream_speak(busy, 3);
    stream_speak(latest, 1);

    atomic_store(&there.above, true);
    await_ended(2);
    expect_end(busy);
    await_closed(2);
    stream_speak(first, 1);
    stream_speak(latest, 1);

    atomic_store(&there.above, true);
    await_ended(3);
    await_closed(3);
    expect_told(latest, "no memory left");
    stream_speak(first, 1);
    close(first);
    server_end();
}

// Connects over IPv6; -1: IPv6 is not available.
static int connect_six(uint16_t port)
{
    const struct sockaddr_in6 address = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool six_is_here(void)
{
    const struct sockaddr_in6 address = {.sin6_family = AF_INET6,
                                         .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool here = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
    if (fd >= 0)
        close(fd);
    return here;
}

// Condition: the same over IPv6, whose addresses gRPC prints in another form. Decision: the server
// recognizes the connection of a stream, and ends the stream with a reason.
static void streams_over_ipv6_are_known(void **state)
{
    (void)state;
    if (!six_is_here())
        skip();
    server_start("::1");
    const int stream = stream_begin(client_begin(connect_six(rpc_server_port(there.server))), 1);
    const int idle = idle_begin(connect_six(rpc_server_port(there.server)));
    atomic_store(&there.above, true);
    await_ended(1);
    expect_end(idle);
    stream_speak(stream, 1);
    atomic_store(&there.above, true);
    await_ended(2);
    await_closed(1);
    expect_told(stream, "no memory left");
    server_end();
}

// Reads `wanted` bytes, or until nothing has come for so long. Returns the number of bytes.
static size_t stream_read(int fd, size_t wanted, int gap_ms)
{
    char bytes[16384];
    struct pollfd ready = {fd, POLLIN, 0};
    size_t size = 0;
    while (size < wanted && poll(&ready, 1, gap_ms) > 0) {
        const ssize_t part = recv(fd, bytes, sizeof(bytes), 0);
        assert_true(part > 0);
        size += (size_t)part;
    }
    return size;
}

// Condition: a client does not read for a while, and then reads everything. Later it sends messages
// and ends its connection, while the server stands still. Decision: the server takes all of them.
static void last_words_count_after_a_pause(void **state)
{
    (void)state;
    server_start("127.0.0.1");
    const int fd = stream_open();
    atomic_store(&there.answers, true);
    stream_speak(fd, 1);
    const size_t before = stream_read(fd, SIZE_MAX, 200);
    assert_true(before < ANSWERS * ANSWER_BYTES / 2);
    frame_write(fd, FRAME_WINDOW, 0, 0, "\0\x10\0\0", 4);
    frame_write(fd, FRAME_WINDOW, 0, 1, "\0\x10\0\0", 4);
    const size_t wanted = ANSWERS * ANSWER_BYTES + 1 - before;
    assert_true(stream_read(fd, wanted, (int)wait_bound_ms()) >= wanted);
    stream_speak(fd, 1);
    const unsigned told = atomic_load(&there.messages);
    atomic_store(&there.held, true);
    usleep(100000);
    for (uint32_t i = 0; i < LAST_WORDS; i++)
        frame_write(fd, FRAME_DATA, 0, 1, "\0\0\0\0\0", 5);
    close(fd);
    usleep(100000);
    atomic_store(&there.held, false);
    const uint64_t until_ms = clock_now_ms() + wait_bound_ms();
    mutex_lock(&there.mutex);
    while (there.closed < 1 && cond_wait_until(&there.changed, &there.mutex, until_ms))
        ;
    assert_int_equal(there.closed, 1);
    mutex_unlock(&there.mutex);
    assert_int_equal(atomic_load(&there.messages) - told, LAST_WORDS);
    server_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_words_count_after_a_pause),
        cmocka_unit_test(what_a_job_misses_least_ends_first),
        cmocka_unit_test(streams_over_ipv6_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
