// SPDX-License-Identifier: Apache-2.0

#include "tests/soak/ranks.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "tests/fault/process_world.h"
#include "tests/support/choice.h"

#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TENSORS = 5,
    SETS = 1 << MEMBERS
};

static const float parts[MEMBERS] = {1, 9, 81, 729, 6561, 59049, 531441, 4782969};
static const int64_t elements[TENSORS] = {30000, 7, 8192, 1, 12001};

// ---- Gradients and their means ------------------------------------------------------------------

// A gradient is 9^member times a number of the step and the element, and weights are 1 to 3. So a
// sum is five digits of base 9 times the other number, in which a gradient that is lost or there
// twice is a digit. No two sets have one mean. All sums are whole numbers below 2^24, thus exact;
// for more than five members only if the other number is 1.
static uint64_t weight_of(uint32_t member, uint64_t step)
{
    return 1 + (member + step) % 3;
}

static float number_of(const struct rank_job *job, uint64_t step, uint64_t element)
{
    if (job->members > MEMBERS_USUAL)
        return 1;
    uint64_t state = step << 32 | element;
    return (float)(1 + choice_random(&state) % 757);
}

// The weighted sums of the members of each set for the number 1, and the sums of their weights.
struct sums {
    float values[SETS];
    float weights[SETS];
};

static void sums_of_step(struct sums *sums, uint64_t step)
{
    for (uint32_t set = 0; set < SETS; set++) {
        sums->values[set] = sums->weights[set] = 0;
        for (uint32_t member = 0; member < MEMBERS; member++) {
            const float weight = (float)weight_of(member, step);
            if ((set >> member & 1) == 0)
                continue;
            sums->values[set] += weight * parts[member];
            sums->weights[set] += weight;
        }
    }
}

// The set of members whose mean this is, looked for from `set` on. SETS: none.
static uint32_t set_of(const struct sums *sums, float value, float number, uint32_t set)
{
    for (uint32_t i = 0; i < SETS; i++, set = (set + 1) % SETS)
        if (set != 0 && sums->values[set] * number / sums->weights[set] == value)
            return set;
    return SETS;
}

static _Noreturn void rank_fails(struct told *told, int status, const char *where)
{
    snprintf(told->text, sizeof(told->text), "step %llu, %s: %s",
             (unsigned long long)atomic_load(&told->begun), where, lockstep_error_text());
    atomic_store(&told->failed, status);
    _exit(1);
}

static void rank_looks(struct told *told, const struct rank_job *job, float *const *gradients,
                       uint64_t step)
{
    struct told_step *said = &told->steps[step];
    uint32_t set = (1u << job->members) - 1;
    struct sums sums;
    sums_of_step(&sums, step);
    said->everywhere = SETS - 1;
    said->hash = 0;
    for (uint32_t t = 0; t < TENSORS; t++) {
        said->hash = said->hash * 31 + hash64(gradients[t], (size_t)elements[t] * sizeof(float));
        for (uint64_t e = 0; e < (uint64_t)elements[t]; e++) {
            set = set_of(&sums, gradients[t][e], number_of(job, step, e + 100000 * t), set);
            if (set == SETS) {
                snprintf(told->text, sizeof(told->text),
                         "step %llu: element %llu of tensor %u is %.9g, which is no mean",
                         (unsigned long long)step, (unsigned long long)e, t,
                         (double)gradients[t][e]);
                atomic_store(&told->failed, NO_MEAN);
                _exit(1);
            }
            said->everywhere &= set;
        }
    }
}

// ---- The rank -----------------------------------------------------------------------------------

struct rank {
    struct told *told;
    const struct rank_job *job;
    uint32_t member;
    lockstep_session *session;
    lockstep_module *module;
    float *gradients[TENSORS];
};

