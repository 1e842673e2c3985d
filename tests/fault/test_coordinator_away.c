// SPDX-License-Identifier: Apache-2.0
//
// A job of four ranks whose coordinator is killed every 20 steps and started again at once. No step
// takes longer for that, and each new coordinator has the whole diagnosis soon: all ranks, and a
// rank that stands still.
//
// Windows in which the coordinator lives and windows with kills take turns, so that both see the
// same machine. Each rank counts its step times in histograms of its own. In every LOOK_EVERY-th
// round the coordinator lives until it shows all ranks. In the first round of each of the first
// windows another rank has stood still since before the coordinator's return. Each rank does so
// once, because the bound of a stall grows with what a rank has done before.
//
// LOCKSTEP_TEST_AWAY_SECONDS: for so long (make coordinator-soak MINUTES=60); else three kills, of
// which one has a hold. Prints a line of JSON at the end.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <inttypes.h>
#include <lockstep/lockstep.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SIZE = 4,
    ELEMENTS = 50000,
    COMPUTE_US = 3000, // What a rank does beside exchanging gradients: it sleeps.
    KILL_EVERY = 20, // Steps.
    LOOK_EVERY = 10, // Rounds.
    BUCKET_US = 20,
    BUCKETS = 100000, // Longer steps count in the last bucket.
    QUIET_MS = 15000,
    KILLS_MS = 45000,
    FLOOR_MS = 1000, // Of a stall.
};

#define BACK_MS 3000 // From the return of the coordinator to the whole diagnosis.

enum window {
    WINDOW_NONE, // Steps do not count: the first ones, and those with a hold.
    WINDOW_QUIET,
    WINDOW_KILLS,
    WINDOWS
};

struct times {
    uint64_t count;
    uint64_t longest_us;
    uint32_t buckets[BUCKETS];
};

struct shared {
    _Atomic(int) window;
    _Atomic(uint32_t) held; // This rank, plus 1, stands still before its next step; 0: none.
    _Atomic(bool) stop;
    _Atomic(uint64_t) steps[SIZE]; // Steps that a rank has ended.
    _Atomic(int) failed[SIZE];
    char text[SIZE][512];
    struct times times[SIZE][WINDOWS];
};

static struct shared *shared;
static struct coordinator_process coordinator;
static uint64_t looks_ms[10000];
static uint32_t look_count;
static uint64_t holds_ms[SIZE];
static uint32_t hold_count;

// ---- A rank -------------------------------------------------------------------------------------

static void require(uint32_t rank, int status)
{
    if (status >= 0)
        return;
    snprintf(shared->text[rank], sizeof(shared->text[rank]), "%s", lockstep_error_text());
    atomic_store(&shared->failed[rank], status);
    _exit(1);
}

static void count_step(struct times *times, uint64_t took_us)
{
    const uint64_t bucket = took_us / BUCKET_US;
    times->count++;
    times->buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    if (took_us > times->longest_us)
        times->longest_us = took_us;
}

static void rank_step(uint32_t rank, lockstep_session *session, lockstep_module *module,
                      float *gradient, uint64_t step)
{
    lockstep_call *call;
    require(rank, lockstep_step_begin(session, NULL, NULL));
    pause_us(COMPUTE_US);
    for (uint32_t e = 0; e < ELEMENTS; e++)
        gradient[e] = (float)(4 * (rank + (e + step) % 7));
    require(rank, lockstep_call_begin(module, &call));
    require(rank, lockstep_grad_ready(module, call, 0, NULL, NULL));
    require(rank, lockstep_call_end(call));
    if (rank == 0 && atomic_load(&shared->stop))
        require(rank, lockstep_counter_add(session, "stop", 1));
    require(rank, lockstep_step_end(session, NULL));
    for (uint32_t e = 0; e < ELEMENTS; e++) {
        if (gradient[e] == (float)(6 + 4 * ((e + step) % 7)))
            continue;
        snprintf(shared->text[rank], sizeof(shared->text[rank]), "step %" PRIu64 ": %g", step,
                 (double)gradient[e]);
        atomic_store(&shared->failed[rank], -99);
        _exit(1);
    }
}

static _Noreturn void rank_trains(uint32_t rank)
{
    static float data[ELEMENTS], gradient[ELEMENTS];
    const int64_t shape = ELEMENTS;
    const struct lockstep_parameter parameter = {.name = "w",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = &shape,
                                                 .data = data,
                                                 .gradient = gradient};
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config module_config = LOCKSTEP_MODULE_INIT;
    lockstep_session *session;
    lockstep_module *module;
    char address[64];
    int64_t stop = 0;
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.world_size = SIZE;
    config.rank_hint = (int32_t)rank;
    config.job = "away";
    module_config.name = "m";
    module_config.parameters = &parameter;
    module_config.parameter_count = 1;
    require(rank, lockstep_open(&config, &session));
    require(rank, lockstep_module_register(session, &module_config, &module));
    require(rank, lockstep_start(session));
    for (uint64_t step = 1; stop == 0; step++) {
        const uint64_t since_us = clock_now_us();
        const int window = atomic_load(&shared->window);
        rank_step(rank, session, module, gradient, step);
        const uint64_t took_us = clock_now_us() - since_us;
        if (window == atomic_load(&shared->window))
            count_step(&shared->times[rank][window], took_us);
        require(rank, lockstep_counter_read(session, "stop", &stop));
        atomic_store(&shared->steps[rank], step);
        while (atomic_load(&shared->held) == rank + 1)
            pause_us(1000);
    }
    require(rank, lockstep_close(session));
    _exit(0);
}

