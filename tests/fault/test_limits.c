// SPDX-License-Identifier: Apache-2.0
//
// The process is the trainer's: whatever limit of it runs out, a session ends with an error, in
// time, and no rank is blamed that has enough of everything. Two processes live a whole life of a
// session (life.h) beside a coordinator. One of them, the poor one, lives under a limit; each value
// of the limit from too small to enough is a world of its own, and several worlds live side by
// side.
//
// In every world: no process ends by a signal, none outlives its bound, the poor one is well or
// gets E_SYSTEM that names the limit, and the other one is well or hears of the poor one.
//
// make test takes a sample of the values; LOCKSTEP_TEST_LIMITS=all takes all of them.

#include "base/clock.h"
#include "protos/limits.h"
#include "tests/fault/life.h"
#include "tests/fault/process_world.h"
#include "tests/support/bounds.h"
#include "worker/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#define MIB ((uint64_t)1024 * 1024)
#define SIDE_BY_SIDE 4
#define ALONE_MS 150 // A poor process that fails in this time needs no second one.
#define OPEN_MS test_bound_ms(3000)
#define LIFE_MS (OPEN_MS + test_bound_ms(10000))
#define FIRST_UID 61200 // Of nobody: the number of threads is limited for each user.

// ---- Limits -------------------------------------------------------------------------------------

enum squeeze_kind {
    SQUEEZE_NOTHING,
    SQUEEZE_DESCRIPTORS, // value: the highest descriptor, and one.
    SQUEEZE_THREADS, // value: threads that the user may have.
    SQUEEZE_SPACE, // value: MiB of address space more than there are.
    SQUEEZE_DATA, // value: MiB of data more than there are.
    SQUEEZE_FILES, // value: KiB
    SQUEEZE_HANDLES, // value: handles that are free.
};

struct squeeze {
    enum squeeze_kind kind;
    uint64_t value;
};

static const char *const squeeze_names[] = {"",          "ulimit -n", "ulimit -u", "ulimit -v",
                                            "ulimit -d", "ulimit -f", "handles"};

static void limit_to(__rlimit_resource_t resource, uint64_t value)
{
    const struct rlimit limit = {value, value};
    if (setrlimit(resource, &limit) < 0)
        _exit(4);
}

// Of /proc/self/statm, in bytes: all address space, or data and stack.
static uint64_t size_now(bool data)
{
    unsigned long long fields[6] = {0};
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%llu %llu %llu %llu %llu %llu", &fields[0], &fields[1],
                               &fields[2], &fields[3], &fields[4], &fields[5]) != 6)
        _exit(4);
    fclose(file);
    return fields[data ? 5 : 0] * (uint64_t)sysconf(_SC_PAGESIZE);
}

