// SPDX-License-Identifier: Apache-2.0
//
// Requests to the HTTP side, over a real connection: the bytes of an input, then the end of that
// direction. The server shows one job, whose workers answer what they are asked.

#include "base/clock.h"
#include "base/thread.h"
#include "server/http.h"
#include "tests/fuzz/fuzz.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 20000

static struct {
    struct snapshot_board board;
    struct asks asks;
    struct archive archive;
    struct thread thread;
    struct log log;
    struct http *http;
} server;

// One job of two workers.
static struct snapshot *make_picture(void)
{
    struct snapshot *snapshot = calloc(1, sizeof(*snapshot));
    FUZZ_CHECK(snapshot != NULL);
    snapshot->made_ms = clock_now_ms();
    snapshot->job_count = 1;
    snprintf(snapshot->jobs[0].view.name, sizeof(snapshot->jobs[0].view.name), "job");
    snapshot->worker_count = snapshot->jobs[0].workers.count = 2;
    snapshot->workers = calloc(2, sizeof(*snapshot->workers));
    snapshot->modules = calloc(1, sizeof(*snapshot->modules));
    snapshot->stalls = calloc(1, sizeof(*snapshot->stalls));
    snapshot->rates = calloc(1, sizeof(*snapshot->rates));
    snapshot->events = calloc(1, sizeof(*snapshot->events));
    FUZZ_CHECK(snapshot->workers && snapshot->modules && snapshot->stalls && snapshot->rates &&
               snapshot->events);
    return snapshot;
}

// Workers answer with one thread, or one event.
static void answer_ask(const struct ask *ask)
{
    static struct up_answer answer;
    const struct peer_view who = {.job = "job", .rank = ask->rank, .pid = 7};
    answer = (struct up_answer){.id = clock_now_ms() + 1, .last = true, .clock_ns = 1};
    if (ask->what & INSPECT_STACKS) {
        answer.kind = ANSWER_THREADS;
        answer.u.threads.count = 1;
    } else {
        answer.kind = ANSWER_EVENTS;
        answer.u.events.count = 1;
    }
    archive_put(&server.archive, &who, &answer, clock_now_ms());
}

static void run_core(void *context)
{
    (void)context;
    for (;;) {
        struct ask ask;
        if (snapshot_wanted(&server.board))
            snapshot_publish(&server.board, make_picture());
        while (asks_take(&server.asks, &ask))
            answer_ask(&ask);
        poll(NULL, 0, 1);
    }
}

static void wake(void *context)
{
    (void)context;
}

static void server_open(void)
{
    char error[256];
    const struct http_config config = {.endpoint = {.host = "127.0.0.1"},
                                       .process = {.version = "1"},
                                       .board = &server.board,
                                       .asks = &server.asks,
                                       .archive = &server.archive,
                                       .log = &server.log};
    log_init(&server.log, LOG_LEVEL_ERROR, NULL, NULL);
    snapshot_board_init(&server.board, wake, NULL);
    asks_init(&server.asks);
    archive_init(&server.archive);
    FUZZ_CHECK(thread_start(&server.thread, "core", run_core, NULL) == 0);
    FUZZ_CHECK(http_open(&config, &server.http, error, sizeof(error)) == 0);
}

static int server_connect(void)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons(http_port(server.http)),
                                        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct linger at_once = {.l_onoff = 1};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    FUZZ_CHECK(connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
    return fd;
}

// It answers or ends the connection; a stream of events goes on, so its first bytes are enough.
static void server_answers(int fd)
{
    char answer[4096];
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&readable, 1, ANSWER_MS);
    while (ready < 0 && errno == EINTR); // libFuzzer's timer.
    FUZZ_CHECK(ready == 1);
    (void)recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char well[] = "GET /healthz HTTP/1.0\r\n\r\n";
    int fd;
    if (server.http == NULL)
        server_open();
    fd = server_connect();
    if (send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size) {
        (void)shutdown(fd, SHUT_WR);
        server_answers(fd);
    }
    close(fd);
    fd = server_connect();
    FUZZ_CHECK(send(fd, well, sizeof(well) - 1, MSG_NOSIGNAL) == (ssize_t)sizeof(well) - 1);
    server_answers(fd);
    close(fd);
    return 0;
}
