// SPDX-License-Identifier: Apache-2.0
//
// What a trainer sees of a step besides its gradients at the end, in jobs whose survivors go on
// (config.on_failure continue): results that it takes early (lockstep_call_wait,
// lockstep_call_next) and buffers of modules. Real processes, of which some are killed by SIGKILL
// at random instants of their steps.
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
    STEPS = 40,
    ELEMENTS = 60000, // Of each of a module's two gradients.
    BUFFER = 50000, // Elements of each buffer.
    BUCKETS = 64,
    ROOT = 1,
};

// What a rank tells the test.
struct told {
    _Atomic(uint64_t) begun; // The last step that it has begun.
    _Atomic(uint64_t) ended;
    _Atomic(int) failed; // A status, or 0.
    // The rank kills itself in this step, as soon as it has the last element of its sums, or in
    // an odd step of a gradient; 0: never.
    uint64_t dies_at;
    char text[512];
    uint64_t hash[STEPS + 1]; // Of all results of a step.
    uint32_t missing[STEPS + 1]; // Ranks that are not in the buffers of the step, as a set.
    uint32_t source[STEPS + 1]; // The rank whose buffer all have.
    uint32_t waits;
};

static struct told *told_of; // [RANKS]
static struct coordinator_process coordinator;

// ---- The trainer --------------------------------------------------------------------------------

struct trainer {
    struct told *told;
    uint32_t rank;
    lockstep_session *session;
    lockstep_module *modules[2];
    lockstep_call *calls[2];
    float *gradients[2][2];
    float means[BUFFER];
    int32_t sums[BUFFER];
    int32_t copies[BUFFER];
};

static void expect(const struct trainer *trainer, bool right, const char *what, uint64_t step)
{
    struct told *told = trainer->told;
    if (right)
        return;
    snprintf(told->text, sizeof(told->text), "step %llu: %s: %s", (unsigned long long)step, what,
             lockstep_error_text());
    atomic_store(&told->failed, -99);
    _exit(1);
}

// Whole numbers below 2^20, so that sums are exact.
static float value_of(uint32_t rank, uint64_t step, uint64_t element)
{
    static const float ranks[RANKS] = {1, 8, 64, 512};
    return ranks[rank] * (float)(1 + (element + step) % 5);
}

// The set of ranks whose mean this is; 0: none.
static uint32_t set_of(float value, uint64_t step, uint64_t element)
{
    for (uint32_t set = 1; set < 1u << RANKS; set++) {
        float sum = 0;
        for (uint32_t r = 0; r < RANKS; r++)
            if ((set >> r & 1) != 0)
                sum += value_of(r, step, element);
        if (sum / (float)__builtin_popcount(set) == value)
            return set;
    }
    return 0;
}

static int32_t copy_of(uint32_t rank, uint64_t step, uint32_t element)
{
    return (int32_t)(rank * 100000000 + step * 100000 + element);
}

static void open_session(struct trainer *trainer, const char *transport)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.job = "recovery-state";
    config.world_size = RANKS;
    config.rank_hint = (int32_t)trainer->rank;
    config.root = ROOT;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport =
        strcmp(transport, "tcp") == 0 ? LOCKSTEP_TRANSPORT_TCP : LOCKSTEP_TRANSPORT_AUTO;
    config.bucket_first_bytes = config.bucket_last_bytes = 64 * 1024;
    config.bucket_bytes = 64 * 1024;
    expect(trainer, lockstep_open(&config, &trainer->session) == 0, "open", 0);
}

