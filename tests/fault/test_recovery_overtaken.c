// SPDX-License-Identifier: Apache-2.0
//
// A rank that has not heard of a decision, because its coordinator died, comes to the next one,
// which knows the decision from the other ranks. What such a rank says is dropped until it is a
// member of the same generation as the others. So it says its modules of groups again: it is the
// first rank of a group, and proposes the layout of the group's module.
//
// Real processes. A relay holds back for a while what the first coordinator says to that rank. So
// it is asked for its report, and the decision does not come before the coordinator is killed.

#include "base/clock.h"
#include "tests/fault/process_world.h"

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RANKS = 4,
    OVERTAKEN = 2, // The rank behind the relay: the first one of the group when rank 0 is dead.
    CHUNK_BYTES = 16384,
    CHUNKS = 256, // The most reads of one stream that the relay holds back.
    STEPS = 3,
};

// Longer than it takes from the report of rank 2 to the decision at the other ranks.
#define DELAY_MS slow_ms(400)
// From the last gradient of a rank until it waits in lockstep_step_end.
#define SETTLED_MS slow_ms(100)

static struct coordinator_process coordinator;
static pid_t pids[RANKS + 1];

// Memory that the test, the ranks and the relay share.
static struct shared {
    _Atomic(uint64_t) delay_ms; // How long the relay holds back what comes from the coordinator.
    _Atomic(uint32_t) port; // The port of the relay. 0: the relay does not listen yet.
    _Atomic(uint32_t) waiting; // Ranks that wait in the first step.
    _Atomic(uint32_t) asked; // 1 when rank 2 was asked for its report.
    _Atomic(uint32_t) back; // Other ranks that the second coordinator has welcomed.
    char texts[RANKS][512];
} * shared;

// ---- The relay ----------------------------------------------------------------------------------

struct stream {
    int worker;
    int coordinator;
};

struct chunk {
    uint64_t due_ms;
    size_t count;
    char bytes[CHUNK_BYTES];
};

static bool write_all(int fd, const char *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        const ssize_t written = send(fd, bytes + done, count - done, MSG_NOSIGNAL);
        if (written <= 0)
            return false;
        done += (size_t)written;
    }
    return true;
}

static void end_stream(const struct stream *stream)
{
    shutdown(stream->worker, SHUT_RDWR);
    shutdown(stream->coordinator, SHUT_RDWR);
}

static void *to_coordinator(void *argument)
{
    const struct stream *stream = argument;
    static _Thread_local char bytes[CHUNK_BYTES];
    ssize_t count;
    do
        count = recv(stream->worker, bytes, sizeof(bytes), 0);
    while (count > 0 && write_all(stream->coordinator, bytes, (size_t)count));
    end_stream(stream);
    return NULL;
}

// When the coordinator closes its end, the worker does not get what is held back.
static void *to_worker(void *argument)
{
    const struct stream *stream = argument;
    struct chunk *chunks = calloc(CHUNKS, sizeof(*chunks));
    uint32_t first = 0;
    uint32_t end = 0;
    bool stands = chunks;
    while (stands) {
        const uint64_t now_ms = clock_now_ms();
        struct pollfd ready = {.fd = stream->coordinator, .events = POLLIN};
        const struct chunk *oldest = &chunks[first % CHUNKS];
        if (first != end && oldest->due_ms <= now_ms) {
            stands = write_all(stream->worker, oldest->bytes, oldest->count);
            first++;
            continue;
        }
        if (poll(&ready, 1, first == end ? -1 : (int)(oldest->due_ms - now_ms)) <= 0)
            continue;
        struct chunk *newest = &chunks[end % CHUNKS];
        const ssize_t count = recv(stream->coordinator, newest->bytes, sizeof(newest->bytes), 0);
        stands = count > 0 && end - first < CHUNKS - 1;
        newest->count = (size_t)count;
        newest->due_ms = clock_now_ms() + atomic_load(&shared->delay_ms);
        end++;
    }
    end_stream(stream);
    free(chunks);
    return NULL;
}

static int connect_to(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static void relay_main(void)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(own);
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (const struct sockaddr *)&own, sizeof(own)) < 0 || listen(listener, 8) < 0 ||
        getsockname(listener, (struct sockaddr *)&own, &length) < 0)
        _exit(1);
    atomic_store(&shared->port, ntohs(own.sin_port));
    for (;;) {
        struct stream *stream = malloc(sizeof(*stream));
        pthread_t threads[2];
        if (!stream)
            _exit(1);
        stream->worker = accept(listener, NULL, NULL);
        // Rank 2 comes to the second coordinator after the other ranks.
        while (atomic_load(&shared->asked) > 0 && atomic_load(&shared->back) < RANKS - 2)
            pause_us(1000);
        stream->coordinator = connect_to(coordinator.port);
        if (stream->coordinator < 0) {
            close(stream->worker);
            free(stream);
            continue;
        }
        if (pthread_create(&threads[0], NULL, to_coordinator, stream) != 0 ||
            pthread_create(&threads[1], NULL, to_worker, stream) != 0)
            _exit(1);
    }
}

// ---- The ranks ----------------------------------------------------------------------------------

