// SPDX-License-Identifier: Apache-2.0
//
// Conformance: gradients that need several reports (ready_count), and aborted calls of modules that
// accept them. Case numbers are those of the list of cases for reducers.

#include "base/mutex.h"
#include "base/thread.h"
#include "tests/support/listener.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 4
static const uint64_t sizes[COUNT] = {40, 1, 300, 17};
static const uint64_t counts[COUNT] = {1, 2, 3, 0};

static void reports_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static void reports_run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {
        .setting = setting, .configure = reports_configure, .body = body};
    ranks_run_test(&test);
}

// ---- Case 16: an expected count ----------------------------------------------------------------

static void declare_counts(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)config;
    for (uint32_t p = 0; p < module->shape.count; p++)
        module->parameters[p].ready_count = counts[p % COUNT];
}

static void counts_make(struct rank *rank, uint64_t calls_per_step, struct trained_module *module)
{
    const struct module_shape shape = {.name = "net",
                                       .count = COUNT,
                                       .elements = sizes,
                                       .calls_per_step = calls_per_step,
                                       .configure = declare_counts};
    trainer_make(rank, &shape, 0, module);
    RANK_OK(rank, lockstep_start(rank->session));
}

static uint64_t count_of(uint32_t parameter)
{
    return counts[parameter] == 0 ? 1 : counts[parameter];
}

// Sets all elements of a gradient. Reports before the last one find a wrong value.
static void set_gradient(struct trained_module *module, uint32_t parameter, float value)
{
    float *gradient = module->gradients[parameter];
    for (uint64_t i = 0; i < module->shape.elements[parameter]; i++)
        gradient[i] = value;
}

static void set_known(struct rank *rank, struct trained_module *module, uint32_t parameter)
{
    float *gradient = module->gradients[parameter];
    for (uint64_t i = 0; i < module->shape.elements[parameter]; i++)
        gradient[i] =
            (float)trainer_known(module, rank->rank, atomic_load(&rank->step), parameter, i);
}

static void report_all(struct rank *rank, struct trained_module *module, uint32_t parameter)
{
    char text[64];
    for (uint64_t n = 1; n <= count_of(parameter); n++) {
        set_gradient(module, parameter, -1000);
        if (n == count_of(parameter))
            set_known(rank, module, parameter);
        RANK_OK(rank, lockstep_grad_ready(module->module, NULL, parameter, NULL, NULL));
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(module->module, NULL, parameter, NULL, NULL));
    snprintf(text, sizeof(text), "its ready_count is %" PRIu64, count_of(parameter));
    RANK_SAYS(rank, count_of(parameter) == 1 ? "is ready twice" : text);
}

// Both calls of a step report each gradient ready_count times. The value at the last report of the
// second call counts.
static void counted_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    counts_make(rank, 2, &module);
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        for (int pass = 0; pass < 2; pass++) {
            RANK_OK(rank, lockstep_call_begin(module.module, &call));
            for (uint32_t at = 0; at < COUNT; at++)
                report_all(rank, &module, module.order[at]);
            RANK_OK(rank, lockstep_call_end(call));
        }
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_16_a_count_of_reports(const struct setting *setting)
{
    reports_run(setting, counted_body);
}

// A gradient with fewer reports than its ready_count counts as used; the end of the call completes
// it.
static void fewer_body(struct rank *rank)
{
    const uint32_t second = 2;
    struct trained_module module;
    lockstep_call *call;
    counts_make(rank, 1, &module);
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t p = 0; p < COUNT; p++)
            RANK_OK(rank, lockstep_grad_ready(module.module, call, p, NULL, NULL));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_unused(call, &second, 1));
        RANK_SAYS(rank, "'p2' is declared unused after it was ready");
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
    }
    trainer_free(&module);
}

static void case_16_fewer_reports_than_the_count(const struct setting *setting)
{
    reports_run(setting, fewer_body);
}

static void count_on_rank_1(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)config;
    module->parameters[2].ready_count = 2;
}

static void different_counts_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net",
                                       .count = COUNT,
                                       .elements = sizes,
                                       .configure = rank->rank == 1 ? count_on_rank_1 : NULL};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    rank_meet(rank); // All sessions are open.
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "p2");
    RANK_SAYS(rank, "ready_count=1 on rank");
    RANK_SAYS(rank, "ready_count=2 on rank 1");
    trainer_free(&module);
}