static void register_module(struct trainer *trainer, uint32_t m)
{
    static const char *const names[] = {"a", "b"};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[2];
    struct lockstep_buffer buffers[3] = {LOCKSTEP_BUFFER_INIT, LOCKSTEP_BUFFER_INIT,
                                         LOCKSTEP_BUFFER_INIT};
    const int64_t elements = ELEMENTS;
    const int64_t length = BUFFER;
    memset(parameters, 0, sizeof(parameters));
    for (uint32_t p = 0; p < 2; p++) {
        trainer->gradients[m][p] = calloc(ELEMENTS, sizeof(float));
        parameters[p].name = names[p];
        parameters[p].dtype = LOCKSTEP_FLOAT32;
        parameters[p].dims = 1;
        parameters[p].shape = &elements;
        parameters[p].data = calloc(ELEMENTS, sizeof(float));
        parameters[p].gradient = trainer->gradients[m][p];
    }
    for (uint32_t i = 0; i < 3; i++) {
        buffers[i].dtype = i == 0 ? LOCKSTEP_FLOAT32 : LOCKSTEP_INT32;
        buffers[i].dims = 1;
        buffers[i].shape = &length;
    }
    buffers[0].name = "means";
    buffers[0].data = trainer->means;
    buffers[0].policy = LOCKSTEP_BUFFER_MEAN;
    buffers[1].name = "sums";
    buffers[1].data = trainer->sums;
    buffers[1].policy = LOCKSTEP_BUFFER_SUM;
    buffers[1].every = 2;
    buffers[2].name = "copies";
    buffers[2].data = trainer->copies;
    buffers[2].policy = LOCKSTEP_BUFFER_BROADCAST;
    config.name = names[m];
    config.parameters = parameters;
    config.parameter_count = 2;
    config.buffers = m == 0 ? buffers : NULL;
    config.buffer_count = m == 0 ? 3 : 0;
    expect(trainer, lockstep_module_register(trainer->session, &config, &trainer->modules[m]) == 0,
           "register", 0);
}

