// SPDX-License-Identifier: Apache-2.0
//
// The HTTP side without a coordinator: events as they come, clients that do not read or go away,
// questions to workers.

#include "server/http/parts.h"
#include "tests/support/bounds.h"
#include "tests/support/http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEAF_MS 1500
#define REQUEST_MS 1000
#define TOKEN "0123456789abcdef"

static struct http_fixture server;
static char text[4 * 1024 * 1024];
static char token_path[64];
static uint32_t request_ms = REQUEST_MS;

static uint64_t bound_ms(void)
{
    return test_bound_ms(10000);
}

// ---- the server ---------------------------------------------------------------------------------

static void write_token(const char *token)
{
    FILE *file;
    snprintf(token_path, sizeof(token_path), "/tmp/lockstep_stream_token_%d", (int)getpid());
    file = fopen(token_path, "we");
    assert_non_null(file);
    fprintf(file, "%s\n", token);
    fclose(file);
}

static void open_with(const char *token, bool exposed)
{
    char error[256];
    const struct http_config config = {.endpoint.exposed = exposed,
                                       .deaf_ms = DEAF_MS,
                                       .request_ms = request_ms,
                                       .token_file = token ? token_path : NULL};
    if (token)
        write_token(token);
    if (http_fixture_open(&server, config, error, sizeof(error)) < 0)
        fail_msg("%s", error);
}

static int setup(void **state)
{
    (void)state;
    open_with(NULL, false);
    return 0;
}

// A server with a request timeout so long that it closes no slow connection.
static int setup_patient(void **state)
{
    (void)state;
    request_ms = 600000;
    open_with(NULL, false);
    request_ms = REQUEST_MS;
    return 0;
}

static int setup_with_token(void **state)
{
    (void)state;
    open_with(TOKEN, true);
    return 0;
}

static int setup_exposed(void **state)
{
    (void)state;
    open_with(NULL, true);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    http_fixture_close(&server);
    if (token_path[0])
        unlink(token_path);
    return 0;
}

// ---- clients ----------------------------------------------------------------------------------

