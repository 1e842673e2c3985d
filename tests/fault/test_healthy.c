// SPDX-License-Identifier: Apache-2.0
//
// A job that is well, with everything in it that looks like a standstill and is none: a slow first
// step, evaluations on one rank, pauses that are declared and longer than the floor, slow calls,
// checkpoints, ranks that are late for a while, and now and then more to compute on the machine
// than it has processors. No stall may be raised. Then one rank does stand still, which has to be
// raised: somebody was watching.
//
// A few seconds with a low floor; with LOCKSTEP_TEST_HEALTHY_MINUTES so long, with the usual floor
// (`make healthy`). All times of the trainers are in floors. The actions of a rank and their times
// are drawn from LOCKSTEP_TEST_SEED, which is printed.

#include "tests/fault/process_world.h"
#include "tests/fault/stall_ask.h"

#include "base/clock.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <inttypes.h>
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 4
#define HOGS 4 // Processes that do nothing but compute, now and then.
#define ACTOR_VALUES 40009
#define CRITIC_VALUES 5003
#define FIRST_STEP_PERCENT 400 // Percent of the floor; the bound is ten floors.
#define SHORT_FLOOR_MS (slow_ms(1) > 1 ? 2000 : 1000) // With CI=true others may compute, too.
#define SHORT_MS 25000
#define USUAL_FLOOR_MS 10000

// Events that look like a standstill.
enum event {
    EVENT_EVALUATION, // Between two steps, without a word: shorter than the floor.
    EVENT_PAUSE, // The same with a word: longer than the floor, and than was said.
    EVENT_CHECKPOINT, // Written to the disk, without a word.
    EVENT_SLOW_CALL, // Between two gradients of a call.
    EVENT_LATE, // Some steps take longer.
    EVENT_KINDS
};

// Written by one side each, or atomic; in memory that all processes share.
struct stage {
    uint64_t floor_ms; // The test, before the first fork.
    uint64_t seed; // The test, before the first fork.
    atomic_bool stop; // The test.
    atomic_bool holds; // The test: rank 1 stands still in its next call.
    atomic_bool checked; // Rank 0: the state was the same on all ranks at the end.
    atomic_uint steps; // Rank 0.
    atomic_uint events[EVENT_KINDS];
};

struct healthy {
    struct stage *stage;
    uint32_t rank;
    uint64_t random;
    uint64_t event_ms; // When the next event is due.
    uint32_t late_steps; // Further steps that take longer.
    bool slow_call; // True if the next call is slow.
    lockstep_session *session;
    lockstep_module *actor;
    lockstep_module *critic;
    float actor_values[2][ACTOR_VALUES], actor_gradients[2][ACTOR_VALUES];
    float critic_values[2][CRITIC_VALUES], critic_gradients[2][CRITIC_VALUES];
};

static struct coordinator_process coordinator;
static struct stage *stage;
static pid_t trainers[RANKS];
static pid_t hogs[HOGS];
static char checkpoint[] = "/tmp/test_healthy.XXXXXX";

// ---- Small things -------------------------------------------------------------------------------

static void check(const char *what, int status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, lockstep_error_text());
    exit(3);
}

// Uniform in [low, high).
static uint64_t draw(uint64_t *state, uint64_t low, uint64_t high)
{
    return low + choice_random(state) % (high - low);
}

// Computes until clock_now_ms has reached ms.
static void compute_ms(uint64_t ms)
{
    const uint64_t end_ms = clock_now_ms() + ms;
    while (clock_now_ms() < end_ms)
        ;
}

// Spends a percentage of the floor: half of that time asleep, half of it computing.
static void busy_percent(const struct healthy *healthy, uint64_t percent)
{
    const uint64_t ms = healthy->stage->floor_ms * percent / 100;
    pause_us(ms / 2 * 1000);
    compute_ms(ms / 2);
}

// ---- A trainer: its model -----------------------------------------------------------------------

static lockstep_module *module_of_two(lockstep_session *session, const char *name, int64_t values,
                                      float *const data[2], float *const gradients[2])
{
    struct lockstep_parameter parameters[2];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    for (uint32_t p = 0; p < 2; p++)
        parameters[p] = (struct lockstep_parameter){.name = p == 0 ? "weight" : "bias",
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &values,
                                                    .data = data[p],
                                                    .gradient = gradients[p]};
    config.name = name;
    config.parameters = parameters;
    config.parameter_count = 2;
    check("register", lockstep_module_register(session, &config, &module));
    return module;
}

static void healthy_register(struct healthy *healthy)
{
    healthy->actor =
        module_of_two(healthy->session, "actor", ACTOR_VALUES,
                      (float *const[2]){healthy->actor_values[0], healthy->actor_values[1]},
                      (float *const[2]){healthy->actor_gradients[0], healthy->actor_gradients[1]});
    healthy->critic = module_of_two(
        healthy->session, "critic", CRITIC_VALUES,
        (float *const[2]){healthy->critic_values[0], healthy->critic_values[1]},
        (float *const[2]){healthy->critic_gradients[0], healthy->critic_gradients[1]});
}