static void need(uint32_t rank, int status, const char *what)
{
    if (status >= 0)
        return;
    snprintf(shared->texts[rank], sizeof(shared->texts[rank]), "%s: %s", what,
             lockstep_error_text());
    _exit(1);
}

// Rank 2 writes the first line just before it sends its report.
static void listen_to_log(void *context, lockstep_log_level level, const char *line)
{
    const bool overtaken = *(const uint32_t *)context == OVERTAKEN;
    (void)level;
    if (overtaken && strstr(line, "event=recovery_began"))
        atomic_store(&shared->asked, 1);
    if (!overtaken && strstr(line, "event=coordinator_back"))
        atomic_fetch_add(&shared->back, 1);
}

static lockstep_module *register_module(uint32_t rank, lockstep_session *session, const char *name,
                                        lockstep_group *group)
{
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module = NULL;
    parameter.name = "w";
    parameter.data = calloc(1, sizeof(float));
    parameter.gradient = calloc(1, sizeof(float));
    config.name = name;
    config.group = group;
    config.parameters = &parameter;
    config.parameter_count = 1;
    need(rank, lockstep_module_register(session, &config, &module), "register");
    return module;
}

static void call(uint32_t rank, lockstep_module *module)
{
    lockstep_call *call;
    need(rank, lockstep_call_begin(module, &call), "call_begin");
    need(rank, lockstep_grad_ready(module, call, 0, NULL, NULL), "grad_ready");
    need(rank, lockstep_call_end(call), "call_end");
}

// Rank 0 is never ready for the end of the first step.
static void rank_main(uint32_t rank)
{
    static const uint32_t members[] = {0, 2, 3};
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    lockstep_group *group;
    lockstep_module *of_group = NULL;
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u",
             rank == OVERTAKEN ? atomic_load(&shared->port) : coordinator.port);
    config.coordinator = address;
    config.world_size = RANKS;
    config.rank_hint = (int32_t)rank;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport = LOCKSTEP_TRANSPORT_TCP;
    config.log = listen_to_log;
    config.log_context = &rank;
    config.log_level = LOCKSTEP_LOG_INFO;
    need(rank, lockstep_open(&config, &session), "open");
    lockstep_module *of_all = register_module(rank, session, "all", NULL);
    if (rank != 1) {
        need(rank, lockstep_group_create(session, members, 3, "group", &group), "group");
        of_group = register_module(rank, session, "group", group);
    }
    need(rank, lockstep_start(session), "start");
    for (uint32_t step = 1; step <= STEPS; step++) {
        need(rank, lockstep_step_begin(session, NULL, NULL), "step_begin");
        if (rank == 0) {
            atomic_fetch_add(&shared->waiting, 1);
            pause();
        }
        call(rank, of_all);
        if (of_group)
            call(rank, of_group);
        if (step == 1)
            atomic_fetch_add(&shared->waiting, 1);
        need(rank, lockstep_step_end(session, NULL), "step_end");
    }
    need(rank, lockstep_close(session), "close");
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static pid_t start(void (*run)(uint32_t rank), uint32_t rank)
{
    const pid_t pid = process_fork();
    assert_true(pid >= 0);
    if (pid == 0)
        run(rank);
    return pid;
}

static void run_relay(uint32_t rank)
{
    (void)rank;
    relay_main();
}

static void await_value(const _Atomic(uint32_t) *value, uint32_t least)
{
    const uint64_t give_up_ms = clock_now_ms() + WAIT_MS;
    while (atomic_load(value) < least && clock_now_ms() < give_up_ms)
        pause_us(2000);
    assert_true(atomic_load(value) >= least);
}

static void an_overtaken_rank_says_its_modules_again(void **state)
{
    int status;
    (void)state;
    coordinator_start(&coordinator, NULL);
    pids[RANKS] = start(run_relay, 0);
    await_value(&shared->port, 1);
    for (uint32_t r = 0; r < RANKS; r++)
        pids[r] = start(rank_main, r);
    await_value(&shared->waiting, RANKS);
    pause_us(SETTLED_MS * 1000);
    atomic_store(&shared->delay_ms, DELAY_MS);
    kill(pids[0], SIGKILL);
    assert_true(process_reap(pids[0], WAIT_MS, &status));
    await_value(&shared->asked, 1);
    pause_us(DELAY_MS / 2 * 1000); // Then the other ranks have the decision, and rank 2 has not.
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    atomic_store(&shared->delay_ms, 0);
    coordinator_start(&coordinator, NULL);
    for (uint32_t r = 1; r < RANKS; r++) {
        assert_true(process_reap(pids[r], WAIT_MS, &status));
        if (status != 0)
            fail_msg("rank %u: %s", r, shared->texts[r]);
        pids[r] = 0;
    }
    kill(pids[RANKS], SIGKILL);
    assert_true(process_reap(pids[RANKS], WAIT_MS, &status));
    pids[RANKS] = 0;
    coordinator_stop(&coordinator);
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t i = 1; i <= RANKS; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGKILL);
    if (coordinator.pid > 0) {
        coordinator_signal(&coordinator, SIGKILL);
        coordinator_wait(&coordinator);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(an_overtaken_rank_says_its_modules_again, teardown)};
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