// Sends a request. received: bytes that the kernel may hold for it; 0: as it likes.
static int request_headers(const char *path, const char *headers, int received)
{
    char line[512];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(http_port(server.http))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (received > 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &received, sizeof(received));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    int size =
        snprintf(line, sizeof(line), "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, headers);
    assert_int_equal(write(fd, line, (size_t)size), size);
    return fd;
}

static int request(const char *path)
{
    return request_headers(path, "", 0);
}

// Reads until this was there so many times; what came is in `text`. False: it ended before.
static bool read_until(int fd, const char *part, int times)
{
    const uint64_t deadline_ms = clock_now_ms() + bound_ms();
    size_t size = 0;
    text[0] = '\0';
    for (;;) {
        const char *place = text;
        int found = 0;
        while ((place = strstr(place, part))) {
            place++;
            found++;
        }
        if (found >= times)
            return true;
        const uint64_t now_ms = clock_now_ms();
        struct pollfd ready = {fd, POLLIN, 0};
        if (now_ms >= deadline_ms || poll(&ready, 1, (int)(deadline_ms - now_ms)) <= 0)
            fail_msg("'%s' did not come %d times, but %zu bytes:\n%.2000s", part, times, size,
                     text);
        const ssize_t got = read(fd, text + size, sizeof(text) - 1 - size);
        if (got <= 0)
            return false;
        size += (size_t)got;
        text[size] = '\0';
    }
}

static void expect(int fd, const char *part, int times)
{
    if (!read_until(fd, part, times))
        fail_msg("it ended before '%s' came %d times:\n%.2000s", part, times, text);
}

// Sends one GET, and returns the whole answer.
static const char *get(const char *path, const char *headers)
{
    char all[256];
    snprintf(all, sizeof(all), "%sConnection: close\r\n", headers);
    int fd = request_headers(path, all, 0);
    while (read_until(fd, "\1never\1", 1))
        ;
    close(fd);
    return text;
}

static void expect_metric(const char *line, bool wanted)
{
    const uint64_t deadline_ms = clock_now_ms() + bound_ms();
    while ((strstr(get("/metrics", ""), line) != NULL) != wanted) {
        if (clock_now_ms() >= deadline_ms)
            fail_msg("'%s' in the metrics is not %d:\n%s", line, wanted, text);
        poll(NULL, 0, 20);
    }
}

// ---- events -----------------------------------------------------------------------------------

// Each job numbers its own stalls, so the first stall of another job is a new one.
static void stall_of_another_job_is_sent(void **state)
{
    (void)state;
    atomic_store(&server.stall, 1);
    int fd = request("/events");
    expect(fd, "event: stall\ndata: {\"job\":\"job\"", 1);
    atomic_store(&server.renamed, true);
    expect(fd, "event: stall\ndata: {\"job\":\"other\"", 1);
    close(fd);
}

static void events_come_every_second(void **state)
{
    (void)state;
    int fd = request("/api/v1/jobs/job/events");
    expect(fd, "event: state\ndata: {\"job\":{\"name\":\"job\"", 2);
    assert_non_null(strstr(text, "Content-Type: text/event-stream"));
    assert_non_null(strstr(text, "Content-Security-Policy: default-src 'none'"));
    assert_non_null(strstr(text, "retry: 2000\n\n"));
    assert_null(strstr(text, "event: stall"));
    close(fd);
    expect_metric("event_streams 0\n", true);
}

// Not with the next second: the test would come once in a state's time else.
static void stall_is_told_at_once(void **state)
{
    (void)state;
    int fd = request("/events");
    expect(fd, "event: state", 1);
    const uint64_t begun_ms = clock_now_ms();
    atomic_store(&server.stall, 5);
    expect(fd,
           "event: stall\ndata: {\"job\":\"job\",\"number\":5,\"active\":true,\"kind\":\"link\"",
           1);
    assert_true(clock_now_ms() - begun_ms < bound_ms() / 10);
    expect(fd, "event: state", 1);
    close(fd);
}

// Two lines of one millisecond, of which the second is written after the first was sent.
static void lines_of_one_time_are_sent(void **state)
{
    (void)state;
    int fd = request("/events");
    expect(fd, "event: state", 1);
    atomic_store(&server.lines_ms, clock_now_ms());
    for (uint32_t line = 1; line <= 3; line++) {
        atomic_store(&server.lines, line);
        expect(fd, "event: log\ndata: {\"job\":\"job\"", 1);
    }
    expect(fd, "event: state", 2);
    assert_null(strstr(text, "event: log"));
    close(fd);
}

// Condition: a client takes nothing. Decision: it gets no more than it may leave unread, and is
// closed; another one goes on meanwhile.
static void deaf_client_is_dropped(void **state)
{
    (void)state;
    atomic_store(&server.workers, LOCKSTEP_MAX_WORLD); // 300 KB a state.
    int deaf = request_headers("/api/v1/jobs/job/events", "", 4096);
    int other = request("/api/v1/jobs/job/events");
    expect_metric("event_streams 2\n", true);
    expect(other, "event: state", 3);
    expect_metric("event_streams_skipped_total 0\n", false);
    expect_metric("event_streams 1\n", true);
    expect(other, "event: state", 1);
    // The reader gets the bytes that had been sent, and then the end.
    while (read_until(deaf, "\1never\1", 1))
        ;
    close(deaf);
    close(other);
}

// Clients that come and go at any moment, and one that talks all the time.
static void clients_come_and_go(void **state)
{
    (void)state;
    static const char noise[8192] = "noise";
    static const struct linger abrupt = {.l_onoff = 1};
    int talker = request("/events");
    for (int round = 0; round < 40; round++) {
        int fd = request(round % 2 ? "/events" : "/api/v1/jobs/job/events");
        if (round % 4 > 1)
            expect(fd, "HTTP/1.1 200", 1);
        if (round % 3 == 0)
            shutdown(fd, SHUT_WR);
        if (round % 5 == 0) // Closing it resets the connection.
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &abrupt, sizeof(abrupt));
        (void)!send(talker, noise, sizeof(noise), MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    expect(talker, "event: state", 2);
    expect_metric("event_streams 1\n", true);
    close(talker);
}

static void streams_have_a_bound(void **state)
{
    (void)state;
    int fds[HTTP_STREAMS];
    for (size_t i = 0; i < HTTP_STREAMS; i++)
        fds[i] = request("/events");
    for (size_t i = 0; i < HTTP_STREAMS; i++)
        expect(fds[i], "event: state", 1);
    assert_non_null(strstr(get("/events", ""), "HTTP/1.1 503"));
    assert_non_null(strstr(text, "/api/v1/jobs/{job}/state"));
    assert_non_null(strstr(get("/api/v1/jobs/job/state", ""), "{\"job\":{\"name\":\"job\""));
    for (size_t i = 0; i < HTTP_STREAMS; i++)
        close(fds[i]);
    expect_metric("event_streams 0\n", true);
}

static void what_is_not_there_is_404(void **state)
{
    (void)state;
    static const char *const paths[] = {"/api/v1/jobs/other/events",
                                        "/api/v1/jobs/job/nothing",
                                        "/api/v1/jobs/job/ranks/x/stack",
                                        "/api/v1/jobs/job/ranks/1024/stack",
                                        "/api/v1/jobs/job/ranks/9/stack?fresh=1",
                                        "/timeline?ranks=1023",
                                        "/api/v1/jobs/job/timeline?ranks=4-9",
                                        "/ranks//stack",
                                        "/state",
                                        "/page.html",
                                        "/../page.js",
                                        "/api/v1/jobs//events",
                                        "/ranks/0/stack"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (!strstr(get(paths[i], ""), "HTTP/1.1 404"))
            fail_msg("%s gave %.100s", paths[i], text);
    }
    assert_non_null(strstr(get("/timeline?ranks=3-1", ""), "HTTP/1.1 400"));
    assert_non_null(strstr(get("/timeline?ranks=0-16", ""), "HTTP/1.1 400"));
    assert_non_null(strstr(get("/page.js", ""), "Content-Type: text/javascript"));
    assert_non_null(strstr(get("/page.css", ""), "Content-Type: text/css"));
}

// ---- questions --------------------------------------------------------------------------------

static void stack_is_asked_for(void **state)
{
    (void)state;
    assert_non_null(strstr(get("/api/v1/jobs/job/ranks/2/stack?fresh=1", ""), "HTTP/1.1 200"));
    assert_non_null(strstr(text, "\"rank\":2,\"host\":\"\",\"pid\":7"));
    assert_non_null(strstr(text, "\"fresh\":true"));
    atomic_store(&server.answering, false); // The one that is known is young enough, and says so.
    assert_non_null(strstr(get("/ranks/2/stack?fresh=1", ""), "HTTP/1.1 200"));
    assert_non_null(strstr(text, "\"fresh\":false"));
    assert_non_null(strstr(get("/ranks/2/stack", ""), "HTTP/1.1 200"));
    assert_non_null(strstr(get("/api/v1/ranks/2/stack", ""), "HTTP/1.1 200"));
}

static void timeline_is_asked_for(void **state)
{
    (void)state;
    assert_non_null(strstr(get("/api/v1/jobs/job/timeline?ranks=1-2", ""), "HTTP/1.1 200"));
    assert_non_null(strstr(text, "\"name\":\"rank 1 ()\""));
    assert_non_null(strstr(text, "\"name\":\"rank 2 ()\""));
    assert_null(strstr(text, "\"name\":\"rank 0 ()\""));
    assert_non_null(strstr(get("/timeline", ""), "\"name\":\"rank 3 ()\""));
    // Workers are not asked for what is young enough: the answer comes at once.
    atomic_store(&server.answering, false);
    const uint64_t began_ms = clock_now_ms();
    assert_non_null(strstr(get("/timeline", ""), "\"name\":\"rank 3 ()\""));
    assert_true(clock_now_ms() - began_ms < HTTP_WAIT_MS);
}

// Clients that wait for a worker which never answers: one goes away, one is told, one is still
// there when the server ends.
static void worker_that_does_not_answer(void **state)
{
    (void)state;
    atomic_store(&server.answering, false);
    close(request("/ranks/0/stack?fresh=1"));
    assert_non_null(strstr(get("/ranks/1/stack?fresh=1", ""), "HTTP/1.1 503"));
    assert_non_null(strstr(text, "did not answer"));
    int fd = request("/ranks/2/stack?fresh=1");
    assert_non_null(strstr(get("/healthz", ""), "HTTP/1.1 200"));
    close(fd);
    (void)request("/ranks/3/stack?fresh=1"); // Closed by the end of this test's server.
    assert_non_null(strstr(get("/healthz", ""), "HTTP/1.1 200"));
}

static void token_is_needed_where_there_is_one(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "Authorization: Bearer \r\n",
                                        "Authorization: Bearer 0123456789abcdeX\r\n",
                                        "Authorization: Bearer 0123456789abcdef0\r\n",
                                        "Authorization: Bearer 0123456789abcde\r\n",
                                        "Authorization: Basic 0123456789abcdef\r\n"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_non_null(strstr(get("/ranks/0/stack?fresh=1", wrong[i]), "HTTP/1.1 401"));
        assert_non_null(strstr(get("/timeline", wrong[i]), "HTTP/1.1 401"));
        assert_non_null(strstr(get("/events", wrong[i]), "HTTP/1.1 401"));
        assert_non_null(strstr(get("/api/v1/jobs", wrong[i]), "HTTP/1.1 401"));
        assert_non_null(strstr(get("/api/v1/stalls", wrong[i]), "HTTP/1.1 401"));
        // The same for a job that there is and one that there is not.
        assert_non_null(strstr(get("/api/v1/jobs/job/state", wrong[i]), "HTTP/1.1 401"));
        assert_non_null(strstr(get("/api/v1/jobs/nobody/state", wrong[i]), "HTTP/1.1 401"));
        assert_non_null(strstr(get("/metrics", wrong[i]), "HTTP/1.1 200"));
        assert_null(strstr(text, "job=\""));
        assert_non_null(strstr(get("/healthz", wrong[i]), "HTTP/1.1 200"));
        assert_non_null(strstr(get("/", wrong[i]), "HTTP/1.1 200"));
    }
    assert_non_null(strstr(get("/timeline", ""), "HTTP/1.1 401"));
    assert_non_null(strstr(text, "WWW-Authenticate: Bearer"));
    static const char right[] = "Authorization: Bearer " TOKEN "\r\n";
    assert_non_null(strstr(get("/ranks/0/stack?fresh=1", right), "HTTP/1.1 200"));
    assert_non_null(strstr(get("/timeline", right), "HTTP/1.1 200"));
    assert_non_null(strstr(get("/api/v1/stalls", right), "HTTP/1.1 200"));
    assert_non_null(strstr(get("/metrics", right), "job=\"job\""));
    int fd = request_headers("/events", right, 0);
    assert_true(read_until(fd, "event: state", 1));
    close(fd);
}

// Condition: the file changes. Decision: the new token is good and the old one is not; a file that
// holds none changes nothing.
static void token_is_read_again(void **state)
{
    (void)state;
    static const char before[] = "Authorization: Bearer " TOKEN "\r\n";
    static const char after[] = "Authorization: Bearer fedcba9876543210-new\r\n";
    assert_non_null(strstr(get("/timeline", after), "HTTP/1.1 401"));
    write_token("fedcba9876543210-new");
    assert_non_null(strstr(get("/timeline", after), "HTTP/1.1 200"));
    assert_non_null(strstr(get("/timeline", before), "HTTP/1.1 401"));
    write_token("short");
    assert_non_null(strstr(get("/timeline", after), "HTTP/1.1 200"));
    assert_non_null(strstr(get("/timeline", "Authorization: Bearer short\r\n"), "HTTP/1.1 401"));
}

// ---- connections that cost ----------------------------------------------------------------------

// Sends a byte every 50 ms. Returns the time until the server has ended the connection.
static uint64_t drip(int fd)
{
    const uint64_t begin_ms = clock_now_ms();
    char byte;
    while (clock_now_ms() < begin_ms + bound_ms()) {
        (void)!send(fd, "a", 1, MSG_NOSIGNAL);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, 50) > 0 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0)
            break;
    }
    close(fd);
    return clock_now_ms() - begin_ms;
}

