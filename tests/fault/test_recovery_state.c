// SPDX-License-Identifier: Apache-2.0
//
// What a trainer sees of a step besides its gradients at the end, in jobs whose survivors go on
// (config.on_failure continue): results that it takes early (lockstep_call_wait,
// lockstep_call_next) and buffers of modules. Real processes, of which some are killed by SIGKILL
// at random instants of their steps.
//
// LOCKSTEP_TEST_FAULT_ROUNDS jobs (6), chosen by LOCKSTEP_TEST_FAULT_SEED, which is printed.

#include "tests/fault/recovery_job.h"

#include "base/hash64.h"
#include "tests/support/sends.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RANKS = JOB_RANKS,
    STEPS = JOB_STEPS,
    PERIOD = 5, // Gradients repeat after so many elements.
    ELEMENTS = 30000, // Elements of each gradient. A module has two.
    BUFFER = 25000, // Elements of each buffer.
    BUCKETS = 64,
    ROOT = 1,
};

// How a rank dies in the step that the test chose.
enum death {
    BY_RESULT, // When a thread of it sees a result.
    IN_BUFFERS, // At its second send of buffers; it makes about six.
    IN_WAVE, // At its second send after its buffers are final: mostly in the commit wave.
};

// What a rank tells the test besides.
struct own {
    uint32_t source[STEPS + 1]; // The rank whose buffer all have.
    uint32_t waits;
    enum death death; // Chosen by the test.
};

// ---- The trainer --------------------------------------------------------------------------------

struct trainer {
    struct job_rank *job;
    struct own *own;
    uint32_t rank;
    lockstep_module *modules[2];
    lockstep_call *calls[2];
    float *gradients[2][2];
    float means[BUFFER];
    int32_t sums[BUFFER];
    int32_t copies[BUFFER];
};

static struct trainer trainer_of_rank; // Of this process.

static void expect(const struct trainer *trainer, bool right, const char *what)
{
    job_expect(trainer->job, right, what);
}

static uint32_t set_of(const struct trainer *trainer, float value, uint64_t step, uint64_t element)
{
    return job_set_of_mean(trainer->job, value, step, element, NULL);
}

static int32_t copy_of(uint32_t rank, uint64_t step, uint32_t element)
{
    return (int32_t)(rank * 100000000 + step * 100000 + element);
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
    expect(trainer,
           lockstep_module_register(trainer->job->session, &config, &trainer->modules[m]) == 0,
           "register");
}

