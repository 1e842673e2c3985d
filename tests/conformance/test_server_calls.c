// SPDX-License-Identifier: Apache-2.0
//
// Calls of a hostile client that writes HTTP/2 by hand: it ignores the announced limits and begins
// calls without sending a request. Runs against a real lockstep-coordinator.

#include "tests/conformance/test_server_http2.h"

#define CALLS_MOST 32 // Twice RPC_CONNECTION_CALLS, the limit that the server announces.
#define CALLS_MORE 8
#define ANSWER_BYTES (64 * 1024)

static struct daemon server;

// Outcome of the calls of one connection.
struct heard {
    uint8_t bytes[ANSWER_BYTES];
    size_t size;
    uint32_t ended; // Number of calls that the coordinator has ended.
    uint32_t answered; // Number of calls with an answer.
};

static void count_frames(struct heard *heard)
{
    bool over[128] = {false};
    size_t at = 0;
    heard->ended = heard->answered = 0;
    while (at + FRAME_BYTES <= heard->size) {
        const uint8_t *frame = heard->bytes + at;
        const uint32_t stream = (uint32_t)frame[7] << 8 | frame[8];
        const bool ends =
            frame[3] == FRAME_RESET || (frame[3] == FRAME_HEADERS && (frame[4] & END_STREAM) != 0);
        assert_true(stream < sizeof(over));
        heard->answered += frame[3] == FRAME_DATA ? 1 : 0;
        heard->ended += ends && !over[stream] ? 1 : 0;
        over[stream] = over[stream] || ends;
        at += FRAME_BYTES + ((size_t)frame[0] << 16 | (size_t)frame[1] << 8 | frame[2]);
    }
}

// Reads until at least `ended` calls have ended and `answered` calls have an answer.
static void hear(int fd, struct heard *heard, uint32_t ended, uint32_t answered, uint64_t wait_ms)
{
    const uint64_t until_ms = clock_now_ms() + wait_ms;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    while ((heard->ended < ended || heard->answered < answered) && clock_now_ms() < until_ms) {
        if (poll(&poll_fd, 1, 50) <= 0)
            continue;
        const ssize_t part =
            recv(fd, heard->bytes + heard->size, sizeof(heard->bytes) - heard->size, 0);
        assert_true(part > 0);
        heard->size += (size_t)part;
        count_frames(heard);
    }
    assert_int_equal(heard->ended, ended);
    assert_int_equal(heard->answered, answered);
}

static void ask_health(int fd, uint32_t stream)
{
    frame_write(fd, FRAME_DATA, END_STREAM, stream, "\0\0\0\0\0", 5);
}

// Condition: a connection begins more calls than its limit, all without a request. Decision: the
// calls above the limit end, for any method. One of the other calls is answered once it sends its
// request. Another connection has a limit of its own.
static void a_connection_has_a_bound_of_calls(void **state)
{
    (void)state;
    static const char *const paths[] = {"/grpc.health.v1.Health/Watch",
                                        "/grpc.health.v1.Health/Check",
                                        "/lockstep.v1.Coordinator/Session"};
    static struct heard heard, other;
    daemon_start(&server, NULL, 0);
    const int fd = client_open(server.grpc);
    for (uint32_t i = 0; i < CALLS_MOST + CALLS_MORE; i++)
        call_begin(fd, paths[i % 3], 1 + 2 * i);
    hear(fd, &heard, CALLS_MORE, 0, wait_bound_ms());
    ask_health(fd, 1);
    hear(fd, &heard, CALLS_MORE, 1, wait_bound_ms());

    const int second = client_open(server.grpc);
    call_begin(second, paths[1], 1);
    ask_health(second, 1);
    hear(second, &other, 1, 1, wait_bound_ms());
    close(second);
    close(fd);
    daemon_stop(&server);
}

// Condition: calls that begin and never send a request. Decision: they end after a while, both of
// the health service and of workers.
static void silent_calls_end(void **state)
{
    (void)state;
    static struct heard heard;
    daemon_start(&server, NULL, 0);
    const int fd = client_open(server.grpc);
    call_begin(fd, "/grpc.health.v1.Health/Watch", 1);
    call_begin(fd, "/grpc.health.v1.Health/Check", 3);
    call_begin(fd, "/lockstep.v1.Coordinator/Session", 5);
    hear(fd, &heard, 3, 0, 2 * wait_bound_ms());
    close(fd);
    daemon_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_has_a_bound_of_calls),
        cmocka_unit_test(silent_calls_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
