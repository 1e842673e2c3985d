// SPDX-License-Identifier: Apache-2.0
//
// For tests of the daemon: a real lockstep-coordinator as a child process on ports that the system
// chose, workers that speak to it through worker/control/control.h, and raw connections. Every wait
// has a deadline, and a wait that fails shows what the daemon said. One test at a time, test's
// thread.

#ifndef LOCKSTEP_TESTS_TEST_SERVER_DAEMON_H
#define LOCKSTEP_TESTS_TEST_SERVER_DAEMON_H

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "protos/types.h"
#include "tests/support/bounds.h"
#include "worker/control/control.h"
#include "worker/control/grpc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define DAEMON_OUTPUT_BYTES (256 * 1024)
#define DAEMON_ARGUMENTS 16
#define WAIT_MS 10000 // An upper bound of every wait, on a release build.

static inline uint64_t wait_bound_ms(void)
{
    return test_bound_ms(WAIT_MS);
}

// ---- the daemon -------------------------------------------------------------------------------

struct daemon {
    pid_t pid;
    int errors; // Its stderr.
    uint16_t grpc;
    uint16_t http;
    char output[DAEMON_OUTPUT_BYTES]; // Its stderr so far.
    size_t size;
};

static inline void daemon_path(char *path, size_t bytes)
{
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    snprintf(path, bytes, "%s/lockstep-coordinator", folder ? folder : "build/bin");
}

// Runs in the child. descriptors: hard limit of open files, 0: as it is.
static inline void daemon_exec(char **arguments, unsigned descriptors)
{
    char path[4096];
    daemon_path(path, sizeof(path));
    prctl(PR_SET_PDEATHSIG, SIGKILL); // A test that fails leaves none behind.
    struct rlimit limit = {descriptors, descriptors};
    if (descriptors > 0 && setrlimit(RLIMIT_NOFILE, &limit) < 0)
        _exit(126);
    arguments[0] = path;
    execv(path, arguments);
    _exit(127);
}

// Starts the daemon with these arguments (up to a NULL), and does not wait until it is ready.
static inline void daemon_spawn(struct daemon *daemon, const char *const *arguments,
                                unsigned descriptors)
{
    char *list[DAEMON_ARGUMENTS + 2] = {0};
    int ends[2];
    for (int i = 0; arguments[i] && i < DAEMON_ARGUMENTS; i++)
        list[i + 1] = (char *)(uintptr_t)arguments[i];
    memset(daemon, 0, sizeof(*daemon));
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    daemon->pid = fork();
    assert_true(daemon->pid >= 0);
    if (daemon->pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        daemon_exec(list, descriptors);
    }
    close(ends[1]);
    daemon->errors = ends[0];
}

// Reads more of the daemon's stderr. Returns false if nothing comes until the deadline, or the
// daemon has closed its end.
static inline bool daemon_read(struct daemon *daemon, uint64_t deadline_ms)
{
    uint64_t now_ms = clock_now_ms();
    int wait_ms = deadline_ms > now_ms ? (int)(deadline_ms - now_ms) : 0;
    struct pollfd ready = {daemon->errors, POLLIN, 0};
    if (poll(&ready, 1, wait_ms) <= 0)
        return false;
    if (daemon->size >= sizeof(daemon->output) - 1)
        return false;
    ssize_t got = read(daemon->errors, daemon->output + daemon->size,
                       sizeof(daemon->output) - 1 - daemon->size);
    if (got <= 0)
        return false;
    daemon->size += (size_t)got;
    daemon->output[daemon->size] = '\0';
    return true;
}

static inline bool daemon_said(struct daemon *daemon, const char *text)
{
    return strstr(daemon->output, text) != NULL;
}

// Waits until the daemon has printed this text.
static inline void daemon_expect(struct daemon *daemon, const char *text)
{
    uint64_t deadline_ms = clock_now_ms() + wait_bound_ms();
    while (!daemon_said(daemon, text)) {
        if (!daemon_read(daemon, deadline_ms))
            fail_msg("the daemon did not say '%s'%s, but:\n%s", text,
                     clock_now_ms() < deadline_ms ? " and has ended" : "", daemon->output);
    }
}

static inline uint16_t daemon_port(const struct daemon *daemon, const char *name)
{
    const char *place = strstr(daemon->output, name);
    assert_non_null(place);
    const char *colon = strchr(place, ':');
    assert_non_null(colon);
    return (uint16_t)atoi(colon + 1);
}

