// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives in jobs whose survivors go on (config.on_failure continue): real processes, of
// which some are killed by SIGKILL at random instants. Each collective ends on every survivor with
// the same status, OK or LOCKSTEP_E_CHANGED, and with the same bits; one that has failed is called
// again and works.
//
// LOCKSTEP_TEST_FAULT_ROUNDS jobs (6), chosen by LOCKSTEP_TEST_FAULT_SEED, which is printed.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    RANKS = 4,
    TURNS = 60,
    ENTRIES = 1200, // Of a rank's log.
    ELEMENTS = 100000,
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

// What a rank tells the test.
struct told {
    _Atomic(uint64_t) begun; // The last turn that it has begun.
    _Atomic(int) failed;
    // The rank kills itself in this turn, when an element of its sum arrives, or of what is copied
    // to it; 0: never.
    uint64_t dies_at;
    uint32_t dies_by;
    bool dies_copying;
    uint64_t late_at; // The rank begins the broadcast of this turn long after the others; 0: none.
    char text[512];
    uint32_t count;
    uint32_t changed; // Collectives that ended with LOCKSTEP_E_CHANGED.
    uint32_t renumbered; // Broadcasts that were refused because ranks have other numbers.
    struct entry log[ENTRIES];
};

static struct told *told_of; // [RANKS]
static struct coordinator_process coordinator;

// ---- The trainer --------------------------------------------------------------------------------

struct trainer {
    struct told *told;
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
    struct told *told = trainer->told;
    if (right)
        return;
    snprintf(told->text, sizeof(told->text), "turn %llu: %s: %s",
             (unsigned long long)atomic_load(&told->begun), what, lockstep_error_text());
    atomic_store(&told->failed, -99);
    _exit(1);
}

static float value_of(uint32_t rank, uint32_t turn, uint32_t element)
{
    static const float ranks[RANKS] = {1, 8, 64, 512};
    return ranks[rank] * (float)(1 + (element + turn) % 5);
}

// The set of ranks whose sum this is; 0: none.
static uint32_t set_of(float value, uint32_t turn, uint32_t element)
{
    for (uint32_t set = 1; set < 1u << RANKS; set++) {
        float sum = 0;
        for (uint32_t r = 0; r < RANKS; r++)
            if ((set >> r & 1) != 0)
                sum += value_of(r, turn, element);
        if (sum == value)
            return set;
    }
    return 0;
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
    struct told *told = trainer->told;
    struct entry entry = {.turn = turn, .operation = operation, .status = status};
    expect(trainer, status == 0 || status == LOCKSTEP_E_CHANGED, "a collective fails");
    expect(trainer, told->count < ENTRIES, "too many entries");
    told->changed += status != 0;
    if (status == 0 && data) {
        entry.hash = hash64(data, count * sizeof(*data));
        entry.set = set_of(data[0], turn, 0);
        expect(trainer, entry.set != 0, "no sum");
        for (uint32_t e = 0; e < count; e++)
            expect(trainer, data[e] == data[e % 5] && set_of(data[e % 5], turn, e % 5) == entry.set,
                   "a sum of several sets");
    }
    told->log[told->count++] = entry;
    if (status != 0)
        learn_world(trainer);
}

static void fill(const struct trainer *trainer, float *data, uint32_t turn, uint32_t count)
{
    for (uint32_t e = 0; e < count; e++)
        data[e] = value_of(trainer->rank, turn, e);
}

static void *die_by_element(void *argument)
{
    const struct trainer *trainer = argument;
    const struct told *told = trainer->told;
    const volatile float *sum = &trainer->data[0][told->dies_by];
    const float own = value_of(trainer->rank, (uint32_t)told->dies_at, told->dies_by);
    while (*sum == own)
        continue;
    kill(getpid(), SIGKILL);
    return NULL;
}

static void arm(struct trainer *trainer, uint32_t turn, bool copying)
{
    pthread_t thread;
    if (trainer->told->dies_at != turn || trainer->told->dies_copying != copying)
        return;
    expect(trainer, pthread_create(&thread, NULL, die_by_element, trainer) == 0, "thread");
}

