// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "tests/support/port.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- Bounds -------------------------------------------------------------------------------------

uint64_t slow_ms(uint64_t ms)
{
    return test_bound_ms(ms);
}

void pause_us(uint64_t us)
{
    struct timespec rest = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
    while (nanosleep(&rest, &rest) < 0 && errno == EINTR)
        ;
}

bool process_reap(pid_t pid, uint64_t ms, int *status)
{
    const uint64_t deadline = clock_now_ms() + ms;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        const uint64_t now = clock_now_ms();
        const struct timespec rest = {.tv_nsec = 20 * 1000 * 1000};
        if (waitpid(pid, status, WNOHANG) == pid)
            return true;
        if (now >= deadline)
            return false;
        sigtimedwait(&child, NULL, &rest); // process_fork blocks SIGCHLD in this process.
    }
}

// Makes this process a subreaper: the child of a worker becomes its child when the worker dies.
pid_t process_fork(void)
{
    sigset_t child;
    const pid_t parent = getpid();
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    sigprocmask(SIG_UNBLOCK, &child, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(3);
    return 0;
}

// ---- The coordinator ----------------------------------------------------------------------------

static void coordinator_exec(uint16_t port, int output, const char *const *arguments)
{
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    char listen[64];
    const char *list[16] = {
        NULL, listen, "--http=off", "--json", "--log-level=warn", "--parent-death"};
    char path[4096];
    snprintf(listen, sizeof(listen), "--listen=127.0.0.1:%u", port);
    for (size_t i = 0; arguments && arguments[i] && i < 8; i++)
        list[6 + i] = arguments[i];
    snprintf(path, sizeof(path), "%s/lockstep-coordinator", folder ? folder : "build/bin");
    list[0] = path;
    dup2(output, STDOUT_FILENO);
    execv(path, (char **)(uintptr_t)list);
    _exit(127);
}

// The number after `member` in the coordinator's first line; 0 if the member is null.
static uint16_t coordinator_member(const char *line, const char *member)
{
    const char *place = strstr(line, member);
    if (!place)
        fail_msg("the coordinator said '%s' instead of its ports", line);
    return (uint16_t)strtoul(place + strlen(member), NULL, 10);
}

// Reads the ports from the coordinator's first line:
// {"event":"ready",...,"grpc_port":40123,...,"http_port":null}.
static void coordinator_read_ports(struct coordinator_process *coordinator, int output)
{
    char line[1024];
    size_t size = 0;
    struct pollfd ready = {output, POLLIN, 0};
    while (size < sizeof(line) - 1 && poll(&ready, 1, (int)WAIT_MS) > 0) {
        const ssize_t got = read(output, line + size, sizeof(line) - 1 - size);
        if (got <= 0 || line[size + (size_t)got - 1] == '\n') {
            size += got > 0 ? (size_t)got : 0;
            break;
        }
        size += (size_t)got;
    }
    line[size] = '\0';
    coordinator->port = coordinator_member(line, "\"grpc_port\":");
    coordinator->http_port = coordinator_member(line, "\"http_port\":");
}

void coordinator_start(struct coordinator_process *coordinator, const char *const *arguments)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    if (coordinator->port == 0)
        coordinator->port = test_port();
    coordinator->pid = process_fork();
    assert_true(coordinator->pid >= 0);
    if (coordinator->pid == 0)
        coordinator_exec(coordinator->port, ends[1], arguments);
    close(ends[1]);
    coordinator_read_ports(coordinator, ends[0]);
    close(ends[0]);
}

void coordinator_signal(struct coordinator_process *coordinator, int signal_number)
{
    assert_true(coordinator->pid > 0);
    assert_int_equal(kill(coordinator->pid, signal_number), 0);
}

int coordinator_wait(struct coordinator_process *coordinator)
{
    int status = 0;
    if (!process_reap(coordinator->pid, WAIT_MS, &status))
        fail_msg("the coordinator (pid %d) does not end", (int)coordinator->pid);
    coordinator->pid = 0;
    return status;
}

void coordinator_stop(struct coordinator_process *coordinator)
{
    coordinator_signal(coordinator, SIGTERM);
    const int status = coordinator_wait(coordinator);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the coordinator ended with wait status 0x%x", (unsigned)status);
}

// ---- The workers --------------------------------------------------------------------------------

// The worker's process. It closes the descriptors of the test that belong to other workers.
static void worker_main(const struct world *world, const struct trainer_place *place,
                        const struct script *script)
{
    close(world->lifeline);
    for (uint32_t rank = 0; rank < world->size; rank++) {
        if (world->workers[rank].socket >= 0)
            close(world->workers[rank].socket);
    }
    exit(trainer_run(place, script));
}

