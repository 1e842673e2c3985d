// SPDX-License-Identifier: Apache-2.0
//
// Conformance: reported and missing gradients, and the errors about missing ones. Case numbers are
// those of the list of cases for reducers.

#include "base/thread.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t sizes[8] = {40, 1, 300, 17, 64, 5, 128, 33};

static void ready_make(struct rank *rank, struct trained_module *module)
{
    const struct module_shape shape = {.name = "net", .count = 4, .elements = sizes};
    trainer_make(rank, &shape, 0, module);
    RANK_OK(rank, lockstep_start(rank->session));
}

// Calls the module; the parameters whose bit is set in `used` have gradients.
static void ready_call(struct rank *rank, struct trained_module *module, uint64_t used)
{
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    trainer_call_used(rank, module, used);
}

// ---- Case 13 -----------------------------------------------------------------------------------

// Checks parameter 2, which has a gradient on all ranks except rank 0; rank 0 contributes zeros.
static void expect_mean_without_0(struct rank *rank, const struct trained_module *module)
{
    for (uint64_t i = 0; i < module->shape.elements[2]; i++) {
        int64_t sum = 0;
        for (uint32_t r = 1; r < rank->world_size; r++)
            sum += trainer_known(module, r, atomic_load(&rank->step), 2, i);
        const double mean = (double)((float)sum / (float)rank->world_size);
        const double found = trainer_value(module, 2, i);
        RANK_TRUE(rank, found >= mean && found <= mean);
    }
}

static void used_elsewhere_body(struct rank *rank)
{
    struct trained_module module;
    ready_make(rank, &module);
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        ready_call(rank, &module, rank->rank == 0 ? 0xb : 0xf);
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "module 'net' parameter 'p2' on rank 0");
        expect_mean_without_0(rank, &module);
        trainer_expect_parameter(rank, &module, atomic_load(&rank->step), 3, NULL);
        trainer_digest(rank, &module);
        trainer_step_known(rank, &module, 1);
    }
    trainer_free(&module);
}

static void case_13_used_on_others_only(const struct setting *setting)
{
    ranks_run(setting, used_elsewhere_body, NULL);
}

// ---- Cases 14 and 15 ---------------------------------------------------------------------------

// The expected error: rank 0 has no gradient of p1 of the outer module, and the last rank has none
// of p0 and p3 of the inner module.
static void unused_text(const struct rank *rank, char *text, size_t bytes)
{
    const uint32_t last = rank->world_size - 1;
    snprintf(text, bytes,
             "step %" PRIu64 ": 3 gradients were not produced by the backward pass:"
             "\n  module 'net' parameter 'p1' on rank 0"
             "\n  module 'net.inner' parameter 'p0' on rank %" PRIu32
             "\n  module 'net.inner' parameter 'p3' on rank %" PRIu32,
             atomic_load(&rank->step), last, last);
}

static void nested_step(struct rank *rank, struct trained_module *modules)
{
    char text[1024];
    trainer_begin(rank, NULL);
    ready_call(rank, &modules[0], rank->rank == 0 ? 0xd : 0xf);
    ready_call(rank, &modules[1], rank->rank == rank->world_size - 1 ? 0x6 : 0xf);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    unused_text(rank, text, sizeof(text));
    RANK_TRUE(rank, strcmp(lockstep_error_text(), text) == 0);
    trainer_digest(rank, &modules[0]);
    trainer_digest(rank, &modules[1]);
}

static void nested_body(struct rank *rank)
{
    const struct module_shape inner = {.name = "net.inner", .count = 4, .elements = sizes + 4};
    const struct module_shape outer = {.name = "net", .count = 4, .elements = sizes};
    struct trained_module modules[2];
    trainer_make(rank, &outer, 0, &modules[0]);
    trainer_make(rank, &inner, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    nested_step(rank, modules); // The learning step.
    nested_step(rank, modules); // A planned step.
    trainer_step_known(rank, modules, 2); // The session goes on.
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_14_unused_named_exactly(const struct setting *setting)
{
    ranks_run(setting, nested_body, NULL);
}

static void strict_body(struct rank *rank)
{
    struct trained_module module;
    ready_make(rank, &module);
    trainer_step_known(rank, &module, 1);
    trainer_begin(rank, NULL);
    ready_call(rank, &module, rank->rank == 0 ? 0x7 : 0xf);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "step 2: 1 gradient was not produced");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void case_15_missing_on_rank_0_only(const struct setting *setting)
{
    ranks_run(setting, strict_body, NULL);
}

// More missing gradients than a commit wave can name: the error names the first ones and counts the
// others.
static void many_unused_body(struct rank *rank)
{
    uint64_t ones[40];
    const struct module_shape shape = {.name = "net", .count = 40, .elements = ones};
    struct trained_module module;
    char more[64];
    for (int i = 0; i < 40; i++)
        ones[i] = 1;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    ready_call(rank, &module, 0);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    snprintf(more, sizeof(more), "\n  and %" PRIu32 " more", 40 * rank->world_size - 16);
    RANK_SAYS(rank, more);
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void case_14_more_unused_than_named(const struct setting *setting)
{
    ranks_run(setting, many_unused_body, NULL);
}

// ---- Cases 16 and 17 ---------------------------------------------------------------------------

static void twice_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    ready_make(rank, &module);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t p = 4; p-- > 0;) {
            RANK_OK(rank, lockstep_grad_ready(module.module, NULL, p, NULL, NULL));
            RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                       lockstep_grad_ready(module.module, call, p, NULL, NULL));
            RANK_SAYS(rank, "module 'net'");
            RANK_SAYS(rank, module.names[p]);
            RANK_SAYS(rank, "twice");
        }
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    trainer_free(&module);
}