static void healthy_open(struct healthy *healthy)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.job = "healthy";
    config.world_size = RANKS;
    config.rank_hint = (int32_t)healthy->rank;
    check("open", lockstep_open(&config, &healthy->session));
    healthy_register(healthy);
    check("start", lockstep_start(healthy->session));
}

// ---- A trainer: what looks like a standstill ----------------------------------------------------

static void event_pause(struct healthy *healthy)
{
    const uint64_t said_ms = healthy->stage->floor_ms * 3 / 2;
    check("pause", lockstep_pause(healthy->session, "evaluation", said_ms));
    busy_percent(healthy, 240);
    check("resume", lockstep_resume(healthy->session));
}

static void event_checkpoint(struct healthy *healthy)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/rank-%u", checkpoint, healthy->rank);
    FILE *file = fopen(path, "we");
    if (!file || fwrite(healthy->actor_values, sizeof(healthy->actor_values), 1, file) != 1 ||
        fflush(file) != 0 || fsync(fileno(file)) != 0 || fclose(file) != 0)
        exit(4);
    check("save", lockstep_session_save(healthy->session, path));
}

static void healthy_event(struct healthy *healthy)
{
    if (clock_now_ms() < healthy->event_ms)
        return;
    const enum event event = (enum event)draw(&healthy->random, 0, EVENT_KINDS);
    atomic_fetch_add(&healthy->stage->events[event], 1);
    switch (event) {
    case EVENT_EVALUATION:
        busy_percent(healthy, draw(&healthy->random, 30, 60));
        break;
    case EVENT_PAUSE:
        event_pause(healthy);
        break;
    case EVENT_CHECKPOINT:
        event_checkpoint(healthy);
        break;
    case EVENT_SLOW_CALL:
        healthy->slow_call = true;
        break;
    case EVENT_LATE:
        healthy->late_steps = 20;
        break;
    case EVENT_KINDS:
        break;
    }
    healthy->event_ms =
        clock_now_ms() + healthy->stage->floor_ms * draw(&healthy->random, 20, 200) / 100;
}

// ---- A trainer: steps ---------------------------------------------------------------------------

// All gradients are small whole numbers, so that parameters stay the same on all ranks.
static void module_step(struct healthy *healthy, lockstep_module *module, float *const gradients[2],
                        uint64_t values)
{
    lockstep_call *call;
    check("call_begin", lockstep_call_begin(module, &call));
    for (uint32_t p = 2; p-- > 0;) {
        for (uint64_t i = 0; i < values; i++)
            gradients[p][i] = (float)((i * 7 + healthy->rank) % 13) - 6;
        check("grad_ready", lockstep_grad_ready(module, call, p, NULL, NULL));
        if (module == healthy->actor && healthy->slow_call)
            busy_percent(healthy, 50);
        while (module == healthy->critic && healthy->rank == 1 &&
               atomic_load(&healthy->stage->holds))
            pause_us(10000);
    }
    if (module == healthy->actor)
        healthy->slow_call = false;
    check("call_end", lockstep_call_end(call));
}

static void values_follow(float *values, const float *gradients, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        values[i] -= 0.001f * gradients[i];
}

static void healthy_step(struct healthy *healthy)
{
    pause_us(draw(&healthy->random, 2000, 20000) * (healthy->late_steps > 0 ? 4 : 1));
    healthy->late_steps -= healthy->late_steps > 0;
    check("step_begin", lockstep_step_begin(healthy->session, NULL, NULL));
    module_step(healthy, healthy->actor,
                (float *const[2]){healthy->actor_gradients[0], healthy->actor_gradients[1]},
                ACTOR_VALUES);
    module_step(healthy, healthy->critic,
                (float *const[2]){healthy->critic_gradients[0], healthy->critic_gradients[1]},
                CRITIC_VALUES);
    if (healthy->rank == 0 && atomic_load(&healthy->stage->stop))
        check("stop", lockstep_counter_add(healthy->session, "stop", 1));
    check("step_end", lockstep_step_end(healthy->session, NULL));
    for (uint32_t p = 0; p < 2; p++) {
        values_follow(healthy->actor_values[p], healthy->actor_gradients[p], ACTOR_VALUES);
        values_follow(healthy->critic_values[p], healthy->critic_gradients[p], CRITIC_VALUES);
    }
}

static bool healthy_goes_on(struct healthy *healthy)
{
    int64_t stop = 0;
    check("counter", lockstep_counter_read(healthy->session, "stop", &stop));
    return stop == 0;
}

static void healthy_run(uint32_t rank)
{
    struct healthy *healthy = calloc(1, sizeof(*healthy));
    if (!healthy)
        exit(4);
    healthy->stage = stage;
    healthy->rank = rank;
    healthy->random = stage->seed + rank;
    healthy_open(healthy);
    if (rank == 2) // As one that compiles its kernels first.
        busy_percent(healthy, FIRST_STEP_PERCENT);
    do {
        healthy_step(healthy);
        if (rank == 0)
            atomic_fetch_add(&stage->steps, 1);
        healthy_event(healthy);
    } while (healthy_goes_on(healthy));
    check("state_check", lockstep_state_check(healthy->session));
    check("close", lockstep_close(healthy->session));
    if (rank == 0)
        atomic_store(&stage->checked, true);
    free(healthy);
    exit(0);
}