static void sum_now(struct trainer *trainer, uint32_t turn, uint32_t count)
{
    int status;
    do {
        fill(trainer, trainer->data[0], turn, count);
        arm(trainer, turn, false);
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
        arm(trainer, turn, true);
        if (trainer->told->late_at == turn)
            pause_us(100000);
        status = lockstep_broadcast(trainer->session, "copy", trainer->data[0], count,
                                    LOCKSTEP_FLOAT32, root, LOCKSTEP_WAIT_FOREVER);
        if (status == LOCKSTEP_E_CHANGED && strstr(lockstep_error_text(), "other numbers"))
            trainer->told->renumbered++;
        else
            note(trainer, turn, COPY, status, trainer->data[0], count);
        if (status == LOCKSTEP_E_CHANGED)
            learn_world(trainer);
    } while (status == LOCKSTEP_E_CHANGED);
    expect(trainer, turn % 2 == 0 || trainer->data[0][0] == value_of(RANKS - 1, turn, 0),
           "a broadcast from another rank");
}

static void train_step(struct trainer *trainer)
{
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    lockstep_call *call;
    expect(trainer, lockstep_step_begin(trainer->session, NULL, &view) == 0, "step_begin");
    trainer->world_size = view.world_size;
    expect(trainer, lockstep_call_begin(trainer->module, &call) == 0, "call_begin");
    expect(trainer, lockstep_grad_ready(trainer->module, call, 0, NULL, NULL) == 0, "ready");
    expect(trainer, lockstep_call_end(call) == 0, "call_end");
    expect(trainer, lockstep_step_end(trainer->session, NULL) == 0, "step_end");
}

static void open_session(struct trainer *trainer, const char *transport)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameter;
    static float value[100];
    const int64_t length = 100;
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.job = "recovery-plain";
    config.world_size = RANKS;
    config.rank_hint = (int32_t)trainer->rank;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport =
        strcmp(transport, "tcp") == 0 ? LOCKSTEP_TRANSPORT_TCP : LOCKSTEP_TRANSPORT_AUTO;
    expect(trainer, lockstep_open(&config, &trainer->session) == 0, "open");
    memset(&parameter, 0, sizeof(parameter));
    parameter.name = "p";
    parameter.dtype = LOCKSTEP_FLOAT32;
    parameter.dims = 1;
    parameter.shape = &length;
    parameter.data = value;
    parameter.gradient = trainer->gradient;
    module.name = "m";
    module.parameters = &parameter;
    module.parameter_count = 1;
    expect(trainer, lockstep_module_register(trainer->session, &module, &trainer->module) == 0,
           "register");
    expect(trainer, lockstep_start(trainer->session) == 0, "start");
}

static void train(uint32_t rank, uint64_t seed, const char *transport)
{
    static struct trainer trainer;
    trainer.told = &told_of[rank];
    trainer.rank = rank;
    trainer.world_size = RANKS;
    trainer.random = seed * 31 + rank + 1;
    for (uint32_t i = 0; i < 2; i++)
        trainer.data[i] = calloc(ELEMENTS, sizeof(float));
    open_session(&trainer, transport);
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        const uint32_t count = turn % 5 == 0 ? ELEMENTS : 50 + turn % 3 * 4000;
        atomic_store(&trainer.told->begun, turn);
        sum_now(&trainer, turn, count);
        if (choice_below(&trainer.random, 3) == 0)
            pause_us(choice_below(&trainer.random, 2000));
        sum_later(&trainer, turn, count);
        copy(&trainer, turn, count);
        meet(&trainer, turn);
        if (turn % 3 == 0)
            train_step(&trainer);
    }
    lockstep_close(trainer.session);
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static uint64_t random_state;

static void describe(uint32_t round)
{
    for (uint32_t r = 0; r < RANKS; r++)
        printf("round %u, rank %u: turn %llu, %u entries, failed %d %s\n", round, r,
               (unsigned long long)atomic_load(&told_of[r].begun), told_of[r].count,
               atomic_load(&told_of[r].failed), told_of[r].text);
}

