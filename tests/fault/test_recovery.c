// SPDX-License-Identifier: Apache-2.0
//
// Jobs whose survivors go on (config.on_failure continue): real processes on one coordinator, of
// which some are killed by SIGKILL at random instants of their steps. Every step of every survivor
// ends with OK. They exchange over TCP, in memory of the host, or in registered memory; there a
// survivor may be stopped while another rank dies. Gradients are unique for each rank, step and
// element, so each result shows whose gradients are in it: those of all survivors. The results of
// all survivors have equal bits.
//
// LOCKSTEP_TEST_FAULT_ROUNDS jobs (9), chosen by LOCKSTEP_TEST_FAULT_SEED, which is printed.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    RANKS = 4,
    STEPS = 40,
    TENSORS = 5,
    FIRST_STEP = 1, // Learns the order.
    STOPPED_US = 1300000,
};

static const uint64_t tensor_elements[TENSORS] = {90000, 7, 32768, 1, 40001};

// What a rank tells the test.
struct told {
    _Atomic(uint64_t) begun; // The last step that it has begun.
    _Atomic(uint64_t) ended;
    _Atomic(int) failed; // A status, or 0.
    char text[512];
    uint64_t hash[STEPS + 1]; // Of all results of a step.
    uint32_t missing[STEPS + 1]; // Ranks whose gradients are in no element of the step, as a set.
    uint32_t partial[STEPS + 1]; // Ranks whose gradients are in some elements only.
    uint64_t slowest_us;
    uint64_t generation;
    uint32_t in_place; // Steps that copied no gradient.
    uint64_t last_in_place; // The last one of them.
    uint32_t changed; // Steps whose view says that the world has changed.
    struct lockstep_change change;
};

struct shared {
    struct told ranks[RANKS];
};

static struct shared *shared;
static struct coordinator_process coordinator;

// ---- The trainer --------------------------------------------------------------------------------

// Whole numbers below 2^20, so that sums are exact.
static float gradient_of(uint32_t rank, uint64_t step, uint64_t element)
{
    static const float ranks[RANKS] = {1, 8, 64, 512};
    return ranks[rank] * (float)(1 + (element + step) % 5);
}

// The set of ranks whose mean this is; UINT32_MAX: none.
static uint32_t set_of(float value, uint64_t step, uint64_t element, uint32_t size)
{
    for (uint32_t set = 1; set < 1u << size; set++) {
        float sum = 0;
        for (uint32_t r = 0; r < size; r++)
            if ((set >> r & 1) != 0)
                sum += gradient_of(r, step, element);
        if (sum / (float)__builtin_popcount(set) == value)
            return set;
    }
    return UINT32_MAX;
}

static void rank_fails(struct told *told, int status, const char *where)
{
    snprintf(told->text, sizeof(told->text), "%s: %s", where, lockstep_error_text());
    atomic_store(&told->failed, status);
    _exit(1);
}

static void rank_looks(struct told *told, float *const *gradients, uint64_t step, uint32_t size)
{
    uint32_t all = (1u << size) - 1;
    uint32_t some = 0;
    uint64_t hash = 0;
    for (uint32_t t = 0; t < TENSORS; t++) {
        hash = hash * 31 + hash64(gradients[t], tensor_elements[t] * sizeof(float));
        for (uint64_t e = 0; e < tensor_elements[t]; e++) {
            const uint32_t set = set_of(gradients[t][e], step, e, size);
            if (set == UINT32_MAX) {
                snprintf(told->text, sizeof(told->text),
                         "step %llu: element %llu of tensor %u is %g, which is no mean",
                         (unsigned long long)step, (unsigned long long)e, t,
                         (double)gradients[t][e]);
                atomic_store(&told->failed, -99);
                _exit(1);
            }
            all &= set;
            some |= set;
        }
    }
    told->hash[step] = hash;
    told->missing[step] = ((1u << size) - 1) & ~some;
    told->partial[step] = some & ~all;
}