// ---- The machine --------------------------------------------------------------------------------

// Computes during one of every four floors.
static void hog_run(void)
{
    prctl(PR_SET_NAME, "hog");
    for (;;) {
        pause_us(stage->floor_ms * 3000);
        compute_ms(stage->floor_ms);
    }
}

static void start(void)
{
    char floor_ms[48];
    const char *const arguments[] = {"--http=127.0.0.1:0", floor_ms, NULL};
    snprintf(floor_ms, sizeof(floor_ms), "--stall-floor-ms=%" PRIu64, stage->floor_ms);
    coordinator_start(&coordinator, arguments);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if ((trainers[rank] = process_fork()) == 0)
            healthy_run(rank);
    for (uint32_t i = 0; i < HOGS; i++)
        if ((hogs[i] = process_fork()) == 0)
            hog_run();
}

static void end_all(const pid_t *pids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (pids[i] > 0 && kill(pids[i], SIGKILL) == 0)
            waitpid(pids[i], NULL, 0);
    }
}

// Checks that no trainer has failed. May be called while they train.
static void expect_trainers(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(waitpid(trainers[rank], NULL, WNOHANG), 0);
}

static void expect_end(void)
{
    atomic_store(&stage->stop, true);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int status = 0;
        assert_true(process_reap(trainers[rank], WAIT_MS + 10 * stage->floor_ms, &status));
        trainers[rank] = 0;
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_true(atomic_load(&stage->checked));
    coordinator_stop(&coordinator);
}

// ---- The test -----------------------------------------------------------------------------------

static void say_what_was(uint64_t ms)
{
    print_message(
        "%" PRIu64 " s, floor %" PRIu64 " ms: %u steps of %d ranks, %u evaluations, %u "
        "pauses, %u checkpoints, %u slow calls, %u times late; no stall\n",
        ms / 1000, stage->floor_ms, atomic_load(&stage->steps), RANKS,
        atomic_load(&stage->events[EVENT_EVALUATION]), atomic_load(&stage->events[EVENT_PAUSE]),
        atomic_load(&stage->events[EVENT_CHECKPOINT]), atomic_load(&stage->events[EVENT_SLOW_CALL]),
        atomic_load(&stage->events[EVENT_LATE]));
}

// Condition: nobody stands still, whatever it looks like. Decision: nothing is raised. Condition:
// then somebody does. Decision: that is raised.
static void no_alarm_while_all_is_well(void **state)
{
    const char *minutes = getenv("LOCKSTEP_TEST_HEALTHY_MINUTES");
    const bool is_long = minutes && minutes[0] != '\0';
    const uint64_t span_ms = is_long ? (uint64_t)(strtod(minutes, NULL) * 60000) : SHORT_MS;
    const uint64_t begin_ms = clock_now_ms();
    (void)state;
    stage->floor_ms = is_long ? USUAL_FLOOR_MS : SHORT_FLOOR_MS;
    start();
    while (clock_now_ms() < begin_ms + span_ms || atomic_load(&stage->steps) == 0) {
        pause_us(stage->floor_ms * 1000);
        expect_trainers();
        stall_expect(&coordinator, "never", 0);
    }
    assert_int_equal(stall_total(&coordinator), 0);
    say_what_was(clock_now_ms() - begin_ms);
    atomic_store(&stage->holds, true);
    stall_expect(&coordinator, "1:in_call:critic", WAIT_MS + 10 * stage->floor_ms);
    assert_int_equal(stall_total(&coordinator), 1);
    atomic_store(&stage->holds, false);
    expect_end();
}

// It runs the library from outside only, and everything in it runs in other tests, too.
static bool is_sanitized(void)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    return sanitizer && sanitizer[0] != '\0';
}

static void not_under_a_sanitizer(void **state)
{
    (void)state;
    print_message("a healthy job takes its time: half a minute in the release build only\n");
    skip();
}

static int setup(void **state)
{
    const char *seed = getenv("LOCKSTEP_TEST_SEED");
    (void)state;
    stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (stage == MAP_FAILED || !mkdtemp(checkpoint))
        return -1;
    stage->seed = seed ? strtoull(seed, NULL, 10) : clock_now_us();
    print_message("LOCKSTEP_TEST_SEED=%" PRIu64 "\n", stage->seed);
    return 0;
}

static int teardown(void **state)
{
    char path[64];
    (void)state;
    end_all(trainers, RANKS);
    end_all(hogs, HOGS);
    end_all(&coordinator.pid, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        snprintf(path, sizeof(path), "%s/rank-%u", checkpoint, rank);
        unlink(path);
    }
    rmdir(checkpoint);
    munmap(stage, sizeof(*stage));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_alarm_while_all_is_well, setup, teardown),
    };
    const struct CMUnitTest none[] = {cmocka_unit_test(not_under_a_sanitizer)};
    if (is_sanitized())
        return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
