// SPDX-License-Identifier: Apache-2.0
//
// Deaths in lockstep_start in jobs whose survivors go on (config.on_failure continue): real
// processes that are killed by SIGKILL at random instants from just before the call until the first
// steps. All ranks have other parameters when they call it. Afterwards all survivors have those of
// one rank, whole: of the root if it lives.
//
// LOCKSTEP_TEST_FAULT_ROUNDS jobs of each kind (12), chosen by LOCKSTEP_TEST_FAULT_SEED, which is
// printed.

#include "base/hash64.h"
#include "tests/fault/recovery_job.h"
#include "tests/support/sends.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS = JOB_RANKS,
    TENSORS = 300, // Parameters: more than travel at a time.
    LARGE = 30000, // Elements of every tenth tensor.
    SMALL = 50,
    MODULES =
        3, // The first has all ranks, the second a group, the third all ranks from step AGAIN on.
    SAVED = 2, // After this step the session is saved.
    AGAIN = 4,
    STEPS = 14,
    LATEST_US = 2500, // How much later some ranks call lockstep_start.
    DEATH_US = 16000, // The latest death after that.
    LATE_US = 250000, // The delay of each message to late_port.
};

static const uint32_t members[] = {0, 2, 3}; // Of the group.

// What a rank finds, and what it tells.
struct own {
    bool again; // True if the deaths are at the second start.
    uint32_t calls_us;
    uint32_t dies_us; // After the call. 0: it does not die.
    bool by_tensor; // True if it dies when it has received a certain tensor.
    uint32_t source[MODULES]; // 1 + the rank whose parameters it has after lockstep_start.
    uint32_t changes; // Changes of the world then.
};

// ---- The trainer --------------------------------------------------------------------------------

struct trainer {
    uint32_t rank;
    struct own *own;
    float *data[MODULES][TENSORS];
    lockstep_module *state; // The first of the modules.
};

static struct trainer trainer_of_rank; // Of this process.
static char path[64]; // Of the file that the last rank of a job without a group saves.
static bool grouped; // True if the job has a module of a group.
static bool loaded; // True if the job begins where the file ends.
static bool saves = true; // True if the job writes the file.

static uint32_t elements_of(uint32_t tensor)
{
    return tensor % 10 == 0 ? LARGE : SMALL;
}

static float value_of(uint32_t rank, uint32_t tensor, uint32_t element)
{
    return (float)(rank << 16 | tensor << 4 | element % 13);
}

static _Atomic(uint16_t) late_port; // The coordinator hears of this rank late. 0: at once.

static void sleep_us(uint32_t us)
{
    const struct timespec time = {.tv_nsec = (long)us * 1000};
    nanosleep(&time, NULL);
}

static void before_send(int fd)
{
    const uint16_t port = atomic_load(&late_port);
    if (port != 0 && send_port(fd) == port)
        sleep_us(LATE_US);
}