static void make_call(struct trainer *trainer, uint32_t m, uint64_t step)
{
    int status = lockstep_call_begin(trainer->modules[m], &trainer->calls[m]);
    for (uint32_t p = 2; p-- > 0 && status == 0;) {
        for (uint32_t e = 0; e < ELEMENTS; e++)
            trainer->gradients[m][p][e] = job_gradient(trainer->rank, step, e);
        status = lockstep_grad_ready(trainer->modules[m], trainer->calls[m], p, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(trainer->calls[m]);
    expect(trainer, status == 0, "call");
}

static uint64_t module_hash(const struct trainer *trainer, uint32_t m)
{
    return hash64(trainer->gradients[m][0], ELEMENTS * sizeof(float)) * 31 +
           hash64(trainer->gradients[m][1], ELEMENTS * sizeof(float));
}

// Every bucket is handed out once.
static void take_buckets(struct trainer *trainer)
{
    bool taken[BUCKETS] = {false};
    uint32_t count = 0;
    for (;;) {
        uint32_t bucket = 0;
        const int status = lockstep_call_next(trainer->calls[1], LOCKSTEP_WAIT_FOREVER, &bucket);
        if (status == LOCKSTEP_FINISHED)
            break;
        expect(trainer, status == 0, "call_next");
        expect(trainer, bucket < BUCKETS && !taken[bucket], "a bucket comes twice");
        taken[bucket] = true;
        count++;
    }
    for (uint32_t b = 0; b < count; b++)
        expect(trainer, taken[b], "a bucket does not come");
}

static void write_buffers(struct trainer *trainer, uint64_t step)
{
    for (uint32_t e = 0; e < BUFFER; e++) {
        trainer->means[e] = job_gradient(trainer->rank, step, e);
        trainer->sums[e] = 1 << 4 * trainer->rank;
        trainer->copies[e] = copy_of(trainer->rank, step, e);
    }
}

static bool buffers_are_final(const struct trainer *trainer, uint64_t step)
{
    for (uint32_t e = 0; e < BUFFER; e += 100)
        if (trainer->means[e] == job_gradient(trainer->rank, step, e) ||
            trainer->copies[e] == copy_of(trainer->rank, step, e))
            return false;
    return true;
}

// Counts what goes to other ranks. The pause is time for them to use the earlier sends.
static void before_send(int fd)
{
    const struct trainer *trainer = &trainer_of_rank;
    if (atomic_load(&sends_left) < 0 || send_port(fd) == trainer->job->job->port ||
        (trainer->own->death == IN_WAVE &&
         !buffers_are_final(trainer, trainer->job->told->dies_at)) ||
        !sends_over())
        return;
    pause_us(20000);
    kill(getpid(), SIGKILL);
}

static void *die_by_result(void *argument)
{
    const struct trainer *trainer = argument;
    const uint64_t step = trainer->job->told->dies_at;
    const volatile int32_t *sum = &trainer->sums[BUFFER / 2];
    const volatile float *mean = &trainer->gradients[1][0][ELEMENTS - 1];
    const float own = job_gradient(trainer->rank, step, ELEMENTS - 1);
    while (step % 2 == 0 ? *sum == 1 << 4 * trainer->rank : *mean == own)
        continue;
    kill(getpid(), SIGKILL);
    return NULL;
}

static void look_at_buffers(struct trainer *trainer, uint64_t step)
{
    const uint32_t set = set_of(trainer, trainer->means[0], step, 0);
    uint32_t sum = 0;
    uint32_t source = 0;
    expect(trainer, set != UINT32_MAX, "a mean of buffers is none");
    for (uint32_t r = 0; r < RANKS; r++)
        sum += (set >> r & 1) << 4 * r;
    while (source < RANKS && trainer->copies[0] != copy_of(source, step, 0))
        source++;
    if (step % 2 == 1) // The sums are not due.
        sum = 1u << 4 * trainer->rank;
    for (uint32_t e = 0; e < BUFFER; e++) {
        expect(trainer,
               trainer->means[e] == trainer->means[e % 5] &&
                   (e >= 5 || set_of(trainer, trainer->means[e], step, e) == set),
               "means of several sets");
        expect(trainer, trainer->sums[e] == (int32_t)sum, "sums and means of several sets");
        expect(trainer, trainer->copies[e] == copy_of(source, step, e), "a mixture");
    }
    trainer->job->told->missing[step] = ((1u << RANKS) - 1) & ~set;
    trainer->own->source[step] = source;
}

// Each element is a mean: the value of the one that is a period before, or another one.
static void look_at_gradients(const struct trainer *trainer, uint64_t step)
{
    const float *gradient = trainer->gradients[0][0];
    for (uint32_t e = 0; e < ELEMENTS; e++)
        if (e < PERIOD || gradient[e] != gradient[e - PERIOD])
            expect(trainer, set_of(trainer, gradient[e], step, e) != UINT32_MAX, "no mean");
}

static void train_step(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct trainer *trainer = &trainer_of_rank;
    uint64_t read = 0;
    job_begin(rank, NULL, NULL);
    make_call(trainer, 0, step);
    // Not all ranks wait in a step.
    const bool waits = (step + trainer->rank) % 3 != 0;
    if (waits) {
        expect(trainer, lockstep_call_wait(trainer->calls[0], LOCKSTEP_WAIT_FOREVER) == 0,
               "call_wait");
        read = module_hash(trainer, 0);
        trainer->own->waits++;
    }
    write_buffers(trainer, step);
    make_call(trainer, 1, step);
    if (rank->told->dies_at == step && trainer->own->death == BY_RESULT)
        job_thread(rank, die_by_result, trainer);
    // In even steps the last buckets travel beside the buffers.
    if (step % 2 == 1)
        take_buckets(trainer);
    if (rank->told->dies_at == step && trainer->own->death != BY_RESULT)
        atomic_store(&sends_left, 1);
    job_require(rank, job_end(rank), "step_end");
    expect(trainer, !waits || read == module_hash(trainer, 0), "the results have changed");
    look_at_gradients(trainer, step);
    look_at_buffers(trainer, step);
    *hash = module_hash(trainer, 0) * 31 + module_hash(trainer, 1) +
            hash64(trainer->means, sizeof(trainer->means));
}

static void configure(struct lockstep_config *config, struct lockstep_module_config *module)
{
    (void)module;
    config->root = ROOT;
    config->bucket_bytes = 32 * 1024;
}

static void register_modules(struct job_rank *rank)
{
    struct trainer *trainer = &trainer_of_rank;
    trainer->job = rank;
    trainer->own = job_own(rank->rank);
    trainer->rank = rank->rank;
    register_module(trainer, 0);
    register_module(trainer, 1);
}

// ---- The test -----------------------------------------------------------------------------------

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
    const struct told *last = job_told(RANKS - 1);
    const struct own *own = job_own(RANKS - 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        const uint32_t *source = ((struct own *)job_own(r))->source;
        for (uint64_t step = 1; step <= atomic_load(&job_told(r)->ended); step++)
            if (source[step] != own->source[step])
                fail_msg("round %u: ranks %u and %u have other copies in step %llu", round, r,
                         RANKS - 1, (unsigned long long)step);
    }
    assert_int_equal(last->missing[1] & 1u << (RANKS - 1), 0);
    assert_int_equal(last->missing[STEPS], dead);
    assert_int_equal(own->source[STEPS], last_source(dead));
    assert_true(own->waits > STEPS / 2);
}

static void prepare(const struct job *job, uint32_t round)
{
    (void)job;
    if (round % 2 == 0) {
        const uint32_t victim = round / 2 % (RANKS - 1);
        struct own *own = job_own(victim);
        own->death = round == 0 ? IN_BUFFERS : IN_WAVE;
        job_dies_at(victim, 3 + 2 * job_random(4));
        return;
    }
    // In even steps the sums are due.
    job_dies_at(round % (RANKS - 1), 2 + 2 * job_random(4) + (round % 4 == 3));
}

static void early_results_and_buffers_survive(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(6); round++) {
        struct job job = {.name = round % 2 == 0 ? "tcp" : "auto",
                          .size = RANKS,
                          .deaths = 1 + round % 3,
                          .tcp = round % 2 == 0,
                          .prepares = prepare,
                          .configure = configure,
                          .registers = register_modules,
                          .step = train_step};
        check_round(round, job_run(&job, round, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(early_results_and_buffers_survive, job_teardown),
    };
    job_memory(sizeof(struct own));
    job_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