static void rank_notes_copies(struct told *told, lockstep_session *session, uint64_t step)
{
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    const int status = lockstep_step_report(session, step, 0, &report);
    if (status < 0)
        rank_fails(told, status, "step_report");
    if (report.bytes_copied > 0)
        return;
    told->in_place++;
    told->last_in_place = step;
}

static void rank_trains(struct told *told, uint32_t rank, uint32_t size, const char *transport)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config module_config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter tensors[TENSORS];
    int64_t shapes[TENSORS];
    float *values[TENSORS];
    char names[TENSORS][16];
    float *gradients[TENSORS];
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    char address[64];
    int status;
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.job = "recovery";
    config.world_size = size;
    config.rank_hint = (int32_t)rank;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport =
        strcmp(transport, "tcp") == 0 ? LOCKSTEP_TRANSPORT_TCP : LOCKSTEP_TRANSPORT_AUTO;
    config.bucket_first_bytes = config.bucket_last_bytes = 64 * 1024;
    config.bucket_bytes = 512 * 1024;
    status = lockstep_open(&config, &session);
    if (status < 0)
        rank_fails(told, status, "open");
    memset(tensors, 0, sizeof(tensors));
    for (uint32_t t = 0; t < TENSORS; t++) {
        gradients[t] = calloc(tensor_elements[t], sizeof(float));
        snprintf(names[t], sizeof(names[t]), "t%u", t);
        values[t] = calloc(tensor_elements[t], sizeof(float));
        shapes[t] = (int64_t)tensor_elements[t];
        tensors[t].name = names[t];
        tensors[t].dtype = LOCKSTEP_FLOAT32;
        tensors[t].dims = 1;
        tensors[t].shape = &shapes[t];
        tensors[t].data = values[t];
        tensors[t].gradient = gradients[t];
    }
    module_config.name = "m";
    module_config.parameters = tensors;
    module_config.parameter_count = TENSORS;
    status = lockstep_module_register(session, &module_config, &module);
    if (status < 0)
        rank_fails(told, status, "register");
    status = lockstep_start(session);
    if (status < 0)
        rank_fails(told, status, "start");
    if (strcmp(transport, "registered") == 0) {
        // The ranks reduce straight in each other's memory.
        void *places[TENSORS];
        status = lockstep_module_gradients(module, places, TENSORS);
        if (status < 0)
            rank_fails(told, status, "gradients");
        for (uint32_t t = 0; t < TENSORS; t++) {
            free(gradients[t]);
            gradients[t] = places[t];
        }
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
        atomic_store(&told->begun, step);
        status = lockstep_step_begin(session, NULL, &view);
        if (status < 0)
            rank_fails(told, status, "step_begin");
        told->generation = view.generation;
        told->changed += view.changed;
        status = lockstep_call_begin(module, &call);
        for (uint32_t t = TENSORS; t-- > 0 && status == 0;) {
            for (uint64_t e = 0; e < tensor_elements[t]; e++)
                gradients[t][e] = gradient_of(rank, step, e);
            status = lockstep_grad_ready(module, call, t, NULL, NULL);
        }
        if (status == 0)
            status = lockstep_call_end(call);
        if (status < 0)
            rank_fails(told, status, "call");
        const uint64_t began = clock_now_us();
        status = lockstep_step_end(session, NULL);
        const uint64_t took = clock_now_us() - began;
        if (status < 0)
            rank_fails(told, status, "step_end");
        if (took > told->slowest_us)
            told->slowest_us = took;
        rank_looks(told, gradients, step, size);
        rank_notes_copies(told, session, step);
        atomic_store(&told->ended, step);
    }
    told->change = (struct lockstep_change)LOCKSTEP_CHANGE_INIT;
    status = lockstep_world_change(session, &told->change);
    if (status < 0)
        rank_fails(told, status, "world_change");
    lockstep_close(session);
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static uint64_t random_state;