static void *die_later(void *argument)
{
    const struct own *own = argument;
    float *const *data = trainer_of_rank.data[own->again ? 2 : 0];
    const volatile float *last = &data[own->dies_us % TENSORS][0];
    const float before = value_of(trainer_of_rank.rank, own->dies_us % TENSORS, 0);
    if (own->by_tensor)
        while (*last == before)
            continue;
    else
        sleep_us(own->dies_us);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void register_module(struct job_rank *rank, uint32_t m, lockstep_group *group)
{
    static const char *const modules[MODULES] = {"state", "grouped", "more"};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[TENSORS];
    char names[TENSORS][16];
    int64_t shapes[TENSORS];
    lockstep_module *module;
    memset(parameters, 0, sizeof(parameters));
    for (uint32_t t = 0; t < TENSORS; t++) {
        const uint32_t elements = elements_of(t);
        float *data = calloc(elements, sizeof(float));
        for (uint32_t e = 0; e < elements; e++)
            data[e] = value_of(rank->rank, t, e);
        snprintf(names[t], sizeof(names[t]), "p%u", t);
        shapes[t] = elements;
        trainer_of_rank.data[m][t] = data;
        parameters[t].name = names[t];
        parameters[t].dtype = LOCKSTEP_FLOAT32;
        parameters[t].dims = 1;
        parameters[t].shape = &shapes[t];
        parameters[t].data = data;
        parameters[t].gradient = calloc(elements, sizeof(float));
    }
    config.name = modules[m];
    config.group = group;
    config.parameters = parameters;
    config.parameter_count = TENSORS;
    job_require(rank, lockstep_module_register(rank->session, &config, &module), "register");
    if (m == 0)
        trainer_of_rank.state = module;
}

// All parameters are those of one rank.
static void look_at_state(struct job_rank *rank)
{
    struct own *own = trainer_of_rank.own;
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    for (uint32_t m = 0; m < MODULES; m++) {
        float *const *data = trainer_of_rank.data[m];
        const uint32_t source = data[0] ? (uint32_t)data[0][0] >> 16 : 0;
        for (uint32_t t = 0; data[0] && t < TENSORS; t++)
            for (uint32_t e = 0; e < elements_of(t); e++)
                if (data[t][e] != value_of(source, t, e))
                    job_fails(rank, "module %u: element %u of tensor %u is %g, not of rank %u", m,
                              e, t, (double)data[t][e], source);
        if (data[0])
            own->source[m] = 1 + source;
    }
    job_require(rank, lockstep_world_change(rank->session, &change), "world_change");
    own->changes = (uint32_t)change.changes;
}

static void await_death(struct job_rank *rank)
{
    struct own *own = trainer_of_rank.own;
    sleep_us(own->calls_us);
    if (own->dies_us > 0)
        job_thread(rank, die_later, own);
}

static void load(struct job_rank *rank)
{
    struct own *own = job_own(rank->rank);
    lockstep_group *group;
    trainer_of_rank.rank = rank->rank;
    trainer_of_rank.own = own;
    register_module(rank, 0, NULL);
    if (grouped && rank->rank != 1) {
        job_require(rank, lockstep_group_create(rank->session, members, 3, "group", &group),
                    "group_create");
        register_module(rank, 1, group);
    }
    job_require(rank, lockstep_barrier(rank->session, "made", LOCKSTEP_WAIT_FOREVER), "barrier");
    if (loaded)
        job_require(rank, lockstep_session_load(rank->session, path), "load");
    if (!own->again)
        await_death(rank);
}

// Rank 1 dies when all but the last rank have loaded the file. The last one loads it when the world
// has the size that the file says.
static void load_around_a_death(struct job_rank *rank)
{
    uint32_t world_size = RANKS;
    trainer_of_rank.rank = rank->rank;
    trainer_of_rank.own = job_own(rank->rank);
    register_module(rank, 0, NULL);
    if (rank->rank != RANKS - 1)
        job_require(rank, lockstep_session_load(rank->session, path), "load");
    job_require(rank, lockstep_barrier(rank->session, "made", LOCKSTEP_WAIT_FOREVER), "barrier");
    if (rank->rank == 1)
        kill(getpid(), SIGKILL);
    if (rank->rank != RANKS - 1)
        return;
    while (world_size == RANKS) {
        sleep_us(1000);
        job_require(rank, lockstep_world(rank->session, NULL, &world_size), "world");
    }
    job_require(rank, lockstep_session_load(rank->session, path), "load");
}

static void train_step(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    if (step == AGAIN && trainer_of_rank.own->again) {
        register_module(rank, 2, NULL);
        await_death(rank);
        job_require(rank, lockstep_start(rank->session), "start again");
        look_at_state(rank);
    }
    if (step == 1)
        look_at_state(rank);
    job_step(rank, step, hash);
    if (step == SAVED && rank->rank == RANKS - 1 && !grouped && saves)
        job_require(rank, lockstep_session_save(rank->session, path), "save");
    // The lowest rank that lives is the last one to come back to the new coordinator.
    if (rank->job->ends && rank->rank == 1 && rank->told->changed > 0)
        atomic_store(&late_port, rank->job->port);
}

// In the first step of a phase one rank waits for one module, and the others for another one.
static void wait_for_each_other(struct job_rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const bool other = rank->rank == RANKS - 1;
    lockstep_module *module = other ? rank->module : trainer_of_rank.state;
    lockstep_call *call = NULL;
    options.phase = "last";
    job_require(rank, lockstep_barrier(rank->session, "end", LOCKSTEP_WAIT_FOREVER), "barrier");
    // Two ranks suffice for the verdict, so a slow one gets it at any of its calls.
    int status = lockstep_step_begin(rank->session, &options, NULL);
    if (status == 0)
        status = lockstep_call_begin(module, &call);
    for (uint32_t t = 0; status == 0 && t < (other ? JOB_TENSORS : TENSORS); t++)
        status = lockstep_grad_ready(module, call, t, NULL, NULL);
    if (status == 0)
        status = lockstep_call_end(call);
    if (status == 0)
        status = lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER);
    job_expect(rank, status == LOCKSTEP_E_MISMATCH, "ranks do not wait for each other");
    job_expect(rank, strstr(lockstep_error_text(), "'m'") != NULL, "module m has no name");
    job_expect(rank, strstr(lockstep_error_text(), "'state'") != NULL, "module state has no name");
}

// ---- The test -----------------------------------------------------------------------------------

static void prepare(const struct job *job, uint32_t round)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct own *own = job_own(r);
        own->again = round % 5 == 3;
        own->calls_us = round % 3 == 0 ? 0 : (uint32_t)job_random(LATEST_US);
    }
    // In most of these jobs the ranks of the next generation are at two numbers of steps.
    if (loaded)
        ((struct own *)job_own(RANKS - 1))->calls_us = DEATH_US;
    for (uint32_t d = 0; d < job->deaths; d++) {
        const uint32_t victim = (round + d) % (RANKS - 1);
        struct own *own = job_own(victim);
        own->dies_us = 1 + (uint32_t)job_random(DEATH_US);
        own->by_tensor = victim != 0 && round % 2 == 1 && d == 0;
        job_dies_at(victim, own->again ? AGAIN : 1);
    }
}