static void case_16_counts_differ(const struct setting *setting)
{
    reports_run(setting, different_counts_body);
}

// ---- Case 19: each of eight threads reports every gradient once --------------------------------

#define THREADS 8

struct reporter {
    struct thread thread;
    struct trained_module *module;
    uint32_t first;
    atomic_uint refused;
};

static void reporter_run(void *argument)
{
    struct reporter *reporter = argument;
    for (uint32_t i = 0; i < reporter->module->shape.count; i++) {
        const uint32_t p = (reporter->first + i) % reporter->module->shape.count;
        if (lockstep_grad_ready(reporter->module->module, NULL, p, NULL, NULL) != 0)
            atomic_fetch_add(&reporter->refused, 1);
    }
}

static void report_from_threads(struct rank *rank, struct trained_module *module)
{
    struct reporter reporters[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        reporters[i] = (struct reporter){.module = module, .first = i * 5};
        RANK_EQUAL(rank,
                   thread_start(&reporters[i].thread, "reporter", reporter_run, &reporters[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        thread_join(&reporters[i].thread);
        RANK_EQUAL(rank, atomic_load(&reporters[i].refused), 0);
    }
}

static void count_threads(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)config;
    for (uint32_t p = 0; p < module->shape.count; p++)
        module->parameters[p].ready_count = THREADS;
}

static void threads_body(struct rank *rank)
{
    uint64_t elements[40];
    const struct module_shape shape = {
        .name = "net", .count = 40, .elements = elements, .configure = count_threads};
    struct trained_module module;
    lockstep_call *call;
    for (uint32_t i = 0; i < 40; i++)
        elements[i] = 1 + i % 20;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 5; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        report_from_threads(rank, &module);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_grad_ready(module.module, call, 7, NULL, NULL));
        RANK_SAYS(rank, "'p7' is ready 9 times");
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    trainer_free(&module);
}

static void case_19_counted_from_eight_threads(const struct setting *setting)
{
    reports_run(setting, threads_body);
}

static void accept_abort(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->on_abort = LOCKSTEP_ABORT_ACCEPT;
}

static void accept_make(struct rank *rank, const char *name, uint32_t index,
                        struct trained_module *module)
{
    const struct module_shape shape = {.name = name,
                                       .count = COUNT,
                                       .elements = sizes,
                                       .kind = LOCKSTEP_GRADIENT_MEAN,
                                       .configure = accept_abort};
    trainer_make(rank, &shape, index, module);
}

static void broken_call(struct rank *rank, struct trained_module *module, uint32_t reported)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < reported; i++)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    RANK_OK(rank, lockstep_call_abort(call));
}

// Computes whether the bucket of each parameter is complete on the rank that aborts its call, in
// the layout of this step. The mean of a bucket is over the ranks whose part of it is complete.
static void whole_buckets(const struct trained_module *module, uint32_t reported, bool *whole)
{
    const struct lockstep_module *known = module->module;
    bool missing[COUNT] = {false};
    for (uint32_t i = reported; i < COUNT; i++)
        missing[known->bucket_of[module->order[i]]] = true;
    for (uint32_t p = 0; p < COUNT; p++)
        whole[p] = !missing[known->bucket_of[p]];
}

static void accepted_step(struct rank *rank, struct trained_module *module, uint32_t reported)
{
    const uint32_t broken = reported % rank->world_size;
    uint64_t weights[CLUSTER_MAX_WORLD];
    bool whole[COUNT];
    trainer_begin(rank, NULL);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    whole_buckets(module, reported, whole);
    if (rank->rank == broken)
        broken_call(rank, module, reported);
    else
        trainer_call(rank, module);
    trainer_end(rank);
    for (uint32_t p = 0; p < COUNT; p++) {
        for (uint32_t r = 0; r < rank->world_size; r++)
            weights[r] = r != broken || whole[p];
        trainer_expect_parameter(rank, module, atomic_load(&rank->step), p, weights);
    }
    RANK_EQUAL(rank, trainer_report(rank).aborted, 1);
    trainer_digest(rank, module);
}

