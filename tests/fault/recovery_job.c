// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/recovery_job.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "tests/support/bounds.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PERIOD 5 // Gradients of a step repeat after so many elements.
#define AHEAD 2 // Steps that ranks may begin after the one in which a rank is to die.
#define AWAY_US 300000
#define STOPPED_US 1300000 // Longer than mates wait in each other's memory.

uint64_t job_elements[JOB_TENSORS] = {90000, 7, 32768, 1, 40001};
static uint64_t bucket_bytes = 512 * 1024;

static struct told *shared; // [JOB_RANKS]
static unsigned char *own; // [JOB_RANKS][own_bytes]
static size_t own_bytes;
static struct coordinator_process coordinator;
static uint64_t random_state;

// ---- The trainer --------------------------------------------------------------------------------

void job_fails(struct job_rank *rank, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rank->told->text, sizeof(rank->told->text), format, arguments);
    va_end(arguments);
    if (atomic_load(&rank->told->failed) == 0)
        atomic_store(&rank->told->failed, -99);
    _exit(1);
}

void job_require(struct job_rank *rank, int status, const char *where)
{
    if (status >= 0)
        return;
    atomic_store(&rank->told->failed, status);
    job_fails(rank, "%s: %s", where, lockstep_error_text());
}

void job_expect(struct job_rank *rank, bool right, const char *what)
{
    if (!right)
        job_fails(rank, "step %llu: %s: %s", (unsigned long long)atomic_load(&rank->told->begun),
                  what, lockstep_error_text());
}

void job_thread(struct job_rank *rank, void *(*run)(void *argument), void *argument)
{
    pthread_t thread;
    job_expect(rank, pthread_create(&thread, NULL, run, argument) == 0, "thread");
}

float job_gradient(uint32_t rank, uint64_t step, uint64_t element)
{
    static const float ranks[JOB_RANKS] = {1, 11, 101, 769};
    return ranks[rank] * (float)(1 + (element + step) % PERIOD);
}

void job_hash(uint64_t *hash, const void *bytes, size_t count)
{
    *hash = *hash * 31 + hash64(bytes, count);
}

bool job_has_data(const struct job_rank *rank, uint32_t r)
{
    return rank->epoch_step <= 1 + (r * 5 + rank->epoch * 7) % 8;
}

int job_begin(struct job_rank *rank, const struct lockstep_step_options *options,
              struct lockstep_step_view *view)
{
    struct lockstep_step_view view_of_step = LOCKSTEP_STEP_VIEW_INIT;
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    const bool blind = rank->job->blind;
    const int status = lockstep_step_begin(rank->session, options, blind ? NULL : &view_of_step);
    job_require(rank, status, "step_begin");
    if (blind)
        job_require(rank, lockstep_world_change(rank->session, &change), "world_change");
    rank->told->changed =
        blind ? (uint32_t)change.changes : rank->told->changed + view_of_step.changed;
    rank->told->generation = blind ? change.generation : view_of_step.generation;
    if (status == LOCKSTEP_FINISHED) {
        rank->epoch++;
        rank->epoch_step = 0;
    }
    if (view)
        *view = view_of_step;
    return status;
}