// Waits until the rank has begun the step. False: it does not.
static bool await_step(uint32_t rank, uint64_t step)
{
    const uint64_t deadline = clock_now_ms() + WAIT_MS;
    while (atomic_load(&shared->ranks[rank].begun) < step) {
        if (clock_now_ms() > deadline || atomic_load(&shared->ranks[rank].failed) != 0)
            return false;
        pause_us(200);
    }
    return true;
}

// A death beside lockstep_start is another case: docs/recovery.md.
static bool await_start(uint32_t size)
{
    bool started = true;
    for (uint32_t r = 0; started && r < size; r++)
        started = await_step(r, 1);
    return started;
}

static void describe(uint32_t size)
{
    for (uint32_t r = 0; r < size; r++)
        printf("  rank %u: begun %llu, ended %llu, failed %d %s\n", r,
               (unsigned long long)atomic_load(&shared->ranks[r].begun),
               (unsigned long long)atomic_load(&shared->ranks[r].ended),
               atomic_load(&shared->ranks[r].failed), shared->ranks[r].text);
}

// Kills `deaths` ranks, one after the other; rank `size` - 1 always survives.
static void one_job(uint32_t round, uint32_t size, uint32_t deaths, const char *transport)
{
    pid_t pids[RANKS];
    uint32_t dead = 0;
    // A rank that survives is stopped meanwhile, for longer than its mates wait for it.
    const bool stops = strcmp(transport, "registered") == 0 && size > 2 && round % 4 == 1;
    memset(shared, 0, sizeof(*shared));
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            rank_trains(&shared->ranks[r], r, size, transport);
    }
    for (uint32_t d = 0; d < deaths; d++) {
        const uint64_t spread = round % 4 == 3 ? 1 : 8; // Every fourth death is in the first step.
        const uint64_t step =
            FIRST_STEP + (STEPS - 10) * d / deaths + choice_below(&random_state, spread);
        const uint32_t victim = (uint32_t)((round + d) % (size - 1));
        const uint64_t delay = choice_below(&random_state, 4000);
        int status;
        if (!await_start(size) || !await_step(victim, step)) {
            describe(size);
            fail_msg("round %u: rank %u does not come to step %llu", round, victim,
                     (unsigned long long)step);
        }
        pause_us(delay);
        if (stops)
            kill(pids[size - 1], SIGSTOP);
        kill(pids[victim], SIGKILL);
        assert_true(process_reap(pids[victim], WAIT_MS, &status));
        if (stops) {
            pause_us(STOPPED_US);
            kill(pids[size - 1], SIGCONT);
        }
        dead |= 1u << victim;
        printf("round %u: %s, rank %u of %u dies in step %llu + %llu us\n", round, transport,
               victim, size, (unsigned long long)step, (unsigned long long)delay);
    }
    for (uint32_t r = 0; r < size; r++) {
        int status = 0;
        if ((dead >> r & 1) != 0)
            continue;
        if (!process_reap(pids[r], WAIT_MS, &status)) {
            describe(size);
            fail_msg("round %u: rank %u does not end", round, r);
        }
        if (status != 0) {
            describe(size);
            fail_msg("round %u: rank %u ends with 0x%x", round, r, (unsigned)status);
        }
    }
    const struct told *last = &shared->ranks[size - 1];
    assert_true(last->generation > 1);
    assert_int_equal(last->changed, deaths);
    assert_int_equal(last->change.changes, deaths);
    assert_int_equal(last->change.world_size, size - deaths);
    assert_int_equal(last->change.world_size_before, size - deaths + 1);
    assert_int_equal(last->change.rank, size - deaths - 1);
    assert_int_equal(last->change.lost_count, 1);
    assert_non_null(strstr(last->change.text, "rank"));
    for (uint32_t r = 0; r < size; r++) {
        const struct told *told = &shared->ranks[r];
        const uint64_t to = (dead >> r & 1) != 0 ? atomic_load(&told->ended) : STEPS;
        for (uint64_t step = 1; step <= to; step++) {
            if (told->hash[step] != last->hash[step])
                fail_msg("round %u: ranks %u and %u have other bits in step %llu", round, r,
                         size - 1, (unsigned long long)step);
            if (((told->missing[step] | told->partial[step]) & ~dead) != 0)
                fail_msg("round %u: step %llu lacks gradients of survivors", round,
                         (unsigned long long)step);
        }
    }
    printf("round %u: ok, slowest step_end %llu us, %u steps in place, the last one %llu%s\n",
           round, (unsigned long long)last->slowest_us, last->in_place,
           (unsigned long long)last->last_in_place, stops ? ", a survivor was stopped" : "");
    assert_true(strcmp(transport, "registered") != 0 || last->in_place > 0);
}

