// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/life_sweep.h"

#include "base/clock.h"
#include "tests/fault/life.h"
#include "tests/fault/process_world.h"
#include "tests/support/bounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIDE_BY_SIDE 4
#define ALONE_MS 150 // A poor process that fails in this time needs no second one.
#define OPEN_MS test_bound_ms(3000)
#define LIFE_MS (OPEN_MS + test_bound_ms(10000))

enum {
    POOR,
    RICH,
    RANKS
};

struct life_world {
    uint64_t value;
    uint32_t number; // Number of this life among all; also its job's name.
    pid_t pids[RANKS]; // 0: none, or reaped.
    int statuses[RANKS]; // Statuses from waitpid.
    bool started[RANKS];
    uint64_t begun_ms;
    struct outcome *outcomes; // [RANKS], shared with the processes. NULL: the place is free.
};

struct sweep {
    struct coordinator_process coordinator;
    struct life_world worlds[SIDE_BY_SIDE];
    const struct squeeze *squeeze;
    struct swept swept;
};

static void fault(struct sweep *sweep, const struct life_world *world, const char *what)
{
    static const char *const who[] = {"poor", "rich"};
    sweep->swept.faults++;
    print_error("%s %llu: %s\n", sweep->squeeze->name, (unsigned long long)world->value, what);
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
                              .open_ms = (uint32_t)OPEN_MS,
                              .abrupt = rank == POOR && sweep->squeeze->abrupt};
    snprintf(job, sizeof(job), "life-%u", world->number);
    world->started[rank] = true;
    world->pids[rank] = process_fork();
    assert_true(world->pids[rank] >= 0);
    if (world->pids[rank] > 0)
        return;
    if (rank == POOR)
        sweep->squeeze->apply(world->value, world->number);
    life_live(&life, &world->outcomes[rank]);
    if (rank == POOR && sweep->squeeze->used)
        world->outcomes[rank].used = sweep->squeeze->used();
    _exit(0);
}

static void world_begin(struct sweep *sweep, struct life_world *world, uint64_t value)
{
    static uint32_t numbers;
    void *shared = mmap(NULL, RANKS * sizeof(struct outcome), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    *world = (struct life_world){
        .value = value, .number = numbers++, .begun_ms = clock_now_ms(), .outcomes = shared};
    sweep->swept.worlds++;
    world_fork(sweep, world, POOR);
}

static void world_check(struct sweep *sweep, const struct life_world *world)
{
    const struct outcome *poor = &world->outcomes[POOR];
    const struct outcome *rich = &world->outcomes[RICH];
    const char *says = sweep->squeeze->says;
    for (int rank = 0; rank < RANKS; rank++)
        if (world->started[rank] &&
            (!WIFEXITED(world->statuses[rank]) || WEXITSTATUS(world->statuses[rank]) != 0)) {
            fault(sweep, world, "a process did not end by itself");
            return;
        }
    if (poor->status < 0 && poor->status != LOCKSTEP_E_SYSTEM)
        fault(sweep, world, "the poor one has another error than LOCKSTEP_E_SYSTEM");
    else if (poor->status < 0 && says && !strstr(poor->text, says))
        fault(sweep, world, "the poor one is not told what it was");
    else if (poor->status < 0 && poor->open_ms > OPEN_MS)
        fault(sweep, world, "the poor one has waited beyond its timeout");
    else if (world->started[RICH] && rich->status < 0 && !strstr(rich->text, "rank 0") &&
             !strstr(rich->text, "1 of 2 workers joined"))
        fault(sweep, world, "the rich one does not hear of the poor one");
    else if (poor->failed && strstr(rich->text, "onnection"))
        fault(sweep, world, "the rich one hears of a connection, and not of what was scarce");
    else if (strstr(rich->text, "rank 1 on host") || strstr(poor->text, "rank 1 on host"))
        fault(sweep, world, "the rich one is blamed");
    else if (poor->status < 0)
        sweep->swept.refused++;
    else
        sweep->swept.well++;
    if (poor->used > sweep->swept.used)
        sweep->swept.used = poor->used;
}

// Polls the processes of a world, and kills them when the world outlives its bound. True: the world
// has ended and was judged.
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

// Polls the running worlds until at most `most` of them still run.
static void sweep_until(struct sweep *sweep, uint32_t most)
{
    for (;;) {
        uint32_t living = 0;
        for (uint32_t i = 0; i < SIDE_BY_SIDE; i++) {
            struct life_world *world = &sweep->worlds[i];
            if (world->outcomes && world_look(sweep, world)) {
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

static void sweep_one(struct sweep *sweep, uint64_t value)
{
    struct life_world *world = sweep->worlds;
    sweep_until(sweep, SIDE_BY_SIDE - 1);
    while (world->outcomes)
        world++;
    world_begin(sweep, world, value);
}

struct swept life_sweep(const struct squeeze *squeeze, uint64_t first, uint64_t last, uint64_t step)
{
    const char *const chosen = getenv("LOCKSTEP_TEST_LIMITS");
    const bool all = chosen && strcmp(chosen, "all") == 0;
    const uint64_t stride = all ? (step + 7) / 8 : step;
    struct sweep sweep = {.squeeze = squeeze};
    coordinator_start(&sweep.coordinator, NULL);
    for (uint64_t value = first; value < last; value += stride)
        sweep_one(&sweep, value);
    sweep_one(&sweep, last);
    sweep_until(&sweep, 0);
    coordinator_stop(&sweep.coordinator);
    print_message("%s: %u worlds, %u well, %u refused\n", squeeze->name, sweep.swept.worlds,
                  sweep.swept.well, sweep.swept.refused);
    return sweep.swept;
}
