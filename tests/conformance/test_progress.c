// SPDX-License-Identifier: Apache-2.0
//
// Conformance: which thread drives a session. A blocking call does the engine's work itself, also
// with other blocking calls on other threads; the engine's thread takes over the work that they
// leave. The tests check that in each state of worker/session/drive.c some thread does the work
// that others wait for: results, aborts, deadlines, the close, a forked child.
//
// A pause here stands for a trainer that computes. No test relies on the length of a pause.

#include "base/clock.h"
#include "base/thread.h"
#include "tests/support/trainer.h"

#include <dirent.h>
#include <fenv.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER

// ---- A second and a third thread of a rank -----------------------------------------------------

// The task of another thread of a rank. The thread checks nothing itself, because only the rank's
// own thread may use the RANK_ macros.
struct helper {
    struct thread thread;
    struct rank *rank;
    const char *name; // Name of the thread's collective.
    uint32_t rounds;
    uint32_t timeout_ms;
    atomic_int begun; // Number of rounds that have begun.
    int status; // The first status that is not OK.
    uint32_t wrong; // Number of wrong results.
};

static void helper_start(struct helper *helper, void (*run)(void *argument))
{
    assert_int_equal(thread_start(&helper->thread, "helper", run, helper), 0);
}

static void await_rounds(const atomic_int *rounds, int count)
{
    while (atomic_load(rounds) < count)
        usleep(200);
}

static int64_t expected_sum(const struct rank *rank, uint32_t round)
{
    int64_t sum = 0;
    for (uint32_t r = 0; r < rank->world_size; r++)
        sum += (int64_t)r * 1000 + round;
    return sum;
}

// Runs blocking sums, one after the other.
static void helper_sums(void *argument)
{
    struct helper *helper = argument;
    struct rank *rank = helper->rank;
    for (uint32_t i = 0; i < helper->rounds && helper->status == 0; i++) {
        int64_t value = (int64_t)rank->rank * 1000 + i;
        atomic_fetch_add(&helper->begun, 1);
        helper->status = lockstep_allreduce(rank->session, helper->name, &value, 1, LOCKSTEP_INT64,
                                            LOCKSTEP_SUM, helper->timeout_ms);
        helper->wrong += helper->status == 0 && value != expected_sum(rank, i);
    }
}

// Runs asynchronous sums, four at a time, and waits for them in the order in which they began.
// Every other wait polls.
#define IN_FLIGHT 4
static void helper_overlaps(void *argument)
{
    struct helper *helper = argument;
    struct rank *rank = helper->rank;
    for (uint32_t i = 0; i < helper->rounds && helper->status == 0; i++) {
        lockstep_work *works[IN_FLIGHT];
        int64_t values[IN_FLIGHT];
        uint32_t begun = 0;
        atomic_fetch_add(&helper->begun, 1);
        for (; begun < IN_FLIGHT && helper->status == 0; begun++) {
            values[begun] = (int64_t)rank->rank * 1000 + begun;
            helper->status =
                lockstep_allreduce_async(rank->session, helper->name, &values[begun], 1,
                                         LOCKSTEP_INT64, LOCKSTEP_SUM, &works[begun]);
        }
        for (uint32_t w = 0; w < begun && helper->status == 0; w++) {
            do
                helper->status = lockstep_work_wait(works[w], w % 2 == 0 ? FOREVER : 0);
            while (helper->status == LOCKSTEP_E_TIMEOUT);
            helper->wrong += helper->status == 0 && values[w] != expected_sum(rank, w);
        }
    }
}

static void helper_expect(struct rank *rank, struct helper *helper, int status)
{
    thread_join(&helper->thread);
    RANK_EQUAL(rank, helper->status, status);
    RANK_EQUAL(rank, helper->wrong, 0);
}

// ---- One thread --------------------------------------------------------------------------------

// Simulates a trainer that computes for this time without a call of the library.
static void pause_us(uint64_t duration_us)
{
    const uint64_t end_us = clock_now_us() + duration_us;
    while (clock_now_us() < end_us) {
        if (end_us - clock_now_us() > 1000)
            usleep(500);
    }
}