lockstep_call *job_backward(struct job_rank *rank, uint64_t step)
{
    lockstep_call *call;
    int status = lockstep_call_begin(rank->module, &call);
    for (uint32_t t = JOB_TENSORS; t-- > 0 && status == 0;) {
        for (uint64_t e = 0; e < job_elements[t]; e++)
            rank->gradients[t][e] = job_gradient(rank->rank, step, e);
        status = lockstep_grad_ready(rank->module, call, t, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, "call");
    return call;
}

void job_check_of_one(struct job_rank *rank, uint32_t tensor, uint32_t user, uint64_t step)
{
    const float *means = rank->gradients[tensor];
    const bool written = means[0] != JOB_UNTOUCHED;
    for (uint64_t e = 0; e < job_elements[tensor]; e++) {
        const float given = job_gradient(user, step, e);
        bool right = written ? means[e] == 0 && user != rank->rank : means[e] == JOB_UNTOUCHED;
        for (uint32_t n = 1; n <= rank->size && written; n++)
            right = right || means[e] == given / (float)n;
        if (!right)
            job_fails(rank, "step %llu: element %llu of the tensor that only rank %u uses is %g",
                      (unsigned long long)step, (unsigned long long)e, user, (double)means[e]);
    }
}

int job_end(struct job_rank *rank)
{
    const uint64_t began = clock_now_us();
    const int status = lockstep_step_end(rank->session, NULL);
    const uint64_t took = clock_now_us() - began;
    if (took > rank->told->slowest_us)
        rank->told->slowest_us = took;
    return status;
}

// Sums are exact in float.
static uint32_t set_of(const struct job_rank *rank, float value, uint64_t step, uint64_t element,
                       const uint64_t *weights, bool is_sum)
{
    for (uint32_t set = 1; set < 1u << rank->size; set++) {
        float sum = 0;
        uint64_t total = 0;
        for (uint32_t r = 0; r < rank->size; r++) {
            const uint64_t weight = (set >> r & 1) == 0 ? 0 : weights ? weights[r] : 1;
            sum += (float)weight * job_gradient(r, step, element);
            total += weight;
        }
        if (total > 0 && sum / (is_sum ? 1 : (float)total) == value)
            return set;
    }
    return UINT32_MAX;
}

uint32_t job_set_of_mean(const struct job_rank *rank, float value, uint64_t step, uint64_t element,
                         const uint64_t *weights)
{
    return set_of(rank, value, step, element, weights, false);
}

uint32_t job_set_of_sum(const struct job_rank *rank, float value, uint64_t step, uint64_t element)
{
    return set_of(rank, value, step, element, NULL, true);
}

// True for an element without a mean. It is as the rank left it, or 0 where ranks with weight 0
// alone were left. That no rank with a weight was left is for job_check_steps to find.
static bool is_of_none(const struct job_rank *rank, float value, const uint64_t *weights)
{
    return value == JOB_UNTOUCHED || (value == 0 && weights && weights[rank->rank] == 0);
}

void job_look(struct job_rank *rank, uint64_t step, const uint64_t *weights, uint64_t *hash)
{
    uint32_t all = (1u << rank->size) - 1;
    uint32_t some = 0;
    // Most elements have the value of the one that is a period before.
    float values[PERIOD];
    uint32_t sets[PERIOD];
    for (uint32_t i = 0; i < PERIOD; i++)
        values[i] = NAN;
    for (uint32_t t = 0; t < JOB_TENSORS; t++) {
        const float *gradient = rank->gradients[t];
        job_hash(hash, gradient, job_elements[t] * sizeof(float));
        for (uint64_t e = 0; e < job_elements[t]; e++) {
            if (gradient[e] != values[e % PERIOD]) {
                values[e % PERIOD] = gradient[e];
                sets[e % PERIOD] = is_of_none(rank, gradient[e], weights)
                                       ? 0
                                       : job_set_of_mean(rank, gradient[e], step, e, weights);
            }
            const uint32_t set = sets[e % PERIOD];
            if (set == UINT32_MAX)
                job_fails(rank, "step %llu: element %llu of tensor %u is %g, which is no mean",
                          (unsigned long long)step, (unsigned long long)e, t, (double)gradient[e]);
            all &= set;
            some |= set;
        }
    }
    // A rank of weight 0 is in every set and in none.
    for (uint32_t r = 0; r < rank->size; r++)
        if (weights && weights[r] == 0) {
            all |= 1u << r;
            some |= 1u << r;
        }
    rank->told->missing[step] = ((1u << rank->size) - 1) & ~some;
    rank->told->partial[step] = some & ~all;
}

void job_step(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    job_begin(rank, NULL, NULL);
    job_backward(rank, step);
    job_require(rank, job_end(rank), "step_end");
    job_look(rank, step, NULL, hash);
}

static void rank_registers(struct job_rank *rank, struct lockstep_module_config *config)
{
    struct lockstep_parameter tensors[JOB_TENSORS];
    int64_t shapes[JOB_TENSORS];
    char names[JOB_TENSORS][16];
    memset(tensors, 0, sizeof(tensors));
    for (uint32_t t = 0; t < JOB_TENSORS; t++) {
        rank->gradients[t] = calloc(job_elements[t], sizeof(float));
        snprintf(names[t], sizeof(names[t]), "t%u", t);
        shapes[t] = (int64_t)job_elements[t];
        tensors[t].name = names[t];
        tensors[t].dtype = LOCKSTEP_FLOAT32;
        tensors[t].dims = 1;
        tensors[t].shape = &shapes[t];
        tensors[t].data = calloc(job_elements[t], sizeof(float));
        tensors[t].gradient = rank->gradients[t];
    }
    config->name = "m";
    config->parameters = tensors;
    config->parameter_count = JOB_TENSORS;
    job_require(rank, lockstep_module_register(rank->session, config, &rank->module), "register");
}

// From now on gradients are in registered memory.
static void rank_takes_places(struct job_rank *rank)
{
    void *places[JOB_TENSORS];
    job_require(rank, lockstep_module_gradients(rank->module, places, JOB_TENSORS), "gradients");
    for (uint32_t t = 0; t < JOB_TENSORS; t++) {
        free(rank->gradients[t]);
        rank->gradients[t] = places[t];
    }
}

static uint32_t steps_of(const struct job *job)
{
    return job->steps > 0 ? job->steps : JOB_STEPS;
}

static void rank_trains(const struct job *job, uint32_t number)
{
    struct job_rank rank = {.job = job, .told = &shared[number], .rank = number, .size = job->size};
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", job->port);
    config.coordinator = address;
    config.world_size = job->size;
    config.rank_hint = (int32_t)number;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport = job->tcp ? LOCKSTEP_TRANSPORT_TCP : LOCKSTEP_TRANSPORT_AUTO;
    config.bucket_first_bytes = config.bucket_last_bytes = bucket_bytes / 8;
    config.bucket_bytes = bucket_bytes;
    if (job->configure)
        job->configure(&config, &module);
    job_require(&rank, lockstep_open(&config, &rank.session), "open");
    if (job->registers)
        job->registers(&rank);
    else
        rank_registers(&rank, &module);
    if (job->loads)
        job->loads(&rank);
    job_require(&rank, lockstep_start(rank.session), "start");
    if (job->registered)
        rank_takes_places(&rank);
    for (uint64_t step = 1; step <= steps_of(job); step++) {
        uint64_t hash = 1;
        while (atomic_load(&rank.told->allowed) < step)
            pause_us(200);
        atomic_store(&rank.told->begun, step);
        rank.epoch_step++;
        job->step(&rank, step, &hash);
        rank.told->hash[step] = hash | 1;
        atomic_store(&rank.told->ended, step);
    }
    rank.told->change = (struct lockstep_change)LOCKSTEP_CHANGE_INIT;
    job_require(&rank, lockstep_world_change(rank.session, &rank.told->change), "world_change");
    if (job->ends)
        job->ends(&rank);
    lockstep_close(rank.session);
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static void *memory_for_all(size_t bytes)
{
    void *memory =
        mmap(NULL, JOB_RANKS * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    return memory;
}

void job_memory(size_t bytes)
{
    own_bytes = bytes;
    own = bytes > 0 ? memory_for_all(bytes) : NULL;
    shared = memory_for_all(sizeof(*shared));
}

void *job_own(uint32_t rank)
{
    return own + rank * own_bytes;
}

void job_dies_at(uint32_t rank, uint64_t step)
{
    shared[rank].dies_at = step;
}

void job_seed(void)
{
    // A sanitizer slows each element down, so it gets fewer, in as many buckets.
    for (uint32_t t = 0; t < JOB_TENSORS && test_slow() > 1; t++)
        job_elements[t] = job_elements[t] / 4 | 1;
    bucket_bytes /= test_slow() > 1 ? 4 : 1;
    const uint64_t seed = choice_number("LOCKSTEP_TEST_FAULT_SEED", (uint64_t)getpid());
    printf("LOCKSTEP_TEST_FAULT_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed * 2654435761u + 1;
}

uint32_t job_rounds(uint32_t otherwise)
{
    const uint32_t few = (otherwise + 2) / 3;
    return (uint32_t)choice_number("LOCKSTEP_TEST_FAULT_ROUNDS", test_slow() > 1 ? few : otherwise);
}

uint64_t job_random(uint64_t bound)
{
    return choice_below(&random_state, bound);
}

const struct told *job_told(uint32_t rank)
{
    return &shared[rank];
}

int job_teardown(void **state)
{
    (void)state;
    if (coordinator.pid > 0)
        kill(coordinator.pid, SIGKILL);
    coordinator.pid = 0;
    return 0;
}

static bool job_await(uint32_t rank, uint64_t step)
{
    const uint64_t deadline = clock_now_ms() + WAIT_MS;
    while (atomic_load(&shared[rank].begun) < step) {
        if (clock_now_ms() > deadline || atomic_load(&shared[rank].failed) != 0)
            return false;
        pause_us(200);
    }
    return true;
}

// Deaths beside lockstep_start are in test_recovery_start.
static bool job_await_start(const struct job *job)
{
    bool started = true;
    for (uint32_t r = 0; started && r < job->size; r++)
        started = job_await(r, 1);
    return started;
}

static void job_describe(const struct job *job)
{
    for (uint32_t r = 0; r < job->size; r++)
        printf("  rank %u: begun %llu, ended %llu, failed %d %s\n", r,
               (unsigned long long)atomic_load(&shared[r].begun),
               (unsigned long long)atomic_load(&shared[r].ended), atomic_load(&shared[r].failed),
               shared[r].text);
}

// Ranks may begin the steps up to this one, so that no job is over before its deaths.
static void job_allow(uint64_t step)
{
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        atomic_store(&shared[r].allowed, step);
}

static void job_kill_coordinator(void)
{
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
}

static void job_return_coordinator(void)
{
    pause_us(AWAY_US);
    coordinator_start(&coordinator, NULL);
}

// Kills a rank that is not the last one, unless it kills itself. Every fourth death is in the first
// step that may have one.
static uint32_t job_kill(const struct job *job, pid_t *pids, uint32_t round, uint32_t death)
{
    const uint64_t first = job->first_death > 0 ? job->first_death : 1;
    const uint64_t spread = round % 4 == 3 ? 1 : 8;
    const uint32_t last = job->size - 1;
    const uint32_t victim = (round + death) % last;
    const uint64_t delay = job_random(4000);
    const bool itself = shared[victim].dies_at > 0;
    uint64_t step = first + (steps_of(job) - 10) * death / job->deaths + job_random(spread);
    int status;
    if (itself)
        step = shared[victim].dies_at;
    job_allow(step + AHEAD);
    if (!itself && (!job_await_start(job) || !job_await(victim, step))) {
        job_describe(job);
        fail_msg("%s: rank %u does not come to step %llu", job->name, victim,
                 (unsigned long long)step);
    }
    if (!itself)
        pause_us(delay);
    if (job->stops)
        kill(pids[last], SIGSTOP);
    if (job->away == JOB_AWAY_BEFORE)
        job_kill_coordinator();
    if (!itself)
        kill(pids[victim], SIGKILL);
    assert_true(process_reap(pids[victim], WAIT_MS, &status));
    if (job->away == JOB_AWAY_AFTER) {
        pause_us(job->away_us + job_random(8000));
        job_kill_coordinator();
    }
    if (job->away != JOB_STAYS)
        job_return_coordinator();
    if (job->stops)
        pause_us(STOPPED_US);
    kill(pids[last], SIGCONT);
    printf("%s: rank %u of %u dies in step %llu, %llu us\n", job->name, victim, job->size,
           (unsigned long long)atomic_load(&shared[victim].begun), (unsigned long long)delay);
    return 1u << victim;
}

static void job_check_ends(const struct job *job, const pid_t *pids, uint32_t dead)
{
    for (uint32_t r = 0; r < job->size; r++) {
        int status = 0;
        if ((dead >> r & 1) != 0)
            continue;
        const bool ended = process_reap(pids[r], WAIT_MS, &status);
        if (ended && status == 0)
            continue;
        job_describe(job);
        fail_msg("%s: rank %u %s 0x%x", job->name, r, ended ? "ends with" : "does not end",
                 (unsigned)status);
    }
}

// Of a rank that was killed, the steps that it has ended.
static void job_check_steps(const struct job *job, uint32_t dead)
{
    const struct told *last = &shared[job->size - 1];
    for (uint32_t r = 0; r < job->size; r++) {
        const struct told *told = &shared[r];
        const uint64_t to = (dead >> r & 1) != 0 ? atomic_load(&told->ended) : steps_of(job);
        for (uint64_t step = 1; step <= to; step++) {
            if (told->hash[step] != last->hash[step])
                fail_msg("%s: ranks %u and %u differ in step %llu", job->name, r, job->size - 1,
                         (unsigned long long)step);
            if (((told->missing[step] | told->partial[step]) & ~dead) != 0)
                fail_msg("%s: step %llu lacks gradients of survivors", job->name,
                         (unsigned long long)step);
        }
    }
}

uint32_t job_run(struct job *job, uint32_t round, const char *const *arguments)
{
    pid_t pids[JOB_RANKS];
    uint32_t dead = 0;
    memset(shared, 0, JOB_RANKS * sizeof(*shared));
    if (own)
        memset(own, 0, JOB_RANKS * own_bytes);
    if (job->prepares)
        job->prepares(job, round);
    coordinator_start(&coordinator, arguments);
    job->port = coordinator.port;
    for (uint32_t r = 0; r < job->size; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            rank_trains(job, r);
    }
    for (uint32_t d = 0; d < job->deaths; d++)
        dead |= job_kill(job, pids, round, d);
    job_allow(UINT64_MAX);
    job_check_ends(job, pids, dead);
    const struct told *last = &shared[job->size - 1];
    // A view shows the changes since the last one as one. A step that does not begin, because the
    // data has run out, has none. A recovery that a new coordinator begins anew may be another
    // change.
    assert_in_range(last->changed, job->deaths > 0,
                    job->away == JOB_STAYS ? job->deaths : job->deaths + 2);
    if (job->away == JOB_STAYS)
        assert_in_range(last->change.changes, last->changed, job->deaths);
    job_check_steps(job, dead);
    coordinator_stop(&coordinator);
    return dead;
}