static void case_16_ready_twice(const struct setting *setting)
{
    ranks_run(setting, twice_body, NULL);
}

static void late_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    ready_make(rank, &module);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_grad_ready(module.module, NULL, 0, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t p = 4; p-- > 0;)
            RANK_OK(rank, lockstep_grad_ready(module.module, call, p, NULL, NULL));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "module 'net' has an open call");
        RANK_OK(rank, lockstep_call_end(call));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_grad_ready(module.module, call, 2, NULL, NULL));
        RANK_SAYS(rank, "'p2' is ready outside a call");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_end(call));
        RANK_SAYS(rank, "ended already");
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    trainer_free(&module);
}

static void case_17_ready_after_the_end(const struct setting *setting)
{
    ranks_run(setting, late_body, NULL);
}

// ---- Case 19 -----------------------------------------------------------------------------------

#define THREADS 8

struct reporter {
    struct thread thread;
    struct trained_module *module;
    pthread_barrier_t *start;
    uint32_t first;
    atomic_uint refused;
};

// Reports this thread's share of the gradients, and the next thread's share as well. So each
// gradient is reported twice, and one of the two reports is refused.
static void reporter_run(void *argument)
{
    struct reporter *reporter = argument;
    struct trained_module *module = reporter->module;
    pthread_barrier_wait(reporter->start);
    for (uint32_t p = reporter->first; p < module->shape.count; p += THREADS) {
        const uint32_t other = p / THREADS * THREADS + (p + 1) % THREADS;
        if (lockstep_grad_ready(module->module, NULL, p, NULL, NULL) != 0)
            atomic_fetch_add(&reporter->refused, 1);
        if (lockstep_grad_ready(module->module, NULL, other, NULL, NULL) != 0)
            atomic_fetch_add(&reporter->refused, 1);
    }
}

static uint32_t report_from_threads(struct rank *rank, struct trained_module *module)
{
    struct reporter reporters[THREADS];
    pthread_barrier_t start;
    uint32_t refused = 0;
    pthread_barrier_init(&start, NULL, THREADS);
    for (uint32_t i = 0; i < THREADS; i++) {
        reporters[i] = (struct reporter){.module = module, .start = &start, .first = i};
        RANK_TRUE(rank,
                  thread_start(&reporters[i].thread, "reporter", reporter_run, &reporters[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        thread_join(&reporters[i].thread);
        refused += atomic_load(&reporters[i].refused);
    }
    pthread_barrier_destroy(&start);
    return refused;
}

static void threads_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static void threads_body(struct rank *rank)
{
    uint64_t elements[TRAINER_MAX_PARAMETERS];
    const struct module_shape shape = {
        .name = "net", .count = TRAINER_MAX_PARAMETERS, .elements = elements};
    struct trained_module module;
    lockstep_call *call;
    for (uint32_t i = 0; i < TRAINER_MAX_PARAMETERS; i++)
        elements[i] = 1 + i % 20;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 5; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        RANK_EQUAL(rank, report_from_threads(rank, &module), TRAINER_MAX_PARAMETERS);
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    trainer_free(&module);
}

static void case_19_ready_from_eight_threads(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = threads_configure, .body = threads_body};
    ranks_run_test(&test);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_13_used_on_others_only", case_13_used_on_others_only, NULL},
        {"case_14_unused_named_exactly", case_14_unused_named_exactly, NULL},
        {"case_14_more_unused_than_named", case_14_more_unused_than_named, NULL},
        {"case_15_missing_on_rank_0_only", case_15_missing_on_rank_0_only, NULL},
        {"case_16_ready_twice", case_16_ready_twice, NULL},
        {"case_17_ready_after_the_end", case_17_ready_after_the_end, NULL},
        {"case_19_ready_from_eight_threads", case_19_ready_from_eight_threads, NULL},
    };
    return stamp_run("reducer: ready and unused", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
