// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives in jobs whose survivors go on (config.on_failure continue): real processes, of
// which some are killed by SIGKILL at random instants. Each collective ends on every survivor with
// the same status, OK or LOCKSTEP_E_CHANGED, and with the same bits; one that has failed is called
// again and works. In two of three jobs ranks have their data in the memory of a device, which is a
// stand-in (tests/fake_gpu).
//
// LOCKSTEP_TEST_FAULT_ROUNDS jobs (6), chosen by LOCKSTEP_TEST_FAULT_SEED, which is printed.

#include "tests/fault/recovery_job.h"

#include "base/hash64.h"
#include "tests/support/choice.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/sends.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RANKS = JOB_RANKS,
    TURNS = 60, // A turn is a step of the job.
    ENTRIES = 1200, // Of a rank's log.
    ELEMENTS = 100000,
    DEATH_US = 30000, // From the begin of a collective to a death that no element triggers.
    LATE_US = 150000, // Until then survivors have recovered.
    // Frames of a rank over TCP in a barrier of four ranks: two, and two of its agreement.
    MEET_FRAMES = 4,
};

enum operation {
    SUM_NOW,
    SUM_LATER,
    MEET,
    COPY
};

struct entry {
    uint32_t turn;
    enum operation operation;
    int status;
    uint32_t set; // Ranks that are in the result, or the rank that it comes from.
    uint64_t hash;
};

// What a rank tells the test, or is told.
struct log {
    // The rank kills itself in this operation: in SUM_NOW or COPY when this element arrives
    // (ELEMENTS: after a moment, before any does), in MEET before its last frame. All ranks have
    // the result of the barrier then, and one survivor does not know that.
    uint32_t dies_by;
    enum operation dies_in;
    // The rank begins this operation of this turn long after the others; turn 0: none.
    uint64_t late_at;
    enum operation late_in;
    uint32_t count;
    uint32_t changed; // Collectives that ended with LOCKSTEP_E_CHANGED.
    uint32_t renumbered; // Broadcasts that were refused because ranks have other numbers.
    struct entry entries[ENTRIES];
};

// ---- The trainer --------------------------------------------------------------------------------

struct trainer {
    struct job_rank *job;
    struct log *log;
    uint32_t rank;
    uint32_t world_size;
    uint64_t random;
    lockstep_session *session;
    lockstep_module *module;
    float *data[2]; // [ELEMENTS]
    float gradient[100];
};

static void expect(const struct trainer *trainer, bool right, const char *what)
{
    job_expect(trainer->job, right, what);
}

static void learn_world(struct trainer *trainer)
{
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    expect(trainer, lockstep_world_change(trainer->session, &change) == 0, "world_change");
    if (change.changes > 0)
        trainer->world_size = change.world_size;
}

static void note(struct trainer *trainer, uint32_t turn, enum operation operation, int status,
                 const float *data, uint32_t count)
{
    struct log *log = trainer->log;
    struct entry entry = {.turn = turn, .operation = operation, .status = status};
    expect(trainer, status == 0 || status == LOCKSTEP_E_CHANGED, "a collective fails");
    expect(trainer, log->count < ENTRIES, "too many entries");
    log->changed += status != 0;
    if (status == 0 && data) {
        entry.hash = hash64(data, count * sizeof(*data));
        entry.set = job_set_of_sum(trainer->job, data[0], turn, 0);
        expect(trainer, entry.set != UINT32_MAX, "no sum");
        for (uint32_t e = 0; e < count; e++)
            expect(trainer,
                   data[e] == data[e % 5] &&
                       (e >= 5 || job_set_of_sum(trainer->job, data[e], turn, e) == entry.set),
                   "a sum of several sets");
    }
    log->entries[log->count++] = entry;
    if (status != 0)
        learn_world(trainer);
}

static void fill(const struct trainer *trainer, float *data, uint32_t turn, uint32_t count)
{
    for (uint32_t e = 0; e < count; e++)
        data[e] = job_gradient(trainer->rank, turn, e);
}

static void *die_by_element(void *argument)
{
    const struct trainer *trainer = argument;
    const uint32_t element = trainer->log->dies_by;
    const volatile float *sum = &trainer->data[0][element % ELEMENTS];
    const float own = job_gradient(trainer->rank, trainer->job->told->dies_at, element);
    if (element == ELEMENTS)
        pause_us(DEATH_US);
    while (element < ELEMENTS && *sum == own)
        continue;
    kill(getpid(), SIGKILL);
    return NULL;
}

// The pause is time for the other ranks to use the earlier frames.
static void before_send(int fd)
{
    (void)fd;
    if (!sends_over())
        return;
    pause_us(20000);
    kill(getpid(), SIGKILL);
}