// Pauses of many lengths, from none to longer than a lease and different on every rank, so that
// calls find the engine's thread in each of its states.
static void pauses_body(struct rank *rank)
{
    static const uint64_t pauses_us[] = {0, 0, 700, 0, 1500, 3000, 0, 200, 13000, 50, 0};
    const uint32_t count = sizeof(pauses_us) / sizeof(pauses_us[0]);
    for (uint32_t i = 0; i < 3 * count; i++) {
        int64_t values[2] = {(int64_t)rank->rank * 1000 + i, (int64_t)rank->rank * 1000 + i};
        lockstep_work *work = NULL;
        if (i % 3 == 1)
            RANK_OK(rank, lockstep_allreduce_async(rank->session, "beside", &values[1], 1,
                                                   LOCKSTEP_INT64, LOCKSTEP_SUM, &work));
        RANK_OK(rank, lockstep_allreduce(rank->session, "sum", &values[0], 1, LOCKSTEP_INT64,
                                         LOCKSTEP_SUM, FOREVER));
        pause_us(pauses_us[(i + rank->rank * 3) % count]);
        if (work)
            RANK_OK(rank, lockstep_work_wait(work, FOREVER));
        RANK_EQUAL(rank, values[0], expected_sum(rank, i));
        RANK_TRUE(rank, !work || values[1] == expected_sum(rank, i));
        if (i % 5 == 4)
            RANK_OK(rank, lockstep_barrier(rank->session, "barrier", FOREVER));
    }
}

static void pauses_of_all_lengths(const struct setting *setting)
{
    ranks_run(setting, pauses_body, NULL);
}

// An asynchronous collective travels before its rank waits for it. The other ranks get their result
// while rank 0 makes no call, in any state in which a blocking call has left the engine.
static void left_behind_body(struct rank *rank)
{
    for (int i = 0; i < 10; i++) {
        int32_t value = 1;
        lockstep_work *work;
        RANK_OK(rank, lockstep_barrier(rank->session, "before", FOREVER));
        RANK_OK(rank, lockstep_allreduce_async(rank->session, "left", &value, 1, LOCKSTEP_INT32,
                                               LOCKSTEP_SUM, &work));
        if (rank->rank > 0)
            RANK_OK(rank, lockstep_work_wait(work, FOREVER));
        rank_meet(rank); // Rank 0 makes no call until the others are done.
        if (rank->rank == 0)
            RANK_OK(rank, lockstep_work_wait(work, FOREVER));
        RANK_EQUAL(rank, value, rank->world_size);
    }
}

static void work_that_is_left_behind(const struct setting *setting)
{
    ranks_run(setting, left_behind_body, NULL);
}

// A blocking call keeps the trainer's rounding mode and floating-point flags, and does not use the
// mode itself: 1 + 2^-24 is 1 if rounded to nearest, and more if rounded up.
static void environment_body(struct rank *rank)
{
    const float tiny = 1.0f / (1 << 24);
    for (int i = 0; i < 20; i++) {
        float values[32];
        for (int v = 0; v < 32; v++)
            values[v] = rank->rank == 0 ? 1.0f : tiny / (float)(rank->world_size - 1);
        fesetround(FE_UPWARD);
        feclearexcept(FE_ALL_EXCEPT);
        feraiseexcept(FE_OVERFLOW);
        const int status = lockstep_allreduce(rank->session, "rounded", values, 32,
                                              LOCKSTEP_FLOAT32, LOCKSTEP_SUM, FOREVER);
        const int rounding = fegetround();
        const int flags = fetestexcept(FE_ALL_EXCEPT);
        fesetround(FE_TONEAREST);
        feclearexcept(FE_ALL_EXCEPT);
        RANK_EQUAL(rank, status, 0);
        RANK_EQUAL(rank, rounding, FE_UPWARD);
        RANK_EQUAL(rank, flags, FE_OVERFLOW);
        for (int v = 0; v < 32; v++)
            RANK_TRUE(rank, values[v] == 1.0f);
    }
}

static void floating_point_environment(const struct setting *setting)
{
    ranks_run(setting, environment_body, NULL);
}

// A close right after a blocking call, while the engine's thread still leases the right to drive
// out.
static void close_body(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    uint64_t begin_ms;
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    RANK_OK(rank, lockstep_barrier(rank->session, "last", FOREVER));
    lockstep_session *session = rank->session;
    rank->session = NULL;
    begin_ms = clock_now_ms();
    RANK_OK(rank, lockstep_close(session));
    RANK_TRUE(rank, clock_now_ms() - begin_ms < test_bound_ms(3000));
}

static void close_while_parked(const struct setting *setting)
{
    ranks_run_test(
        &(struct cluster_test){.setting = setting, .body = close_body, .without_session = true});
}

// ---- Where the engine's thread runs ------------------------------------------------------------

// Returns the next thread of this process that is an engine's; 0 at the end.
static pid_t next_engine(DIR *threads)
{
    struct dirent *entry;
    while ((entry = readdir(threads))) {
        char path[320];
        char name[32] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        if (!fgets(name, sizeof(name), file))
            name[0] = '\0';
        fclose(file);
        if (strcmp(name, "lockstep-engine\n") == 0)
            return (pid_t)strtol(entry->d_name, NULL, 10);
    }
    return 0;
}

static void place_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->engine_cpus = "0,900-1000";
    config->engine_nice = 19;
}