static void make_call(struct trainer *trainer, uint32_t m, uint64_t step)
{
    int status = lockstep_call_begin(trainer->modules[m], &trainer->calls[m]);
    for (uint32_t p = 2; p-- > 0 && status == 0;) {
        for (uint32_t e = 0; e < ELEMENTS; e++)
            trainer->gradients[m][p][e] = value_of(trainer->rank, step, e);
        status = lockstep_grad_ready(trainer->modules[m], trainer->calls[m], p, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(trainer->calls[m]);
    expect(trainer, status == 0, "call", step);
}

static uint64_t module_hash(const struct trainer *trainer, uint32_t m)
{
    return hash64(trainer->gradients[m][0], ELEMENTS * sizeof(float)) * 31 +
           hash64(trainer->gradients[m][1], ELEMENTS * sizeof(float));
}

// Every bucket is handed out once.
static void take_buckets(struct trainer *trainer, uint64_t step)
{
    bool taken[BUCKETS] = {false};
    uint32_t count = 0;
    for (;;) {
        uint32_t bucket = 0;
        const int status = lockstep_call_next(trainer->calls[1], LOCKSTEP_WAIT_FOREVER, &bucket);
        if (status == LOCKSTEP_FINISHED)
            break;
        expect(trainer, status == 0, "call_next", step);
        expect(trainer, bucket < BUCKETS && !taken[bucket], "a bucket comes twice", step);
        taken[bucket] = true;
        count++;
    }
    for (uint32_t b = 0; b < count; b++)
        expect(trainer, taken[b], "a bucket does not come", step);
}

static void write_buffers(struct trainer *trainer, uint64_t step)
{
    for (uint32_t e = 0; e < BUFFER; e++) {
        trainer->means[e] = value_of(trainer->rank, step, e);
        trainer->sums[e] = 1 << 4 * trainer->rank;
        trainer->copies[e] = copy_of(trainer->rank, step, e);
    }
}

static void *die_by_result(void *argument)
{
    const struct trainer *trainer = argument;
    const uint64_t step = trainer->told->dies_at;
    const volatile int32_t *sum = &trainer->sums[BUFFER - 1];
    const volatile float *mean = &trainer->gradients[1][0][ELEMENTS - 1];
    const float own = value_of(trainer->rank, step, ELEMENTS - 1);
    while (step % 2 == 0 ? *sum == 1 << 4 * trainer->rank : *mean == own)
        continue;
    kill(getpid(), SIGKILL);
    return NULL;
}

static void look_at_buffers(struct trainer *trainer, uint64_t step)
{
    const uint32_t set = set_of(trainer->means[0], step, 0);
    uint32_t sum = 0;
    uint32_t source = 0;
    expect(trainer, set != 0, "a mean of buffers is none", step);
    for (uint32_t r = 0; r < RANKS; r++)
        sum += (set >> r & 1) << 4 * r;
    while (source < RANKS && trainer->copies[0] != copy_of(source, step, 0))
        source++;
    if (step % 2 == 1) // The sums are not due.
        sum = 1u << 4 * trainer->rank;
    for (uint32_t e = 0; e < BUFFER; e++) {
        expect(trainer,
               trainer->means[e] == trainer->means[e % 5] &&
                   (e >= 5 || set_of(trainer->means[e], step, e) == set),
               "means of several sets", step);
        expect(trainer, trainer->sums[e] == (int32_t)sum, "sums and means of several sets", step);
        expect(trainer, trainer->copies[e] == copy_of(source, step, e), "a mixture", step);
    }
    trainer->told->missing[step] = ((1u << RANKS) - 1) & ~set;
    trainer->told->source[step] = source;
}

static void train_step(struct trainer *trainer, uint64_t step)
{
    struct told *told = trainer->told;
    uint64_t read = 0;
    atomic_store(&told->begun, step);
    expect(trainer, lockstep_step_begin(trainer->session, NULL, NULL) == 0, "step_begin", step);
    make_call(trainer, 0, step);
    // Not all ranks wait in a step.
    const bool waits = (step + trainer->rank) % 3 != 0;
    if (waits) {
        expect(trainer, lockstep_call_wait(trainer->calls[0], LOCKSTEP_WAIT_FOREVER) == 0,
               "call_wait", step);
        read = module_hash(trainer, 0);
        told->waits++;
    }
    write_buffers(trainer, step);
    make_call(trainer, 1, step);
    pthread_t thread;
    if (told->dies_at == step)
        expect(trainer, pthread_create(&thread, NULL, die_by_result, trainer) == 0, "thread", step);
    // In even steps the last buckets travel beside the buffers.
    if (step % 2 == 1)
        take_buckets(trainer, step);
    expect(trainer, lockstep_step_end(trainer->session, NULL) == 0, "step_end", step);
    expect(trainer, !waits || read == module_hash(trainer, 0), "the results have changed", step);
    for (uint32_t e = 0; e < ELEMENTS; e++)
        expect(trainer, set_of(trainer->gradients[0][0][e], step, e) != 0, "no mean", step);
    look_at_buffers(trainer, step);
    told->hash[step] = module_hash(trainer, 0) * 31 + module_hash(trainer, 1) +
                       hash64(trainer->means, sizeof(trainer->means));
    atomic_store(&told->ended, step);
}

static void train(uint32_t rank, const char *transport)
{
    static struct trainer trainer;
    trainer.told = &told_of[rank];
    trainer.rank = rank;
    open_session(&trainer, transport);
    register_module(&trainer, 0);
    register_module(&trainer, 1);
    expect(&trainer, lockstep_start(trainer.session) == 0, "start", 0);
    for (uint64_t step = 1; step <= STEPS; step++)
        train_step(&trainer, step);
    lockstep_close(trainer.session);
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static uint64_t random_state;

static void describe(uint32_t round)
{
    for (uint32_t r = 0; r < RANKS; r++)
        printf("round %u, rank %u: begun %llu, ended %llu, failed %d %s\n", round, r,
               (unsigned long long)atomic_load(&told_of[r].begun),
               (unsigned long long)atomic_load(&told_of[r].ended), atomic_load(&told_of[r].failed),
               told_of[r].text);
}

static void await_step(uint32_t round, uint32_t rank, uint64_t step)
{
    const uint64_t deadline = clock_now_ms() + WAIT_MS;
    while (atomic_load(&told_of[rank].begun) < step) {
        if (clock_now_ms() > deadline || atomic_load(&told_of[rank].failed) != 0) {
            describe(round);
            fail_msg("round %u: rank %u does not come to step %llu", round, rank,
                     (unsigned long long)step);
        }
        pause_us(100);
    }
}

// The rank whose buffers the others get at the end.
static uint32_t last_source(uint32_t dead)
{
    uint32_t root = ROOT;
    while ((dead >> root & 1) != 0)
        root = (root + 1) % RANKS;
    return root;
}

static void check_round(uint32_t round, uint32_t dead)
{
    const struct told *last = &told_of[RANKS - 1];
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct told *told = &told_of[r];
        const uint64_t to = (dead >> r & 1) != 0 ? atomic_load(&told->ended) : STEPS;
        for (uint64_t step = 1; step <= to; step++) {
            if (told->hash[step] != last->hash[step] || told->source[step] != last->source[step])
                fail_msg("round %u: ranks %u and %u have other bits in step %llu", round, r,
                         RANKS - 1, (unsigned long long)step);
            if ((told->missing[step] & ~dead) != 0)
                fail_msg("round %u: the buffers of step %llu lack survivors", round,
                         (unsigned long long)step);
        }
    }
    assert_int_equal(last->missing[1] & 1u << (RANKS - 1), 0);
    assert_int_equal(last->missing[STEPS], dead);
    assert_int_equal(last->source[STEPS], last_source(dead));
    assert_true(last->waits > STEPS / 2);
}

static void one_job(uint32_t round, uint32_t deaths, const char *transport)
{
    pid_t pids[RANKS];
    uint32_t dead = 0;
    memset(told_of, 0, RANKS * sizeof(*told_of));
    // In even steps the sums are due.
    const uint64_t alone = 2 + 2 * choice_below(&random_state, 4) + (round % 4 == 3);
    const uint32_t first = (round + 1) % (RANKS - 1);
    if (round % 2 == 1)
        told_of[first].dies_at = alone;
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            train(r, transport);
    }
    for (uint32_t d = 0; d < deaths; d++) {
        const uint64_t step = 1 + (STEPS - 10) * d / deaths + choice_below(&random_state, 8);
        const uint32_t victim = (first + d) % (RANKS - 1);
        const uint64_t delay = choice_below(&random_state, 5000);
        int status;
        if (told_of[victim].dies_at == 0) {
            await_step(round, victim, step);
            pause_us(delay);
            kill(pids[victim], SIGKILL);
        }
        assert_true(process_reap(pids[victim], WAIT_MS, &status));
        dead |= 1u << victim;
        printf("round %u: %s, rank %u dies in step %llu\n", round, transport, victim,
               (unsigned long long)atomic_load(&told_of[victim].begun));
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
}

static void early_results_and_buffers_survive(void **state)
{
    const uint64_t rounds = choice_number("LOCKSTEP_TEST_FAULT_ROUNDS", 6);
    const uint64_t seed = choice_number("LOCKSTEP_TEST_FAULT_SEED", (uint64_t)getpid());
    (void)state;
    printf("LOCKSTEP_TEST_FAULT_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed * 2654435761u + 1;
    for (uint32_t round = 0; round < rounds; round++) {
        coordinator_start(&coordinator, NULL);
        one_job(round, 1 + round % 3, round % 2 == 0 ? "tcp" : "auto");
        coordinator_stop(&coordinator);
    }
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
        cmocka_unit_test_teardown(early_results_and_buffers_survive, teardown),
    };
    told_of = mmap(NULL, RANKS * sizeof(*told_of), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told_of == MAP_FAILED)
        abort();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