// Condition: a request that never ends, though something comes all the time (slow loris); and a
// connection that says nothing. Decision: both end after the time for a request.
static void a_slow_request_is_cut(void **state)
{
    (void)state;
    int slow = request_headers("/healthz", "X-Slow: ", 0); // The blank line is missing.
    int silent = request("/healthz");
    assert_true(read_until(silent, "ok\n", 1)); // And then nothing.
    const uint64_t took_ms = drip(slow);
    assert_true(took_ms >= REQUEST_MS / 2 && took_ms < bound_ms());
    assert_false(read_until(silent, "never", 1));
    close(silent);
    assert_non_null(strstr(get("/metrics", ""), "http_connections_late_total"));
    assert_null(strstr(text, "http_connections_late_total 0\n"));
}

// Condition: one address opens more connections than it may. Decision: those above are closed, and
// who asks next is answered as soon as some of them have gone.
static void one_address_has_a_bound(void **state)
{
    (void)state;
    static int fds[HTTP_PEER_CONNECTIONS + 40];
    const size_t count = sizeof(fds) / sizeof(fds[0]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(http_port(server.http))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&address, sizeof(address)), 0);
    }
    size_t closed = 0;
    const uint64_t deadline_ms = clock_now_ms() + bound_ms();
    while (closed < count - HTTP_PEER_CONNECTIONS && clock_now_ms() < deadline_ms) {
        closed = 0;
        for (size_t i = 0; i < count; i++) {
            char byte;
            closed += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0;
        }
        poll(NULL, 0, 10);
    }
    assert_true(closed >= count - HTTP_PEER_CONNECTIONS);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    const char *answer = "";
    while (!strstr(answer, "HTTP/1.1 200") && clock_now_ms() < deadline_ms) {
        poll(NULL, 0, 50);
        answer = get("/metrics", "");
    }
    assert_non_null(strstr(answer, "http_connections_refused_total"));
    assert_null(strstr(answer, "http_connections_refused_total 0\n"));
}