// The test makes a round of calls first, because each engine's thread sets its priority itself.
static void place_body(struct rank *rank)
{
    uint32_t engines = 0;
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    rank_meet(rank);
    if (rank->rank == 0) {
        DIR *threads = opendir("/proc/self/task");
        RANK_TRUE(rank, threads != NULL);
        for (pid_t id = next_engine(threads); id != 0; id = next_engine(threads)) {
            cpu_set_t cpus;
            RANK_EQUAL(rank, sched_getaffinity(id, sizeof(cpus), &cpus), 0);
            RANK_EQUAL(rank, CPU_COUNT(&cpus), 1);
            RANK_TRUE(rank, CPU_ISSET(0, &cpus));
            RANK_EQUAL(rank, getpriority(PRIO_PROCESS, (id_t)id), 19);
            engines++;
        }
        closedir(threads);
        RANK_EQUAL(rank, engines, rank->world_size);
    }
    rank_meet(rank);
}

static void processors_and_priority(const struct setting *setting)
{
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
    if (!CPU_ISSET(0, &cpus))
        skip();
    ranks_run_test(&(struct cluster_test){
        .setting = setting, .configure = place_configure, .body = place_body});
}

// Number of times that the engines of this process have gone to sleep.
static uint64_t engine_sleeps(struct rank *rank)
{
    uint64_t sum = 0;
    DIR *threads = opendir("/proc/self/task");
    RANK_TRUE(rank, threads != NULL);
    for (pid_t id = next_engine(threads); id != 0; id = next_engine(threads)) {
        char path[64];
        char line[128];
        uint64_t sleeps = 0;
        snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)id);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
            (void)sscanf(line, "voluntary_ctxt_switches: %" SCNu64, &sleeps);
        if (file)
            fclose(file);
        sum += sleeps;
    }
    closedir(threads);
    return sum;
}

// Makes CALLS blocking calls. Returns on rank 0 how often engines went to sleep meanwhile.
#define CALLS 100
static uint64_t calls_sleeps(struct rank *rank)
{
    uint64_t before = 0;
    rank_meet(rank);
    if (rank->rank == 0)
        before = engine_sleeps(rank);
    for (int i = 0; i < CALLS; i++)
        RANK_OK(rank, lockstep_barrier(rank->session, "again", FOREVER));
    rank_meet(rank);
    return rank->rank == 0 ? engine_sleeps(rank) - before : 0;
}

// Blocking calls in quick succession do not wake the engines, which sleep for their leases: far
// less than one sleep for each call. If the machine delays a trainer for longer than a lease,
// engines wake, so the test takes the best of ten rounds.
static void calls_body(struct rank *rank)
{
    uint64_t least = UINT64_MAX;
    RANK_OK(rank, lockstep_barrier(rank->session, "first", FOREVER));
    for (int round = 0; round < 10; round++) {
        const uint64_t sleeps = calls_sleeps(rank);
        least = sleeps < least ? sleeps : least;
    }
    RANK_TRUE(rank, least < CALLS / 2);
}

static void calls_wake_no_engine(const struct setting *setting)
{
    ranks_run(setting, calls_body, NULL);
}

// engine_cpus names processors that this machine does not have.
static void nowhere_body(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    config.engine_cpus = "1000-1023";
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &rank->session));
    RANK_SAYS(rank, "none of the processors in config.engine_cpus");
    config.engine_cpus = NULL;
    config.engine_nice = -21;
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &rank->session));
    RANK_SAYS(rank, "config.engine_nice -21");
}

static void processors_that_are_not_there(const struct setting *setting)
{
    ranks_run_test(
        &(struct cluster_test){.setting = setting, .body = nowhere_body, .without_session = true});
}

// ---- Several threads ---------------------------------------------------------------------------

static const uint64_t sizes[4] = {40, 5000, 1, 77};

// One thread runs steps, another one makes blocking calls, and a third one waits for asynchronous
// work.
static void crowd_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net", .count = 4, .elements = sizes};
    struct trained_module module;
    struct helper blocking = {
        .rank = rank, .name = "blocking", .rounds = 60, .timeout_ms = FOREVER};
    struct helper waiting = {.rank = rank, .name = "waiting", .rounds = 30};
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    helper_start(&blocking, helper_sums);
    helper_start(&waiting, helper_overlaps);
    for (int i = 0; i < 30; i++)
        trainer_step_known(rank, &module, 1);
    helper_expect(rank, &blocking, 0);
    helper_expect(rank, &waiting, 0);
    trainer_free(&module);
}

static void threads_take_turns(const struct setting *setting)
{
    ranks_run(setting, crowd_body, NULL);
}