// ---- The coordinator ----------------------------------------------------------------------------

static void start(void)
{
    char floor_ms[40];
    const char *const arguments[] = {"--http=127.0.0.1:0", floor_ms, NULL};
    snprintf(floor_ms, sizeof(floor_ms), "--stall-floor-ms=%d", FLOOR_MS);
    coordinator_start(&coordinator, arguments);
}

static void kill_coordinator(void)
{
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
}

// Returns when it was ready.
static uint64_t return_coordinator(void)
{
    start();
    return clock_now_ms();
}

// What `lockstep status --json --job away` asks for.
static const char *ask(void)
{
    static const char request[] = "GET /api/v1/jobs/away HTTP/1.0\r\nHost: localhost\r\n\r\n";
    static char text[1 << 17];
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons(coordinator.http_port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t size = 0;
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 &&
        write(fd, request, sizeof(request) - 1) == (ssize_t)sizeof(request) - 1) {
        ssize_t got;
        while ((got = read(fd, text + size, sizeof(text) - 1 - size)) > 0)
            size += (size_t)got;
    }
    text[size] = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

static void expect_well(void)
{
    for (uint32_t rank = 0; rank < SIZE; rank++)
        if (atomic_load(&shared->failed[rank]) != 0)
            fail_msg("rank %u: %d %s", rank, atomic_load(&shared->failed[rank]),
                     shared->text[rank]);
}

// True if the answer names every rank as connected, with its host.
static bool shows_all(const char *answer)
{
    return strstr(answer, "\"state\":\"running\"") || strstr(answer, "\"state\":\"stalled\"");
}

static bool shows_stall(const char *answer)
{
    char piece[64];
    snprintf(piece, sizeof(piece), "rank %u ", atomic_load(&shared->held) - 1);
    const char *stall = strstr(answer, "\"stalled\":true");
    return stall && strstr(stall, piece);
}

// Waits until the answer is right. Returns how long that took since the coordinator was ready.
static uint64_t await_answer(bool (*right)(const char *answer), uint64_t ready_ms)
{
    for (;;) {
        const char *answer = ask();
        const uint64_t took_ms = clock_now_ms() - ready_ms;
        if (right(answer))
            return took_ms;
        expect_well();
        if (took_ms > WAIT_MS)
            fail_msg("after %" PRIu64 " ms the coordinator says %s", took_ms, answer);
        pause_us(20000);
    }
}

static void await_steps(uint64_t more)
{
    const uint64_t to = atomic_load(&shared->steps[0]) + more;
    const uint64_t deadline_ms = clock_now_ms() + WAIT_MS;
    while (atomic_load(&shared->steps[0]) < to) {
        expect_well();
        if (clock_now_ms() > deadline_ms)
            fail_msg("rank 0 stands at step %" PRIu64, atomic_load(&shared->steps[0]));
        pause_us(500);
    }
}

// ---- Rounds -------------------------------------------------------------------------------------

static void look(void)
{
    kill_coordinator();
    const uint64_t took_ms = await_answer(shows_all, return_coordinator());
    if (look_count < sizeof(looks_ms) / sizeof(looks_ms[0]))
        looks_ms[look_count++] = took_ms;
}

static void hold(void)
{
    const int window = atomic_exchange(&shared->window, WINDOW_NONE);
    atomic_store(&shared->held, hold_count + 1);
    kill_coordinator();
    pause_us(FLOOR_MS * 1000);
    const uint64_t ready_ms = return_coordinator();
    (void)await_answer(shows_all, ready_ms);
    const uint64_t took_ms = await_answer(shows_stall, ready_ms);
    atomic_store(&shared->held, 0);
    holds_ms[hold_count++] = took_ms;
    await_steps(KILL_EVERY);
    atomic_store(&shared->window, window);
}

static void one_round(uint32_t round, uint32_t look_every, bool holds)
{
    await_steps(KILL_EVERY);
    if (holds && hold_count < SIZE) {
        hold();
    } else if (round % look_every == look_every - 1) {
        look();
    } else {
        kill_coordinator();
        return_coordinator();
    }
}

// ---- Figures ------------------------------------------------------------------------------------

static void sum_times(enum window window, struct times *sum)
{
    memset(sum, 0, sizeof(*sum));
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        const struct times *times = &shared->times[rank][window];
        sum->count += times->count;
        for (uint32_t i = 0; i < BUCKETS; i++)
            sum->buckets[i] += times->buckets[i];
        if (times->longest_us > sum->longest_us)
            sum->longest_us = times->longest_us;
    }
}