static void survivors_finish_every_step(void **state)
{
    static const char *const transports[] = {"registered", "tcp", "auto"};
    const uint64_t rounds = choice_number("LOCKSTEP_TEST_FAULT_ROUNDS", 9);
    const uint64_t seed = choice_number("LOCKSTEP_TEST_FAULT_SEED", (uint64_t)getpid());
    (void)state;
    printf("LOCKSTEP_TEST_FAULT_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed * 2654435761u + 1;
    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t size = 2 + round % 3;
        const uint32_t deaths = size == 2 ? 1 : 1 + round / 3 % (size - 1);
        coordinator_start(&coordinator, NULL);
        one_job(round, size, deaths, transports[(round + round / 3) % 3]);
        coordinator_stop(&coordinator);
    }
}

// A world of one, so that no thread is started.
static lockstep_session *open_alone(void)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session = NULL;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    assert_int_equal(lockstep_open(&config, &session), 0);
    return session;
}

static void refused(int status, const char *what)
{
    assert_int_equal(status, LOCKSTEP_E_UNSUPPORTED);
    if (!strstr(lockstep_error_text(), what) || !strstr(lockstep_error_text(), "on_failure"))
        fail_msg("'%s' does not name %s", lockstep_error_text(), what);
}

static void what_does_not_go_together_is_named(void **state)
{
    const uint32_t ranks[] = {0};
    struct lockstep_config configs[4];
    static const char *const names[] = {"zero_defer", "unplanned defer", "virtual_ranks",
                                        "loopback"};
    lockstep_session *session = open_alone();
    lockstep_group *group;
    struct lockstep_collective gather = LOCKSTEP_COLLECTIVE_INIT;
    lockstep_work *work;
    int32_t data = 1;
    int32_t all = 0;
    (void)state;
    assert_int_equal(lockstep_barrier(session, "b", 1000), 0);
    assert_int_equal(lockstep_allreduce(session, "a", &data, 1, LOCKSTEP_INT32, LOCKSTEP_SUM, 1000),
                     0);
    gather.kind = LOCKSTEP_ALL_GATHER;
    gather.name = "g";
    gather.input = &data;
    gather.output = &all;
    gather.count = 1;
    gather.dtype = LOCKSTEP_INT32;
    refused(lockstep_collective_run(session, &gather, 1000), "collective");
    refused(lockstep_collective_begin(session, &gather, &work), "collective");
    refused(lockstep_group_create(session, ranks, 1, "g", &group), "group");
    lockstep_close(session);
    for (uint32_t i = 0; i < 4; i++) {
        configs[i] = (struct lockstep_config)LOCKSTEP_CONFIG_INIT;
        configs[i].on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    }
    configs[0].order = LOCKSTEP_ORDER_ZERO_DEFER;
    configs[1].unplanned = LOCKSTEP_UNPLANNED_DEFER;
    configs[2].virtual_ranks = 4;
    configs[3].transport = LOCKSTEP_TRANSPORT_LOOPBACK;
    for (uint32_t i = 0; i < 4; i++)
        refused(lockstep_open(&configs[i], &session), names[i]);
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
        cmocka_unit_test(what_does_not_go_together_is_named),
        cmocka_unit_test_teardown(survivors_finish_every_step, teardown),
    };
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