// Three threads of rank 0 wait for collectives that no other rank begins, and one of them drives.
// An abort releases all of them.
static void abort_body(struct rank *rank)
{
    struct helper helpers[3] = {
        {.rank = rank, .name = "a"}, {.rank = rank, .name = "b"}, {.rank = rank, .name = "c"}};
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    for (int i = 0; i < 3 && rank->rank == 0; i++) {
        helpers[i].rounds = 1;
        helpers[i].timeout_ms = FOREVER;
        helper_start(&helpers[i], helper_sums);
        await_rounds(&helpers[i].begun, 1);
    }
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_abort(rank->session, "enough"));
        for (int i = 0; i < 3; i++)
            helper_expect(rank, &helpers[i], LOCKSTEP_E_CLOSED);
        return;
    }
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_barrier(rank->session, "never", FOREVER));
    RANK_SAYS(rank, "enough");
}

static void abort_releases_all(const struct setting *setting)
{
    ranks_run(setting, abort_body, NULL);
}

// The coordinator is stopped for a second. Ranks whose links have ended wait for the coordinator,
// and then get the text of the abort.
static void late_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    rank_meet(rank);
    if (rank->rank == 0) {
        cluster_signal_coordinator(SIGSTOP);
        RANK_OK(rank, lockstep_abort(rank->session, "enough"));
        usleep(1000000);
        cluster_signal_coordinator(SIGCONT);
        return;
    }
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_barrier(rank->session, "never", FOREVER));
    RANK_SAYS(rank, "enough");
}

static void the_coordinator_is_late(const struct setting *setting)
{
    ranks_run(setting, late_body, NULL);
}

// The driving call times out, and a call that waits on another thread has to drive.
static void deadline_body(struct rank *rank)
{
    struct helper helper = {.rank = rank, .name = "late", .rounds = 1, .timeout_ms = FOREVER};
    int32_t value = 1;
    lockstep_work *work = NULL;
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_allreduce_async(rank->session, "work", &value, 1, LOCKSTEP_INT32,
                                               LOCKSTEP_SUM, &work));
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(work, 1));
        helper_start(&helper, helper_sums);
        await_rounds(&helper.begun, 1);
        for (int i = 0; i < 3; i++)
            RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(work, 10));
        RANK_SAYS(rank, "did not complete within 10 ms");
    }
    rank_meet(rank);
    if (rank->rank > 0)
        helper_start(&helper, helper_sums);
    helper_expect(rank, &helper, 0);
    if (rank->rank > 0)
        RANK_OK(rank, lockstep_allreduce_async(rank->session, "work", &value, 1, LOCKSTEP_INT32,
                                               LOCKSTEP_SUM, &work));
    RANK_OK(rank, lockstep_work_wait(work, FOREVER));
    RANK_EQUAL(rank, value, rank->world_size);
}

static void a_driver_that_gives_up(const struct setting *setting)
{
    ranks_run(setting, deadline_body, NULL);
}

// Rank 0 forks while another of its threads drives. Calls in the child fail, and the child does not
// disturb the parent.
static void fork_body(struct rank *rank)
{
    struct helper helper = {.rank = rank, .name = "shared", .rounds = 1, .timeout_ms = FOREVER};
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    if (rank->rank == 0) {
        int status = 0;
        helper_start(&helper, helper_sums);
        await_rounds(&helper.begun, 1);
        const pid_t child = fork();
        if (child == 0)
            _exit(lockstep_barrier(rank->session, "child", FOREVER) == LOCKSTEP_E_FORKED ? 0 : 1);
        RANK_TRUE(rank, child > 0 && waitpid(child, &status, 0) == child);
        RANK_EQUAL(rank, status, 0);
    }
    rank_meet(rank);
    if (rank->rank > 0)
        helper_start(&helper, helper_sums);
    helper_expect(rank, &helper, 0);
    RANK_OK(rank, lockstep_barrier(rank->session, "after", FOREVER));
}

static void a_child_of_a_driver(const struct setting *setting)
{
    ranks_run(setting, fork_body, NULL);
}

int main(void)
{
    static const uint32_t two[] = {2, 0};
    static const struct stamp stamps[] = {
        {"pauses_of_all_lengths", pauses_of_all_lengths, NULL},
        {"work_that_is_left_behind", work_that_is_left_behind, NULL},
        {"floating_point_environment", floating_point_environment, NULL},
        {"close_while_parked", close_while_parked, NULL},
        {"processors_and_priority", processors_and_priority, NULL},
        {"calls_wake_no_engine", calls_wake_no_engine, NULL},
        {"processors_that_are_not_there", processors_that_are_not_there, NULL},
        {"threads_take_turns", threads_take_turns, NULL},
        {"abort_releases_all", abort_releases_all, NULL},
        {"the_coordinator_is_late", the_coordinator_is_late, two},
        {"a_driver_that_gives_up", a_driver_that_gives_up, NULL},
        {"a_child_of_a_driver", a_child_of_a_driver, NULL},
    };
    return stamp_run_whole("progress", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