// The upper end of the bucket in which this share of the steps ends.
static uint64_t quantile_us(const struct times *times, double share)
{
    uint64_t left = (uint64_t)((double)times->count * share);
    uint32_t i = 0;
    while (i < BUCKETS - 1 && times->buckets[i] <= left)
        left -= times->buckets[i++];
    return (uint64_t)(i + 1) * BUCKET_US;
}

static uint64_t longer_than(const struct times *times, uint64_t us)
{
    uint64_t count = 0;
    for (uint64_t i = us / BUCKET_US; i < BUCKETS; i++)
        count += times->buckets[i];
    return count;
}

static int compare(const void *a, const void *b)
{
    const uint64_t one = *(const uint64_t *)a;
    const uint64_t other = *(const uint64_t *)b;
    return (one > other) - (one < other);
}

static void say_window(const char *name, const struct times *times, uint64_t bound_us)
{
    printf(", \"%s\": {\"steps\": %" PRIu64 ", \"median_ms\": %.2f, \"p99_ms\": %.2f, "
           "\"p999_ms\": %.2f, \"max_ms\": %.2f, \"share_above_quiet_p99\": %.4f}",
           name, times->count, (double)quantile_us(times, 0.5) / 1e3,
           (double)quantile_us(times, 0.99) / 1e3, (double)quantile_us(times, 0.999) / 1e3,
           (double)times->longest_us / 1e3,
           (double)longer_than(times, bound_us) / (double)(times->count > 0 ? times->count : 1));
}

static void say_list(const char *name, uint64_t *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare);
    printf(", \"%s\": {\"count\": %u, \"median_ms\": %" PRIu64 ", \"max_ms\": %" PRIu64 "}", name,
           count, count > 0 ? values[count / 2] : 0, count > 0 ? values[count - 1] : 0);
}

static void say(uint32_t kills, uint64_t seconds)
{
    static struct times quiet, with_kills;
    double load = 0;
    sum_times(WINDOW_QUIET, &quiet);
    sum_times(WINDOW_KILLS, &with_kills);
    (void)getloadavg(&load, 1);
    const uint64_t bound_us = quantile_us(&quiet, 0.99);
    printf("{\"seconds\": %" PRIu64 ", \"kills\": %u, \"load\": %.1f", seconds, kills, load);
    say_window("quiet", &quiet, bound_us);
    say_window("with_kills", &with_kills, bound_us);
    say_list("all_ranks_shown_after", looks_ms, look_count);
    say_list("stall_shown_after", holds_ms, hold_count);
    printf("}\n");
    (void)fflush(stdout);
}

// ---- The test -----------------------------------------------------------------------------------

static void quiet_window(uint64_t ms)
{
    atomic_store(&shared->window, WINDOW_NONE);
    (void)await_answer(shows_all, clock_now_ms());
    await_steps(KILL_EVERY);
    atomic_store(&shared->window, WINDOW_QUIET);
    pause_us(ms * 1000);
    atomic_store(&shared->window, WINDOW_KILLS);
}

static uint32_t soak(uint64_t seconds)
{
    const uint64_t until_ms = clock_now_ms() + seconds * 1000;
    uint64_t said_ms = clock_now_ms();
    uint32_t round = 0;
    while (clock_now_ms() < until_ms) {
        quiet_window(QUIET_MS);
        const uint64_t window_ms = clock_now_ms() + KILLS_MS;
        one_round(round++, LOOK_EVERY, true);
        while (clock_now_ms() < window_ms)
            one_round(round++, LOOK_EVERY, false);
        if (clock_now_ms() - said_ms < 60000)
            continue;
        said_ms = clock_now_ms();
        say(round, seconds - (until_ms > said_ms ? (until_ms - said_ms) / 1000 : 0));
    }
    return round;
}

static void it_is_killed_every_20_steps(void **state)
{
    const uint64_t seconds = choice_number("LOCKSTEP_TEST_AWAY_SECONDS", 0);
    pid_t pids[SIZE];
    uint32_t kills = 3;
    (void)state;
    start();
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        pids[rank] = process_fork();
        if (pids[rank] == 0)
            rank_trains(rank);
    }
    await_steps(KILL_EVERY);
    if (seconds > 0) {
        kills = soak(seconds);
    } else {
        quiet_window(200);
        for (uint32_t round = 0; round < kills; round++)
            one_round(round, 2, round == 2);
    }
    atomic_store(&shared->stop, true);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        int status = -1;
        assert_true(process_reap(pids[rank], WAIT_MS, &status));
        expect_well();
        assert_int_equal(status, 0);
    }
    coordinator_stop(&coordinator);
    say(kills, seconds);
    assert_true(look_count > 0 && hold_count > 0);
    assert_in_range(looks_ms[look_count - 1], 0, slow_ms(BACK_MS));
    assert_in_range(holds_ms[hold_count - 1], 0, slow_ms(BACK_MS));
}

static int teardown(void **state)
{
    (void)state;
    if (coordinator.pid > 0)
        kill(coordinator.pid, SIGKILL);
    coordinator.pid = 0;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(it_is_killed_every_20_steps, teardown),
    };
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