static void rank_open(struct rank *rank)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    const enum exchange way = rank->job->way;
    config.coordinator = rank->job->coordinator;
    config.job = "soak";
    config.world_size = rank->job->members;
    config.rank_hint = (int32_t)rank->member;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport = way == WAY_TCP ? LOCKSTEP_TRANSPORT_TCP : LOCKSTEP_TRANSPORT_AUTO;
    // In every fourth job all sums are direct, also those that are made again after a death.
    config.sum = rank->job->seed % 4 == 0 ? LOCKSTEP_SUM_RANKS : LOCKSTEP_SUM_FAST;
    if (way == WAY_HOSTS)
        config.host_id = rank->member < (rank->job->members + 1) / 2 ? "one host" : "another host";
    config.bucket_first_bytes = config.bucket_last_bytes = 16 * 1024;
    config.bucket_bytes = 64 * 1024;
    const int status = lockstep_open(&config, &rank->session);
    if (status < 0)
        rank_fails(rank->told, status, "open");
}

static void rank_registers(struct rank *rank)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e"};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter tensors[TENSORS];
    void *registered[TENSORS];
    for (uint32_t t = 0; t < TENSORS; t++) {
        const size_t count = (size_t)elements[t];
        if (rank->job->way != WAY_REGISTERED)
            rank->gradients[t] = calloc(count, sizeof(float));
        tensors[t] = (struct lockstep_parameter){.name = names[t],
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = &elements[t],
                                                 .data = calloc(count, sizeof(float)),
                                                 .gradient = rank->gradients[t]};
    }
    config.name = "m";
    config.parameters = tensors;
    config.parameter_count = TENSORS;
    int status = lockstep_module_register(rank->session, &config, &rank->module);
    if (status == 0 && rank->job->way == WAY_REGISTERED) {
        status = lockstep_module_gradients(rank->module, registered, TENSORS);
        for (uint32_t t = 0; t < TENSORS && status == 0; t++)
            rank->gradients[t] = registered[t];
    }
    if (status == 0)
        status = lockstep_start(rank->session);
    if (status < 0)
        rank_fails(rank->told, status, "start");
}

// Reports the gradients, now and then with a pause before one of them.
static int rank_call(struct rank *rank, uint64_t step, uint64_t *random)
{
    const uint64_t pause_at = choice_random(random) % (3 * (uint64_t)TENSORS);
    lockstep_call *call;
    int status = lockstep_call_begin(rank->module, &call);
    for (uint32_t t = TENSORS; t-- > 0 && status == 0;) {
        for (uint64_t e = 0; e < (uint64_t)elements[t]; e++)
            rank->gradients[t][e] =
                parts[rank->member] * number_of(rank->job, step, e + 100000 * t);
        if (t == pause_at)
            pause_us(choice_random(random) % 2000);
        status = lockstep_grad_ready(rank->module, call, t, NULL, NULL);
    }
    return status == 0 ? lockstep_call_end(call) : status;
}

static void rank_step(struct rank *rank, uint64_t step, uint64_t *random)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    struct told_step *said = &rank->told->steps[step];
    options.weight = weight_of(rank->member, step);
    atomic_store(&rank->told->begun, step);
    int status = lockstep_step_begin(rank->session, &options, &view);
    if (status < 0)
        rank_fails(rank->told, status, "step_begin");
    said->world_size = view.world_size;
    status = rank_call(rank, step, random);
    if (status < 0)
        rank_fails(rank->told, status, "call");
    const uint64_t since = clock_now_us();
    status = lockstep_step_end(rank->session, NULL);
    if (status < 0)
        rank_fails(rank->told, status, "step_end");
    const uint64_t now = clock_now_us();
    said->took_us = now - since;
    rank_looks(rank->told, rank->job, rank->gradients, step);
    said->ended_us = now;
}

_Noreturn void rank_train(struct told *told, const struct rank_job *job, uint32_t member)
{
    struct rank rank = {.told = told, .job = job, .member = member};
    uint64_t random = job->seed + member;
    rank_open(&rank);
    rank_registers(&rank);
    for (uint64_t step = 1; step <= job->steps; step++)
        rank_step(&rank, step, &random);
    lockstep_close(rank.session);
    _exit(0);
}