// The survivors have the same parameters: those of the root, or of the next rank that is left.
static void check_sources(uint32_t dead)
{
    for (uint32_t m = 0; m < MODULES; m++) {
        const struct own *last = job_own(RANKS - 1);
        uint32_t heir = 0;
        while ((dead >> heir & 1) != 0 || (m == 1 && heir == 1))
            heir++;
        for (uint32_t r = 0; r < RANKS; r++)
            if ((dead >> r & 1) == 0 && (m != 1 || r != 1))
                assert_int_equal(((struct own *)job_own(r))->source[m], last->source[m]);
        if (last->source[m] > 1)
            assert_true((dead & 1) != 0 && last->source[m] <= 1 + heir);
    }
}

static void survivors_start(bool tcp, uint32_t deaths, enum job_away away)
{
    uint32_t in_start = 0;
    uint32_t others = 0;
    for (uint32_t round = 0; round < job_rounds(12); round++) {
        struct job job = {.name = tcp ? "tcp" : "auto",
                          .size = RANKS,
                          .deaths = deaths,
                          .steps = STEPS,
                          .tcp = tcp,
                          .away = away,
                          .prepares = prepare,
                          .loads = load,
                          .step = train_step};
        grouped = round % 2 == 1;
        loaded = round % 4 == 2;
        check_sources(job_run(&job, round, NULL));
        const struct own *last = job_own(RANKS - 1);
        in_start += last->changes > 0;
        others += last->source[last->again ? 2 : 0] > 1;
    }
    printf("%u jobs had a change in a start, and %u other parameters than the root's\n", in_start,
           others);
}

static void one_dies(void **state)
{
    (void)state;
    survivors_start(true, 1, JOB_STAYS);
    survivors_start(false, 1, JOB_STAYS);
}

static void two_die(void **state)
{
    (void)state;
    survivors_start(true, 2, JOB_STAYS);
    survivors_start(false, 2, JOB_STAYS);
}

static void the_coordinator_dies_too(void **state)
{
    (void)state;
    survivors_start(false, 1, JOB_AWAY_AFTER);
}

// Makes the file one of a world of another size, in which no payload travels by doubling.
static void change_file(void)
{
    static char bytes[1 << 20];
    static char changed[1 << 20];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, sizeof(bytes) - 1, file);
    fclose(file);
    bytes[size] = '\0';
    const char *chunk = strstr(bytes, "chunk_bytes ");
    const char *step = strstr(bytes, "step ");
    const char *end = strstr(bytes, "\nend ") + 1;
    assert_true(chunk && step && end);
    const int length =
        snprintf(changed, sizeof(changed),
                 "lockstep-saved 3\nkind session\nworld_size %d\n%.*stuning 0 0\n%.*s", RANKS - 1,
                 (int)(strstr(chunk, "tuning ") - chunk), chunk, (int)(end - step), step);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%send %016" PRIx64 "\n", changed, hash64(changed, (size_t)length));
    assert_int_equal(fclose(file), 0);
}

static void prepare_death(const struct job *job, uint32_t round)
{
    (void)job;
    (void)round;
    for (uint32_t r = 0; r < RANKS; r++)
        *(struct own *)job_own(r) = (struct own){.again = false};
    job_dies_at(1, 1);
}

// Condition: a rank dies between the loads of a file, which is of a world of the size that is left.
// Decision: the survivors use one tuning, that of the file, and train.
static void one_dies_between_loads(void **state)
{
    struct job job = {.name = "between",
                      .size = RANKS,
                      .steps = STEPS,
                      .tcp = true,
                      .loads = load,
                      .prepares = prepare,
                      .step = train_step};
    (void)state;
    grouped = loaded = false;
    job_run(&job, 0, NULL);
    change_file();
    job.deaths = 1;
    job.loads = load_around_a_death;
    job.prepares = prepare_death;
    saves = false;
    job_run(&job, 1, NULL); // Rank 1 dies.
    saves = true;
}

// Condition: the rank that had named the modules dies, and so does the coordinator. To the new one
// the rank comes last that would name them now. Decision: a verdict has the names.
static void modules_have_names(void **state)
{
    struct job job = {.name = "names",
                      .size = RANKS,
                      .deaths = 1,
                      .steps = STEPS,
                      .away = JOB_AWAY_AFTER,
                      .loads = load,
                      .step = train_step,
                      .ends = wait_for_each_other};
    (void)state;
    grouped = loaded = false;
    job_run(&job, 0, NULL); // Rank 0 dies.
    job.away_us = 50000; // The others have recovered.
    job_run(&job, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(one_dies, job_teardown),
        cmocka_unit_test_teardown(two_die, job_teardown),
        cmocka_unit_test_teardown(the_coordinator_dies_too, job_teardown),
        cmocka_unit_test_teardown(one_dies_between_loads, job_teardown),
        cmocka_unit_test_teardown(modules_have_names, job_teardown),
    };
    job_memory(sizeof(struct own));
    job_seed();
    snprintf(path, sizeof(path), "/tmp/lockstep-start-%d", (int)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