// The number of HTTP connections that /metrics shows.
static unsigned connections_said(void)
{
    static const char name[] = "\nlockstep_coordinator_http_connections ";
    assert_non_null(strstr(get("/metrics", ""), "HTTP/1.1 200"));
    const char *said = strstr(text, name);
    assert_non_null(said);
    return (unsigned)strtoul(said + strlen(name), NULL, 10);
}

// Condition: many addresses, each within its bound, fill all places and say nothing. Decision: the
// next client is answered all the same, in the place of one of them.
static void silent_ones_keep_nobody_out(void **state)
{
    (void)state;
    static int fds[HTTP_CONNECTIONS + 20];
    const size_t count = sizeof(fds) / sizeof(fds[0]);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(http_port(server.http))};
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 3 * HTTP_CONNECTIONS)
        skip(); // Both ends are ours.
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; i < count; i++) {
        struct sockaddr_in from = {.sin_family = AF_INET};
        from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 256 * (1 + (uint32_t)i / 100));
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(bind(fds[i], (struct sockaddr *)&from, sizeof(from)), 0);
        (void)connect(fds[i], (struct sockaddr *)&to, sizeof(to));
    }
    // A kernel whose queue is full, because the server was held up, lets some come in a second
    // only.
    uint64_t deadline_ms = clock_now_ms() + bound_ms();
    unsigned connections = connections_said();
    while (connections <= HTTP_CONNECTIONS / 2 && clock_now_ms() < deadline_ms) {
        poll(NULL, 0, 150);
        connections = connections_said();
    }
    assert_in_range(connections, HTTP_CONNECTIONS / 2 + 1, HTTP_CONNECTIONS);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    // All of them are forgotten; the one that asks is left.
    deadline_ms = clock_now_ms() + bound_ms();
    while (!strstr(get("/metrics", ""), "_http_connections 1\n") && clock_now_ms() < deadline_ms)
        poll(NULL, 0, 150);
    assert_non_null(strstr(text, "_http_connections 1\n"));
}