// Starts the daemon on free ports and waits until it is ready. more: further arguments up to a
// NULL.
static inline void daemon_start(struct daemon *daemon, const char *const *more,
                                unsigned descriptors)
{
    const char *arguments[DAEMON_ARGUMENTS + 1] = {"--listen=127.0.0.1:0", "--http=127.0.0.1:0",
                                                   "--log-level=debug"};
    for (int i = 0; more && more[i]; i++)
        arguments[3 + i] = more[i];
    daemon_spawn(daemon, arguments, descriptors);
    daemon_expect(daemon, "event=coordinator_ready");
    daemon_expect(daemon, " grpc_core=");
    daemon->grpc = daemon_port(daemon, " grpc=");
    daemon->http = daemon_port(daemon, " http=");
}

// Reads to the end and returns the status of waitpid. A daemon that does not end is killed.
static inline int daemon_wait(struct daemon *daemon)
{
    int status = -1;
    uint64_t deadline_ms = clock_now_ms() + wait_bound_ms();
    while (daemon_read(daemon, deadline_ms))
        ;
    if (clock_now_ms() >= deadline_ms)
        kill(daemon->pid, SIGKILL);
    waitpid(daemon->pid, &status, 0);
    close(daemon->errors);
    return status;
}

static inline void daemon_expect_exit(struct daemon *daemon, int code)
{
    int status = daemon_wait(daemon);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        fail_msg("the daemon ended with status 0x%x instead of code %d:\n%s", (unsigned)status,
                 code, daemon->output);
}

static inline void daemon_stop(struct daemon *daemon)
{
    kill(daemon->pid, SIGTERM);
    daemon_expect_exit(daemon, 0);
}

// ---- raw connections --------------------------------------------------------------------------

static inline int raw_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

// Reads until the other side ends or the bound is reached; returns how much came.
static inline size_t raw_read_all(int fd, char *bytes, size_t capacity)
{
    size_t size = 0;
    uint64_t deadline_ms = clock_now_ms() + wait_bound_ms();
    for (;;) {
        uint64_t now_ms = clock_now_ms();
        struct pollfd ready = {fd, POLLIN, 0};
        if (now_ms >= deadline_ms || poll(&ready, 1, (int)(deadline_ms - now_ms)) <= 0)
            break;
        ssize_t got = read(fd, bytes + size, capacity - 1 - size);
        if (got <= 0)
            break;
        size += (size_t)got;
    }
    bytes[size] = '\0';
    return size;
}