// A user of its own, so that nobody else's threads count. What does not bind root binds that one.
static void become(uid_t user)
{
    if (geteuid() != 0)
        return;
    if (setresuid(user, user, user) < 0)
        _exit(4);
    prctl(PR_SET_DUMPABLE, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void use_handles(uint32_t count)
{
    static uint64_t places[LOCKSTEP_MAX_HANDLES];
    for (uint32_t i = 0; i < count; i++)
        if (handle_add(HANDLE_WORK, &places[i]) < 0)
            _exit(4);
}

static void squeeze_apply(const struct squeeze *squeeze, uint32_t number)
{
    switch (squeeze->kind) {
    case SQUEEZE_NOTHING:
        return;
    case SQUEEZE_DESCRIPTORS:
        limit_to(RLIMIT_NOFILE, squeeze->value);
        return;
    case SQUEEZE_THREADS:
        become((uid_t)(FIRST_UID + number));
        limit_to(RLIMIT_NPROC, squeeze->value);
        return;
    case SQUEEZE_SPACE:
        limit_to(RLIMIT_AS, size_now(false) + squeeze->value * MIB);
        return;
    case SQUEEZE_DATA:
        limit_to(RLIMIT_DATA, size_now(true) + squeeze->value * MIB);
        return;
    case SQUEEZE_FILES:
        limit_to(RLIMIT_FSIZE, squeeze->value * 1024);
        return;
    case SQUEEZE_HANDLES:
        use_handles(LOCKSTEP_MAX_HANDLES - (uint32_t)squeeze->value);
        return;
    }
}

// ---- Worlds -------------------------------------------------------------------------------------

enum {
    POOR,
    RICH,
    RANKS
};

struct life_world {
    struct squeeze squeeze;
    uint32_t number; // Of all that have lived; also its job's name.
    pid_t pids[RANKS]; // 0: none, or reaped.
    int statuses[RANKS]; // Of waitpid.
    bool started[RANKS];
    uint64_t begun_ms;
    struct outcome *outcomes; // [RANKS], shared with the processes. NULL: the place is free.
};

struct sweep {
    struct coordinator_process coordinator;
    struct life_world worlds[SIDE_BY_SIDE];
    uint32_t begun;
    uint32_t well; // Worlds in which both were.
    uint32_t refused; // Worlds in which the poor one was not.
    uint32_t faults;
};

static void fault(struct sweep *sweep, const struct life_world *world, const char *what)
{
    static const char *const who[] = {"poor", "rich"};
    sweep->faults++;
    print_error("%s %llu: %s\n", squeeze_names[world->squeeze.kind],
                (unsigned long long)world->squeeze.value, what);
    for (int rank = 0; rank < RANKS; rank++) {
        const struct outcome *outcome = &world->outcomes[rank];
        print_error("    %s: %s, in %s, %d after %llu ms: %s\n", who[rank],
                    !world->started[rank]                ? "not started"
                    : WIFSIGNALED(world->statuses[rank]) ? "ended by a signal"
                                                         : "ended",
                    outcome->function, outcome->status, (unsigned long long)outcome->open_ms,
                    outcome->text);
    }
}

static void world_fork(const struct sweep *sweep, struct life_world *world, int rank)
{
    char job[32];
    const struct life life = {.port = sweep->coordinator.port,
                              .job = job,
                              .rank = (uint32_t)rank,
                              .open_ms = (uint32_t)OPEN_MS};
    snprintf(job, sizeof(job), "life-%u", world->number);
    world->started[rank] = true;
    world->pids[rank] = process_fork();
    assert_true(world->pids[rank] >= 0);
    if (world->pids[rank] > 0)
        return;
    if (rank == POOR)
        squeeze_apply(&world->squeeze, world->number);
    life_live(&life, &world->outcomes[rank]);
    _exit(0);
}

static void world_begin(struct sweep *sweep, struct life_world *world,
                        const struct squeeze *squeeze)
{
    void *shared = mmap(NULL, RANKS * sizeof(struct outcome), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    *world = (struct life_world){.squeeze = *squeeze,
                                 .number = sweep->begun++,
                                 .begun_ms = clock_now_ms(),
                                 .outcomes = shared};
    world_fork(sweep, world, POOR);
}

static void world_check(struct sweep *sweep, const struct life_world *world)
{
    const struct outcome *poor = &world->outcomes[POOR];
    const struct outcome *rich = &world->outcomes[RICH];
    for (int rank = 0; rank < RANKS; rank++)
        if (world->started[rank] &&
            (!WIFEXITED(world->statuses[rank]) || WEXITSTATUS(world->statuses[rank]) != 0)) {
            fault(sweep, world, "a process did not end by itself");
            return;
        }
    if (poor->status < 0 && poor->status != LOCKSTEP_E_SYSTEM)
        fault(sweep, world, "the poor one has another error than LOCKSTEP_E_SYSTEM");
    else if (poor->status < 0 && strstr(poor->text, squeeze_names[world->squeeze.kind]) == NULL)
        fault(sweep, world, "the poor one is not told which limit it was");
    else if (poor->status < 0 && poor->open_ms > OPEN_MS)
        fault(sweep, world, "the poor one has waited beyond its timeout");
    else if (world->started[RICH] && rich->status < 0 && strstr(rich->text, "rank 0") == NULL &&
             strstr(rich->text, "1 of 2 workers joined") == NULL)
        fault(sweep, world, "the rich one does not hear of the poor one");
    else if (strstr(rich->text, "rank 1 on host") != NULL ||
             strstr(poor->text, "rank 1 on host") != NULL)
        fault(sweep, world, "the rich one is blamed");
    else if (poor->status < 0)
        sweep->refused++;
    else
        sweep->well++;
}

// True: it has ended.
static bool world_look(struct sweep *sweep, struct life_world *world)
{
    bool alive = false;
    const uint64_t since_ms = clock_now_ms() - world->begun_ms;
    for (int rank = 0; rank < RANKS; rank++) {
        if (world->pids[rank] > 0 &&
            waitpid(world->pids[rank], &world->statuses[rank], WNOHANG) == world->pids[rank])
            world->pids[rank] = 0;
        alive = alive || world->pids[rank] > 0;
    }
    if (alive && since_ms > LIFE_MS) {
        for (int rank = 0; rank < RANKS; rank++)
            if (world->pids[rank] > 0) {
                kill(world->pids[rank], SIGKILL);
                waitpid(world->pids[rank], &world->statuses[rank], 0);
            }
        fault(sweep, world, "a process outlives its bound");
        return true;
    }
    if (!world->started[RICH] && since_ms > ALONE_MS && alive) {
        world_fork(sweep, world, RICH);
        return false;
    }
    if (!alive)
        world_check(sweep, world);
    return !alive;
}

// Looks after the worlds that live, until at most so many do.
static void sweep_until(struct sweep *sweep, uint32_t most)
{
    for (;;) {
        uint32_t living = 0;
        for (uint32_t i = 0; i < SIDE_BY_SIDE; i++) {
            struct life_world *world = &sweep->worlds[i];
            if (world->outcomes != NULL && world_look(sweep, world)) {
                munmap(world->outcomes, RANKS * sizeof(struct outcome));
                world->outcomes = NULL;
            }
            living += world->outcomes != NULL;
        }
        if (living <= most)
            return;
        pause_us(2000);
    }
}

static void sweep_one(struct sweep *sweep, const struct squeeze *squeeze)
{
    struct life_world *world = sweep->worlds;
    sweep_until(sweep, SIDE_BY_SIDE - 1);
    while (world->outcomes != NULL)
        world++;
    world_begin(sweep, world, squeeze);
}

// `step` is that of a sample. What the first value is too small for, the last one is enough for.
static void sweep_limit(enum squeeze_kind kind, uint64_t first, uint64_t last, uint64_t step)
{
    const char *const chosen = getenv("LOCKSTEP_TEST_LIMITS");
    const bool all = chosen != NULL && strcmp(chosen, "all") == 0;
    const uint64_t stride = all ? (step + 7) / 8 : step;
    struct sweep sweep = {.begun = 0};
    coordinator_start(&sweep.coordinator, NULL);
    for (uint64_t value = first; value < last; value += stride)
        sweep_one(&sweep, &(struct squeeze){kind, value});
    sweep_one(&sweep, &(struct squeeze){kind, last});
    sweep_until(&sweep, 0);
    coordinator_stop(&sweep.coordinator);
    print_message("%s: %u worlds, %u well, %u refused\n", squeeze_names[kind], sweep.begun,
                  sweep.well, sweep.refused);
    assert_int_equal(sweep.faults, 0);
    assert_true(sweep.well > 0 && sweep.refused > 0);
}

// ---- The limits ---------------------------------------------------------------------------------

static void descriptors_run_out(void **state)
{
    (void)state;
    sweep_limit(SQUEEZE_DESCRIPTORS, 4, 64, 3);
}

static void threads_run_out(void **state)
{
    (void)state;
    sweep_limit(SQUEEZE_THREADS, 1, 80, 7);
}

static void address_space_runs_out(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message(
        "not under this sanitizer: it reserves more address space than any limit allows\n");
    skip();
#else
    sweep_limit(SQUEEZE_SPACE, 8, 5000, 180);
#endif
}

static void data_runs_out(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message("not under this sanitizer: its own data counts as well\n");
    skip();
#else
    sweep_limit(SQUEEZE_DATA, 1, 1200, 110);
#endif
}

static void files_are_too_small(void **state)
{
    (void)state;
    sweep_limit(SQUEEZE_FILES, 0, 16384, 1000);
}

static void handles_run_out(void **state)
{
    (void)state;
    sweep_limit(SQUEEZE_HANDLES, 0, 264, 64);
    sweep_limit(SQUEEZE_HANDLES, LOCKSTEP_MAX_PLAIN, LOCKSTEP_MAX_PLAIN + 4, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_run_out),    cmocka_unit_test(threads_run_out),
        cmocka_unit_test(address_space_runs_out), cmocka_unit_test(data_runs_out),
        cmocka_unit_test(files_are_too_small),    cmocka_unit_test(handles_run_out),
    };
    cmocka_set_test_filter(getenv("LOCKSTEP_TEST_FILTER"));
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