// Answers tell browsers to trust nothing that we did not send.
static void answers_are_hardened(void **state)
{
    (void)state;
    static const char *const paths[] = {"/", "/page.js", "/metrics", "/api/v1/jobs", "/nothing"};
    static const char *const headers[] = {"X-Content-Type-Options: nosniff",
                                          "Referrer-Policy: no-referrer",
                                          "Cache-Control: no-store",
                                          "frame-ancestors 'none'",
                                          "default-src 'none'",
                                          "Cross-Origin-Resource-Policy: same-origin",
                                          "Cross-Origin-Opener-Policy: same-origin"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        const char *answer = get(paths[i], "");
        for (size_t h = 0; h < sizeof(headers) / sizeof(headers[0]); h++) {
            if (!strstr(answer, headers[h]))
                fail_msg("%s has no '%s'", paths[i], headers[h]);
        }
        assert_null(strstr(answer, "Access-Control-Allow"));
    }
}

static void without_a_token_others_see_no_stacks(void **state)
{
    (void)state;
    assert_non_null(strstr(get("/ranks/0/stack?fresh=1", ""), "HTTP/1.1 403"));
    assert_non_null(strstr(get("/timeline", ""), "HTTP/1.1 403"));
    assert_non_null(strstr(get("/events", ""), "HTTP/1.1 403"));
    assert_non_null(strstr(text, "--http-token-file"));
    assert_non_null(strstr(get("/api/v1/jobs/job/state", ""), "HTTP/1.1 200"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(stall_of_another_job_is_sent),
        TEST(events_come_every_second),
        TEST(stall_is_told_at_once),
        TEST(lines_of_one_time_are_sent),
        TEST(deaf_client_is_dropped),
        TEST(clients_come_and_go),
        TEST(streams_have_a_bound),
        TEST(what_is_not_there_is_404),
        TEST(stack_is_asked_for),
        TEST(timeline_is_asked_for),
        TEST(worker_that_does_not_answer),
        cmocka_unit_test_setup_teardown(token_is_needed_where_there_is_one, setup_with_token,
                                        teardown),
        cmocka_unit_test_setup_teardown(token_is_read_again, setup_with_token, teardown),
        cmocka_unit_test_setup_teardown(without_a_token_others_see_no_stacks, setup_exposed,
                                        teardown),
        TEST(a_slow_request_is_cut),
        TEST(one_address_has_a_bound),
        cmocka_unit_test_setup_teardown(silent_ones_keep_nobody_out, setup_patient, teardown),
        TEST(answers_are_hardened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