static void arm(struct trainer *trainer, uint32_t turn, enum operation operation)
{
    if (trainer->log->late_at == turn && trainer->log->late_in == operation)
        pause_us(LATE_US);
    if (trainer->job->told->dies_at != turn || trainer->log->dies_in != operation)
        return;
    if (operation == MEET)
        atomic_store(&sends_left, MEET_FRAMES - 1);
    else
        job_thread(trainer->job, die_by_element, trainer);
}

static void sum_now(struct trainer *trainer, uint32_t turn, uint32_t count)
{
    int status;
    do {
        fill(trainer, trainer->data[0], turn, count);
        arm(trainer, turn, SUM_NOW);
        status = lockstep_allreduce(trainer->session, "now", trainer->data[0], count,
                                    LOCKSTEP_FLOAT32, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER);
        note(trainer, turn, SUM_NOW, status, trainer->data[0], count);
    } while (status == LOCKSTEP_E_CHANGED);
}

// Two at a time.
static void sum_later(struct trainer *trainer, uint32_t turn, uint32_t count)
{
    static const char *const names[] = {"later", "latest"};
    lockstep_work *works[2];
    for (uint32_t i = 0; i < 2; i++) {
        fill(trainer, trainer->data[i], turn, count);
        const int status =
            lockstep_allreduce_async(trainer->session, names[i], trainer->data[i], count,
                                     LOCKSTEP_FLOAT32, LOCKSTEP_SUM, &works[i]);
        if (status != 0)
            works[i] = NULL;
        if (status != 0)
            note(trainer, turn, SUM_LATER, status, NULL, 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        if (works[i])
            note(trainer, turn, SUM_LATER, lockstep_work_wait(works[i], LOCKSTEP_WAIT_FOREVER),
                 trainer->data[i], count);
}

static void meet(struct trainer *trainer, uint32_t turn)
{
    int status;
    do {
        arm(trainer, turn, MEET);
        status = lockstep_barrier(trainer->session, "meet", LOCKSTEP_WAIT_FOREVER);
        note(trainer, turn, MEET, status, NULL, 0);
    } while (status == LOCKSTEP_E_CHANGED);
}

static void copy(struct trainer *trainer, uint32_t turn, uint32_t count)
{
    int status;
    do {
        const uint32_t root = turn % 2 == 0 ? 0 : trainer->world_size - 1;
        fill(trainer, trainer->data[0], turn, count);
        arm(trainer, turn, COPY);
        status = lockstep_broadcast(trainer->session, "copy", trainer->data[0], count,
                                    LOCKSTEP_FLOAT32, root, LOCKSTEP_WAIT_FOREVER);
        if (status == LOCKSTEP_E_CHANGED &&
            strstr(lockstep_error_text(), "ranks may have") == lockstep_error_text())
            trainer->log->renumbered++;
        else
            note(trainer, turn, COPY, status, trainer->data[0], count);
        if (status == LOCKSTEP_E_CHANGED)
            learn_world(trainer);
    } while (status == LOCKSTEP_E_CHANGED);
    expect(trainer, turn % 2 == 0 || trainer->data[0][0] == job_gradient(RANKS - 1, turn, 0),
           "a broadcast from another rank");
}

static void train_step(struct trainer *trainer)
{
    struct lockstep_step_view view;
    lockstep_call *call;
    job_begin(trainer->job, NULL, &view);
    trainer->world_size = view.world_size;
    expect(trainer, lockstep_call_begin(trainer->module, &call) == 0, "call_begin");
    expect(trainer, lockstep_grad_ready(trainer->module, call, 0, NULL, NULL) == 0, "ready");
    expect(trainer, lockstep_call_end(call) == 0, "call_end");
    expect(trainer, lockstep_step_end(trainer->session, NULL) == 0, "step_end");
}

static struct trainer trainer; // Of this process.

static void plain_registers(struct job_rank *rank)
{
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameter;
    static float value[100];
    const int64_t length = 100;
    memset(&parameter, 0, sizeof(parameter));
    parameter.name = "p";
    parameter.dtype = LOCKSTEP_FLOAT32;
    parameter.dims = 1;
    parameter.shape = &length;
    parameter.data = value;
    parameter.gradient = trainer.gradient;
    module.name = "m";
    module.parameters = &parameter;
    module.parameter_count = 1;
    job_require(rank, lockstep_module_register(rank->session, &module, &rank->module), "register");
    trainer.job = rank;
    trainer.log = job_own(rank->rank);
    trainer.rank = rank->rank;
    trainer.world_size = RANKS;
    trainer.random = job_random(UINT64_MAX) * 31 + rank->rank + 1;
    trainer.session = rank->session;
    trainer.module = rank->module;
    for (uint32_t i = 0; i < 2; i++)
        trainer.data[i] = calloc(ELEMENTS, sizeof(float));
}

static void take_turn(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    const uint32_t turn = (uint32_t)step;
    const uint32_t count = turn % 5 == 0 ? ELEMENTS : 50 + turn % 3 * 4000;
    (void)rank;
    (void)hash;
    sum_now(&trainer, turn, count);
    if (choice_below(&trainer.random, 3) == 0)
        pause_us(choice_below(&trainer.random, 2000));
    sum_later(&trainer, turn, count);
    copy(&trainer, turn, count);
    meet(&trainer, turn);
    if (turn % 3 == 0)
        train_step(&trainer);
}

// ---- The test -----------------------------------------------------------------------------------

static uint32_t with_device; // Set of ranks.

static void configure(struct lockstep_config *config, struct lockstep_module_config *module)
{
    static char device[16];
    (void)module;
    snprintf(device, sizeof(device), "cuda:%d", (int)config->rank_hint);
    config->device = (with_device >> config->rank_hint & 1) != 0 ? device : "none";
    fake_gpu_part_hosts((unsigned)config->rank_hint);
}

static const struct log *log_of(uint32_t rank)
{
    return job_own(rank);
}

static void prepare(const struct job *job, uint32_t round)
{
    const uint32_t first = round % (RANKS - 1);
    struct log *log = job_own(first);
    if (round % 3 == 2 && !job->tcp)
        return;
    job_dies_at(first, 5);
    log->dies_by = (uint32_t)job_random(ELEMENTS);
    log->dies_in = round % 3 == 2 ? MEET : round % 2 == 0 ? COPY : SUM_NOW;
    // This rank begins when the collective has failed on the others.
    const bool late = round % 4 < 2 && log->dies_in != MEET;
    if (late && log->dies_in == SUM_NOW)
        log->dies_by = ELEMENTS;
    const enum operation late_in = log->dies_in;
    log = job_own(RANKS - 2);
    log->late_at = late ? 5 : 0;
    log->late_in = late_in;
}

static bool same(const struct entry *a, const struct entry *b)
{
    return a->turn == b->turn && a->operation == b->operation && a->status == b->status &&
           a->set == b->set && a->hash == b->hash;
}

// A rank that dies may not have noted its last collective.
static void check_round(uint32_t round, uint32_t dead)
{
    const uint32_t living = ((1u << RANKS) - 1) & ~dead;
    const struct log *last = log_of(RANKS - 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct log *log = log_of(r);
        if ((living >> r & 1) != 0)
            assert_int_equal(log->count, last->count);
        for (uint32_t i = 0; i < log->count; i++)
            if (!same(&log->entries[i], &last->entries[i]))
                fail_msg("round %u: turn %u, collective %u of kind %d: rank %u has status %d and "
                         "rank %u has %d, or other bits",
                         round, log->entries[i].turn, i, (int)log->entries[i].operation, r,
                         log->entries[i].status, RANKS - 1, last->entries[i].status);
    }
    for (uint32_t i = 0; i < last->count; i++)
        if (last->entries[i].status == 0 && last->entries[i].operation <= SUM_LATER)
            assert_int_equal(last->entries[i].set & living, living);
}

static void collectives_end_alike_on_survivors(void **state)
{
    static const uint32_t worlds[] = {0, 15, 5};
    const uint32_t rounds = job_rounds(6);
    uint32_t changed = 0;
    (void)state;
    for (uint32_t round = 0; round < rounds; round++) {
        struct job job = {.name = round % 2 == 0 ? "tcp" : "auto",
                          .size = RANKS,
                          .deaths = 1 + round % 3,
                          .steps = TURNS,
                          .first_death = 2,
                          .tcp = round % 2 == 0,
                          .configure = configure,
                          .prepares = prepare,
                          .registers = plain_registers,
                          .step = take_turn};
        with_device = worlds[(round + round / 3) % 3];
        check_round(round, job_run(&job, round, NULL));
        const struct log *last = log_of(RANKS - 1);
        printf("round %u: %u collectives changed, %u renumbered\n", round, last->changed,
               last->renumbered);
        changed += last->changed;
    }
    assert_true(changed > 0 || rounds < 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(collectives_end_alike_on_survivors, job_teardown),
    };
    fake_gpu_name_libraries();
    setenv("FAKE_CUDA_EVERYWHERE", "1", 1);
    setenv("FAKE_CUDA_DELAY_US", "0-3000", 0);
    job_memory(sizeof(struct log));
    job_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