// One GET; the whole answer, headers included.
static inline void http_get(uint16_t port, const char *path, char *answer, size_t capacity)
{
    char request[512];
    int size = snprintf(request, sizeof(request),
                        "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    answer[0] = '\0';
    int fd = raw_connect(port);
    if (fd < 0)
        return;
    if (write(fd, request, (size_t)size) == size)
        raw_read_all(fd, answer, capacity);
    close(fd);
}

// Repeats the GET until an answer contains this text. The daemon's answers may be 100 ms old.
static inline void http_await(uint16_t port, const char *path, const char *text, char *answer,
                              size_t capacity)
{
    uint64_t deadline_ms = clock_now_ms() + wait_bound_ms();
    do {
        http_get(port, path, answer, capacity);
        if (strstr(answer, text))
            return;
        poll(NULL, 0, 10);
    } while (clock_now_ms() < deadline_ms);
    fail_msg("%s does not say '%s', but:\n%s", path, text, answer);
}

// ---- workers ----------------------------------------------------------------------------------

#define WORKER_MESSAGES 16

struct worker {
    struct control *control;
    struct mutex mutex;
    struct cond changed;
    struct down_message messages[WORKER_MESSAGES]; // The first that came.
    unsigned count;
    bool ended;
    char text[LOCKSTEP_TEXT_BYTES];
};

static inline void worker_received(void *context, const struct down_message *message)
{
    struct worker *worker = context;
    mutex_lock(&worker->mutex);
    if (worker->count < WORKER_MESSAGES)
        worker->messages[worker->count++] = *message;
    cond_broadcast(&worker->changed);
    mutex_unlock(&worker->mutex);
}

static inline void worker_ended(void *context, const char *text)
{
    struct worker *worker = context;
    mutex_lock(&worker->mutex);
    worker->ended = true;
    snprintf(worker->text, sizeof(worker->text), "%s", text);
    cond_broadcast(&worker->changed);
    mutex_unlock(&worker->mutex);
}

// tls_dir NULL: in plaintext.
// patience_ms: how long the worker asks again when the coordinator tells it to come later.
static inline void worker_open_patient(struct worker *worker, uint16_t port, const char *tls_dir,
                                       const char *job, uint64_t patience_ms)
{
    char address[64];
    char error[LOCKSTEP_TEXT_BYTES];
    memset(worker, 0, sizeof(*worker));
    mutex_init(&worker->mutex);
    cond_init(&worker->changed);
    struct control_events events = {
        .received = worker_received, .ended = worker_ended, .context = worker};
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    const struct control_target target = {address, patience_ms, tls_dir, job};
    if (control_open(&target, &events, &worker->control, error, sizeof(error)) < 0)
        fail_msg("control_open: %s", error);
}

static inline void worker_open_tls(struct worker *worker, uint16_t port, const char *tls_dir,
                                   const char *job)
{
    worker_open_patient(worker, port, tls_dir, job, wait_bound_ms());
}

static inline void worker_open(struct worker *worker, uint16_t port)
{
    worker_open_tls(worker, port, NULL, NULL);
}

static inline void worker_close(struct worker *worker)
{
    control_close(worker->control, 1000);
    cond_fini(&worker->changed);
    mutex_fini(&worker->mutex);
}

static inline void worker_hello(struct worker *worker, const char *job, uint8_t id, uint32_t world)
{
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *hello = &message.u.hello;
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    snprintf(hello->job, sizeof(hello->job), "%s", job);
    memset(hello->uuid.bytes, id, sizeof(hello->uuid.bytes));
    snprintf(hello->host_id, sizeof(hello->host_id), "host");
    snprintf(hello->host, sizeof(hello->host), "host");
    snprintf(hello->address, sizeof(hello->address), "tcp:127.0.0.1:%u", 1000u + id);
    hello->pid = (uint32_t)getpid();
    hello->world_min = world;
    hello->world_max = world;
    hello->open_timeout_ms = LOCKSTEP_OPEN_TIMEOUT_MS;
    assert_int_equal(control_send(worker->control, &message), 0);
}

// The first message of this kind, which stays in worker->messages. NULL: none came.
static inline const struct down_message *worker_message_locked(const struct worker *worker,
                                                               enum down_kind kind)
{
    for (unsigned i = 0; i < worker->count; i++) {
        if (worker->messages[i].kind == kind)
            return &worker->messages[i];
    }
    return NULL;
}

static inline bool worker_has_ended(struct worker *worker)
{
    mutex_lock(&worker->mutex);
    const bool ended = worker->ended;
    mutex_unlock(&worker->mutex);
    return ended;
}

static inline const struct down_message *worker_message(struct worker *worker, enum down_kind kind)
{
    mutex_lock(&worker->mutex);
    const struct down_message *message = worker_message_locked(worker, kind);
    mutex_unlock(&worker->mutex);
    return message;
}

// Waits for a message of this kind.
static inline void worker_expect(struct worker *worker, enum down_kind kind)
{
    uint64_t deadline_ms = clock_now_ms() + wait_bound_ms();
    mutex_lock(&worker->mutex);
    while (!worker_message_locked(worker, kind) && !worker->ended &&
           cond_wait_until(&worker->changed, &worker->mutex, deadline_ms))
        ;
    bool got = worker_message_locked(worker, kind) != NULL;
    mutex_unlock(&worker->mutex);
    if (!got)
        fail_msg("no message of kind %d came; %u messages, %s", (int)kind, worker->count,
                 worker->ended ? worker->text : "the stream stands");
}

// Waits for the end of the stream; its text must contain this.
static inline void worker_expect_end(struct worker *worker, const char *part)
{
    uint64_t deadline_ms = clock_now_ms() + wait_bound_ms();
    mutex_lock(&worker->mutex);
    while (!worker->ended && cond_wait_until(&worker->changed, &worker->mutex, deadline_ms))
        ;
    mutex_unlock(&worker->mutex);
    if (!worker->ended)
        fail_msg("the stream did not end");
    if (!strstr(worker->text, part))
        fail_msg("the stream ended with '%s', not with '%s'", worker->text, part);
}

#endif