static void await_turn(uint32_t round, uint32_t rank, uint64_t turn)
{
    const uint64_t deadline = clock_now_ms() + WAIT_MS;
    while (atomic_load(&told_of[rank].begun) < turn) {
        if (clock_now_ms() > deadline || atomic_load(&told_of[rank].failed) != 0) {
            describe(round);
            fail_msg("round %u: rank %u does not come to turn %llu", round, rank,
                     (unsigned long long)turn);
        }
        pause_us(100);
    }
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
    const struct told *last = &told_of[RANKS - 1];
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct told *told = &told_of[r];
        if ((living >> r & 1) != 0)
            assert_int_equal(told->count, last->count);
        for (uint32_t i = 0; i < told->count; i++)
            if (!same(&told->log[i], &last->log[i]))
                fail_msg("round %u: turn %u, collective %u of kind %d: rank %u has status %d and "
                         "rank %u has %d, or other bits",
                         round, told->log[i].turn, i, (int)told->log[i].operation, r,
                         told->log[i].status, RANKS - 1, last->log[i].status);
    }
    for (uint32_t i = 0; i < last->count; i++)
        if (last->log[i].status == 0 && last->log[i].operation <= SUM_LATER)
            assert_int_equal(last->log[i].set & living, living);
}

static void one_job(uint32_t round, uint32_t deaths, const char *transport, uint32_t *changed)
{
    pid_t pids[RANKS];
    uint32_t dead = 0;
    memset(told_of, 0, RANKS * sizeof(*told_of));
    struct told *first = &told_of[round % (RANKS - 1)];
    if (round % 3 != 2) {
        first->dies_at = 5;
        first->dies_by = (uint32_t)choice_below(&random_state, ELEMENTS);
        first->dies_copying = round % 2 == 0;
        // It begins when the broadcast has failed on the others.
        told_of[RANKS - 2].late_at = round % 4 == 0 ? first->dies_at : 0;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            train(r, random_state, transport);
    }
    for (uint32_t d = 0; d < deaths; d++) {
        const uint64_t turn = 2 + (TURNS - 15) * d / deaths + choice_below(&random_state, 8);
        const uint32_t victim = (round + d) % (RANKS - 1);
        const uint64_t delay = choice_below(&random_state, 3000);
        int status;
        if (told_of[victim].dies_at == 0) {
            await_turn(round, victim, turn);
            pause_us(delay);
            kill(pids[victim], SIGKILL);
        }
        dead |= 1u << victim;
        assert_true(process_reap(pids[victim], WAIT_MS, &status));
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        if ((dead >> r & 1) != 0)
            continue;
        if (!process_reap(pids[r], WAIT_MS, &status) || status != 0) {
            describe(round);
            fail_msg("round %u: rank %u ends with 0x%x", round, r, (unsigned)status);
        }
    }
    check_round(round, dead);
    printf("round %u: %s, %u deaths, %u collectives changed, %u renumbered\n", round, transport,
           deaths, told_of[RANKS - 1].changed, told_of[RANKS - 1].renumbered);
    *changed += told_of[RANKS - 1].changed;
}

static void collectives_end_alike_on_survivors(void **state)
{
    const uint64_t rounds = choice_number("LOCKSTEP_TEST_FAULT_ROUNDS", 6);
    const uint64_t seed = choice_number("LOCKSTEP_TEST_FAULT_SEED", (uint64_t)getpid());
    uint32_t changed = 0;
    (void)state;
    printf("LOCKSTEP_TEST_FAULT_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed * 2654435761u + 1;
    for (uint32_t round = 0; round < rounds; round++) {
        coordinator_start(&coordinator, NULL);
        one_job(round, 1 + round % 3, round % 2 == 0 ? "tcp" : "auto", &changed);
        coordinator_stop(&coordinator);
    }
    assert_true(changed > 0 || rounds < 4);
}

static int teardown(void **state)
{
    (void)state;
    if (coordinator.pid > 0)
        kill(coordinator.pid, SIGKILL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(collectives_end_alike_on_survivors, teardown),
    };
    told_of = mmap(NULL, RANKS * sizeof(*told_of), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told_of == MAP_FAILED)
        abort();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