static void accepted_body(struct rank *rank)
{
    struct listener *listener = listener_of(rank);
    struct trained_module module;
    char text[64];
    accept_make(rank, "net", 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t reported = 0; reported <= COUNT; reported++) {
        accepted_step(rank, &module, reported);
        mutex_lock(&listener->mutex);
        RANK_EQUAL(rank, listener->lines, reported + 1);
        snprintf(text, sizeof(text), "module 'net' on rank %" PRIu32, reported % rank->world_size);
        RANK_TRUE(rank, strstr(listener->last, text) != NULL);
        mutex_unlock(&listener->mutex);
        trainer_step_known(rank, &module, 1);
        RANK_EQUAL(rank, trainer_report(rank).aborted, 0);
    }
    trainer_free(&module);
}

static void case_30_giving_up_is_accepted(const struct setting *setting)
{
    listener_run(setting, "event=calls_given_up", reports_configure, accepted_body);
}

// All ranks abort their calls before any report, so there is no mean, and all gradients stay as
// they were.
static void all_give_up_body(struct rank *rank)
{
    struct trained_module module;
    accept_make(rank, "net", 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        broken_call(rank, &module, 0);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).aborted, rank->world_size);
        for (uint32_t p = 0; p < COUNT; p++) {
            for (uint64_t e = 0; e < sizes[p]; e++)
                RANK_EQUAL(rank, trainer_value(&module, p, e),
                           trainer_known(&module, rank->rank, atomic_load(&rank->step), p, e));
        }
        trainer_step_known(rank, &module, 1);
    }
    trainer_free(&module);
}

static void case_30_all_ranks_give_up(const struct setting *setting)
{
    reports_run(setting, all_give_up_body);
}

// Every rank aborts calls of ten modules that accept it, and rank 1 also a call of a module that
// does not. The error names that module, although there are more aborted calls than it has room
// for.
#define LENIENT 10

static void mixed_body(struct rank *rank)
{
    const struct module_shape strict = {.name = "strict", .count = COUNT, .elements = sizes};
    struct trained_module modules[LENIENT + 1];
    char names[LENIENT][16];
    char text[256];
    for (uint32_t i = 0; i < LENIENT; i++) {
        snprintf(names[i], sizeof(names[i]), "lenient%" PRIu32, i);
        accept_make(rank, names[i], i, &modules[i]);
    }
    trainer_make(rank, &strict, LENIENT, &modules[LENIENT]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        for (uint32_t m = 0; m < LENIENT; m++)
            broken_call(rank, &modules[m], 1);
        if (rank->rank == 1)
            broken_call(rank, &modules[LENIENT], 2);
        else
            trainer_call(rank, &modules[LENIENT]);
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        snprintf(text, sizeof(text),
                 "step %" PRIu64 ": a backward pass was given up (lockstep_call_abort):"
                 "\n  module 'strict' on rank 1\ndo not use the gradients of this step",
                 atomic_load(&rank->step));
        RANK_TRUE(rank, strcmp(lockstep_error_text(), text) == 0);
        RANK_EQUAL(rank, trainer_report(rank).aborted, LENIENT * rank->world_size + 1);
        trainer_step_known(rank, modules, LENIENT + 1);
    }
    for (uint32_t m = 0; m <= LENIENT; m++)
        trainer_free(&modules[m]);
}

static void case_30_policies_are_per_module(const struct setting *setting)
{
    ranks_run(setting, mixed_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_16_a_count_of_reports", case_16_a_count_of_reports, NULL},
        {"case_16_fewer_reports_than_the_count", case_16_fewer_reports_than_the_count, NULL},
        {"case_16_counts_differ", case_16_counts_differ, NULL},
        {"case_19_counted_from_eight_threads", case_19_counted_from_eight_threads, NULL},
        {"case_30_giving_up_is_accepted", case_30_giving_up_is_accepted, NULL},
        {"case_30_all_ranks_give_up", case_30_all_ranks_give_up, NULL},
        {"case_30_policies_are_per_module", case_30_policies_are_per_module, NULL},
    };
    return stamp_run("reducer: reports", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