const struct way world_ways[WORLD_WAYS] = {
    {.name = "shared", .transport = "auto", .algorithm = "shared"},
    {.name = "registered", .transport = "auto", .algorithm = "shared", .registered = true},
    {.name = "two_level", .transport = "auto", .algorithm = "two_level", .two_hosts = true},
    {.name = "ring", .transport = "tcp", .algorithm = "ring"},
    {.name = "doubling", .transport = "tcp", .algorithm = "doubling"},
    {.name = "halving", .transport = "tcp", .algorithm = "halving"},
    {.name = "direct", .transport = "tcp", .algorithm = "direct"},
};

static void world_start_worker(struct world *world, struct trainer_place *place,
                               const struct script *script)
{
    struct world_worker *worker = &world->workers[place->rank];
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    worker->socket = ends[0];
    place->socket = ends[1];
    worker->pid = process_fork();
    assert_true(worker->pid >= 0);
    if (worker->pid == 0)
        worker_main(world, place, script);
    close(ends[1]);
}

void world_start(struct world *world, const struct coordinator_process *coordinator,
                 const char *job, uint32_t size, const struct script *scripts)
{
    struct trainer_place place = {.world_size = size};
    int lifeline[2];
    memset(world, 0, sizeof(*world));
    world->size = size;
    world->shared = mmap(NULL, sizeof(*world->shared), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(world->shared != MAP_FAILED);
    assert_int_equal(pipe2(lifeline, O_CLOEXEC), 0);
    world->lifeline = lifeline[1];
    if (coordinator->list)
        snprintf(place.coordinator, sizeof(place.coordinator), "%s", coordinator->list);
    else
        snprintf(place.coordinator, sizeof(place.coordinator), "127.0.0.1:%u", coordinator->port);
    place.lifeline = lifeline[0];
    place.shared = world->shared;
    snprintf(place.job, sizeof(place.job), "%s", job);
    for (uint32_t rank = 0; rank < size; rank++)
        world->workers[rank].socket = -1;
    for (place.rank = 0; place.rank < size; place.rank++) {
        if (!scripts[place.rank].absent)
            world_start_worker(world, &place, &scripts[place.rank]);
    }
    close(lifeline[0]);
}

// ---- Reports ------------------------------------------------------------------------------------

// Reads one report of any kind. Returns 1 if one came, 0 if none came until the deadline, and -1 if
// the worker has ended.
static int world_read(struct world *world, uint32_t rank, uint64_t deadline_ms,
                      struct report *report)
{
    struct world_worker *worker = &world->workers[rank];
    const uint64_t now = clock_now_ms();
    struct pollfd ready = {worker->socket, POLLIN, 0};
    if (poll(&ready, 1, deadline_ms > now ? (int)(deadline_ms - now) : 0) <= 0)
        return 0;
    memset(report, 0, sizeof(*report));
    if (recv(worker->socket, report, sizeof(*report), 0) <= 0)
        return -1;
    worker->last = *report;
    if (report->kind == REPORT_CHILD)
        worker->child = (pid_t)report->value;
    return 1;
}

static void world_describe(const struct world *world, char *text, size_t bytes)
{
    size_t used = 0;
    for (uint32_t rank = 0; rank < world->size && used < bytes; rank++) {
        const struct world_worker *worker = &world->workers[rank];
        used += (size_t)snprintf(text + used, bytes - used,
                                 "\n  rank %u (pid %d): last report of kind %d, %s %s, step %llu",
                                 rank, (int)worker->pid, (int)worker->last.kind, worker->last.call,
                                 worker->last.text, (unsigned long long)worker->last.step);
    }
}

static void world_fail(const struct world *world, uint32_t rank, const char *what)
{
    char text[16384] = "";
    world_describe(world, text, sizeof(text));
    fail_msg("rank %u: %s%s", rank, what, text);
}

bool world_next(struct world *world, uint32_t rank, int64_t ms, struct report *report)
{
    const uint64_t deadline = clock_now_ms() + (ms < 0 ? WAIT_MS : (uint64_t)ms);
    for (;;) {
        const int result = world_read(world, rank, deadline, report);
        if (result < 0)
            world_fail(world, rank, "its process ended unexpectedly");
        if (result == 0)
            return false;
        if (report->kind != REPORT_STEP && report->kind != REPORT_CHILD)
            return true;
    }
}

void world_expect(struct world *world, uint32_t rank, enum report_kind kind, struct report *report)
{
    struct report unused;
    struct report *into = report ? report : &unused;
    if (!world_next(world, rank, -1, into))
        world_fail(world, rank, "nothing came in time");
    if (into->kind != kind)
        world_fail(world, rank, "an unexpected report came");
}

void world_expect_step(struct world *world, uint32_t rank, uint64_t step)
{
    const uint64_t deadline = clock_now_ms() + WAIT_MS;
    struct report report = {0};
    while (report.kind != REPORT_STEP || report.step < step) {
        if (world_read(world, rank, deadline, &report) <= 0)
            world_fail(world, rank, "the step did not come");
        if (report.kind == REPORT_FAILED || report.kind == REPORT_DONE)
            world_fail(world, rank, "training ended too early");
    }
}

uint64_t world_expect_done(struct world *world)
{
    struct report done[WORLD_MAX];
    for (uint32_t rank = 0; rank < world->size; rank++) {
        world_expect(world, rank, REPORT_DONE, &done[rank]);
        assert_int_equal(done[rank].value, done[0].value);
        assert_int_equal(done[rank].settled, done[0].settled);
    }
    world_join(world);
    return done[0].value;
}

// ---- Acting on workers --------------------------------------------------------------------------

void world_release(struct world *world, uint32_t rank)
{
    atomic_fetch_or(&world->shared->released, 1u << rank);
    assert_int_equal(send(world->workers[rank].socket, "", 1, MSG_NOSIGNAL), 1);
}

void world_signal(struct world *world, uint32_t rank, int signal_number)
{
    assert_true(world->workers[rank].pid > 0);
    assert_int_equal(kill(world->workers[rank].pid, signal_number), 0);
}

uint64_t world_kill(struct world *world, uint32_t rank)
{
    const uint64_t at_us = clock_now_us();
    world_signal(world, rank, SIGKILL);
    world->workers[rank].killed = true;
    return at_us;
}

void world_stop(struct world *world)
{
    atomic_store(&world->shared->stop, true);
}

// Reads the remaining reports of a rank, because one of them may name a forked child.
static void world_drain(struct world *world, uint32_t rank)
{
    struct report report;
    while (world->workers[rank].socket >= 0 && world_read(world, rank, 0, &report) > 0)
        ;
}

static void world_close(struct world *world)
{
    if (world->lifeline >= 0)
        close(world->lifeline);
    world->lifeline = -1;
    for (uint32_t rank = 0; rank < world->size; rank++) {
        if (world->workers[rank].socket >= 0)
            close(world->workers[rank].socket);
        world->workers[rank].socket = -1;
    }
    if (world->shared)
        munmap(world->shared, sizeof(*world->shared));
    world->shared = NULL;
}

static void world_join_worker(struct world *world, uint32_t rank)
{
    struct world_worker *worker = &world->workers[rank];
    int status = 0;
    if (worker->pid > 0 && !process_reap(worker->pid, WAIT_MS, &status))
        world_fail(world, rank, "its process does not end");
    worker->pid = 0;
    if (!worker->killed && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
        fail_msg("rank %u: its process ended with wait status 0x%x", rank, (unsigned)status);
    }
}

// Reaps the forked child of a worker. The worker must have ended: then the child is ours.
static void world_join_child(struct world *world, uint32_t rank)
{
    struct world_worker *worker = &world->workers[rank];
    int status = 0;
    if (worker->child > 0 && !process_reap(worker->child, WAIT_MS, &status))
        world_fail(world, rank, "the process that it has forked does not end");
    worker->child = 0;
}

void world_join(struct world *world)
{
    for (uint32_t rank = 0; rank < world->size; rank++)
        world_join_worker(world, rank);
    for (uint32_t rank = 0; rank < world->size; rank++)
        world_drain(world, rank);
    world_close(world);
    for (uint32_t rank = 0; rank < world->size; rank++)
        world_join_child(world, rank);
    world->size = 0;
}

void world_teardown(struct world *world, struct coordinator_process *coordinator)
{
    int status;
    for (uint32_t rank = 0; rank < world->size; rank++) {
        world_drain(world, rank);
        if (world->workers[rank].pid > 0 && kill(world->workers[rank].pid, SIGKILL) == 0)
            waitpid(world->workers[rank].pid, &status, 0);
    }
    if (world->size > 0)
        world_close(world);
    for (uint32_t rank = 0; rank < world->size; rank++) {
        if (world->workers[rank].child > 0)
            waitpid(world->workers[rank].child, &status, 0);
    }
    world->size = 0;
    if (coordinator->pid > 0 && kill(coordinator->pid, SIGKILL) == 0)
        waitpid(coordinator->pid, &status, 0);
    coordinator->pid = 0;
}
