// SPDX-License-Identifier: Apache-2.0
//
// Conformance: several backward passes of a module before its gradients travel. Case numbers are
// those of the list of cases for reducers.

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t sizes[8] = {40, 1, 300, 17, 64, 5, 128, 33};
#define ALL 0xfu

// Small caps, so that a module has several buckets.
static void calls_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static void calls_run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {
        .setting = setting, .configure = calls_configure, .body = body};
    ranks_run_test(&test);
}

static void calls_make(struct rank *rank, uint64_t calls_per_step, struct trained_module *module)
{
    const struct module_shape shape = {
        .name = "net", .count = 4, .elements = sizes, .calls_per_step = calls_per_step};
    trainer_make(rank, &shape, 0, module);
}

static void calls_zero(struct trained_module *module)
{
    for (uint32_t p = 0; p < module->shape.count; p++)
        memset(module->gradients[p], 0, module->shape.elements[p] * sizeof(float));
}

// Adds the contribution of one backward pass to a gradient. `micro` is the number of the pass,
// counted over all steps.
static void calls_add(struct trained_module *module, uint32_t rank, uint64_t micro,
                      uint32_t parameter)
{
    float *gradient = module->gradients[parameter];
    for (uint64_t i = 0; i < module->shape.elements[parameter]; i++)
        gradient[i] += (float)trainer_known(module, rank, micro, parameter, i);
}

// Runs a backward pass that uses the parameters whose bit is set in `used`.
static void calls_backward(struct rank *rank, struct trained_module *module, uint64_t micro,
                           uint64_t used)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < module->shape.count; i++) {
        const uint32_t p = module->order[i];
        if ((used >> p & 1) == 0)
            continue;
        calls_add(module, rank->rank, micro, p);
        RANK_OK(rank, lockstep_grad_ready(module->module, call, p, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// Checks that each gradient is the mean over the ranks of each rank's sum over the passes.
// used_of(r, c) is the set of parameters that rank r used in pass micro + c.
static void calls_expect(struct rank *rank, const struct trained_module *module, uint64_t micro,
                         uint32_t passes, uint64_t (*used_of)(uint32_t rank, uint32_t pass))
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; i < module->shape.elements[p]; i++) {
            int64_t sum = 0;
            for (uint32_t at = 0; at < rank->world_size * passes; at++) {
                const uint32_t r = at / passes;
                const uint32_t pass = at % passes;
                if ((used_of(r, pass) >> p & 1) != 0)
                    sum += trainer_known(module, r, micro + pass, p, i);
            }
            const double mean = (double)((float)sum / (float)rank->world_size);
            const double found = trainer_value(module, p, i);
            RANK_TRUE(rank, found >= mean && found <= mean);
        }
    }
}

static uint64_t all_used(uint32_t rank, uint32_t pass)
{
    (void)rank, (void)pass;
    return ALL;
}

// ---- Case 16 with an expected count ------------------------------------------------------------

static void twice_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    calls_make(rank, 2, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 4; step++) {
        trainer_begin(rank, NULL);
        calls_zero(&module);
        calls_backward(rank, &module, 2 * step, ALL);
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t p = 4; p-- > 0;) {
            calls_add(&module, rank->rank, 2 * step + 1, p);
            RANK_OK(rank, lockstep_grad_ready(module.module, NULL, p, NULL, NULL));
            RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                       lockstep_grad_ready(module.module, call, p, NULL, NULL));
            RANK_SAYS(rank, "is ready twice in call 2");
        }
        RANK_OK(rank, lockstep_call_end(call));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_begin(module.module, &call));
        RANK_SAYS(rank, "calls_per_step, which is 2");
        trainer_end(rank);
        calls_expect(rank, &module, 2 * step, 2, all_used);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_16_an_expected_count_of_two(const struct setting *setting)
{
    calls_run(setting, twice_body);
}

// The last pass does not use parameters that an earlier pass used; which pass depends on the rank.
static uint64_t some_used(uint32_t rank, uint32_t pass)
{
    return pass == rank % 3 ? ALL : pass == 2 ? 0x4 : 0x9;
}

static void used_before_body(struct rank *rank)
{
    struct trained_module module;
    calls_make(rank, 3, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 4; step++) {
        trainer_begin(rank, NULL);
        calls_zero(&module);
        for (uint32_t pass = 0; pass < 3; pass++)
            calls_backward(rank, &module, 3 * step + pass, some_used(rank->rank, pass));
        trainer_end(rank);
        calls_expect(rank, &module, 3 * step, 3, some_used);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_16_used_in_any_call(const struct setting *setting)
{
    calls_run(setting, used_before_body);
}

// Rank r makes only r + 1 of 8 calls, and still contributes the sum of its calls.
static uint64_t fewer_used(uint32_t rank, uint32_t pass)
{
    return pass <= rank ? ALL : 0;
}

static void fewer_body(struct rank *rank)
{
    struct trained_module module;
    calls_make(rank, 8, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 4; step++) {
        trainer_begin(rank, NULL);
        calls_zero(&module);
        for (uint32_t pass = 0; pass <= rank->rank; pass++)
            calls_backward(rank, &module, 8 * step + pass, ALL);
        trainer_end(rank);
        calls_expect(rank, &module, 8 * step, 8, fewer_used);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_40_fewer_calls_than_declared(const struct setting *setting)
{
    calls_run(setting, fewer_body);
}

// A parameter used in the first call and declared unused in the last one contributes its gradient.
// A parameter that no call uses and one call declares unused is no error.
static void declared_body(struct rank *rank)
{
    const uint32_t declared[] = {0, 2};
    struct trained_module module;
    lockstep_call *call;
    calls_make(rank, 2, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 3; step++) {
        trainer_begin(rank, NULL);
        calls_zero(&module);
        calls_backward(rank, &module, 2 * step, 0xe);
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        RANK_OK(rank, lockstep_call_unused(call, declared, 2));
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        for (uint32_t p = 1; p < 4; p++)
            trainer_expect_parameter(rank, &module, 2 * step, p, NULL);
        RANK_EQUAL(rank, trainer_report(rank).unused, rank->world_size);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_18_declared_after_it_was_used(const struct setting *setting)
{
    calls_run(setting, declared_body);
}

// ---- Two modules, calls interleaved ------------------------------------------------------------

static void interleaved_call(struct rank *rank, struct trained_module *outer,
                             struct trained_module *inner, uint64_t micro)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(outer->module, &call));
    for (uint32_t p = 4; p-- > 0;) {
        calls_add(outer, rank->rank, micro, p);
        RANK_OK(rank, lockstep_grad_ready(outer->module, call, p, NULL, NULL));
        if (p == 2)
            calls_backward(rank, inner, micro, ALL);
    }
    RANK_OK(rank, lockstep_call_end(call));
}

static void interleaved_body(struct rank *rank)
{
    const struct module_shape inner = {
        .name = "net.inner", .count = 4, .elements = sizes + 4, .calls_per_step = 4};
    struct trained_module modules[2];
    calls_make(rank, 2, &modules[0]);
    trainer_make(rank, &inner, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 4; step++) {
        trainer_begin(rank, NULL);
        calls_zero(&modules[0]);
        calls_zero(&modules[1]);
        calls_backward(rank, &modules[1], 4 * step, ALL);
        interleaved_call(rank, &modules[0], &modules[1], 4 * step + 1);
        interleaved_call(rank, &modules[0], &modules[1], 4 * step + 2);
        calls_backward(rank, &modules[1], 4 * step + 3, ALL);
        trainer_end(rank);
        calls_expect(rank, &modules[0], 4 * step + 1, 2, all_used);
        calls_expect(rank, &modules[1], 4 * step, 4, all_used);
        trainer_digest(rank, &modules[0]);
        trainer_digest(rank, &modules[1]);
    }
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_40_calls_of_two_modules_interleaved(const struct setting *setting)
{
    calls_run(setting, interleaved_body);
}

// ---- Cases 20 and 21: windows of accumulation --------------------------------------------------

static const struct lockstep_step_options accumulating = {
    .struct_bytes = sizeof(accumulating), .weight = 1, .accumulate = 1};

// Runs a step that only accumulates. It has the number of the step that closes the window.
static void window_step(struct rank *rank, struct trained_module *module, uint64_t step,
                        uint64_t micro, uint64_t used)
{
    RANK_OK(rank, lockstep_step_begin(rank->session, &accumulating, NULL));
    calls_backward(rank, module, micro, used);
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    RANK_TRUE(rank, step == 1 || trainer_report(rank).step == step - 1);
}

// Each window has four micro-batches, and ends with the mean over the ranks of their sums. In every
// other window the closing step makes no call.
static void window_body(struct rank *rank)
{
    struct trained_module module;
    calls_make(rank, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 6; step++) {
        const uint32_t steps = 3 + step % 2;
        calls_zero(&module);
        for (uint32_t pass = 0; pass < steps; pass++)
            window_step(rank, &module, step, 4 * step + pass, ALL);
        trainer_begin(rank, NULL);
        RANK_EQUAL(rank, atomic_load(&rank->step), step);
        if (steps < 4)
            calls_backward(rank, &module, 4 * step + 3, ALL);
        trainer_end(rank);
        calls_expect(rank, &module, 4 * step, 4, all_used);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_20_accumulate_then_synchronize(const struct setting *setting)
{
    calls_run(setting, window_body);
}

// Rank r has r + 1 micro-batches of one sample. Its gradient is their sum and its weight their
// number, so the result is the mean over one large batch.
static void uneven_body(struct rank *rank)
{
    const struct module_shape shape = {
        .name = "net", .count = 4, .elements = sizes, .kind = LOCKSTEP_GRADIENT_SUM};
    struct lockstep_step_options closing = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    closing.weight = rank->rank + 1;
    for (uint64_t step = 1; step <= 4; step++) {
        calls_zero(&module);
        for (uint32_t pass = 0; pass < rank->rank; pass++)
            window_step(rank, &module, step, 8 * step + pass, ALL);
        trainer_begin(rank, &closing);
        calls_backward(rank, &module, 8 * step + rank->rank, ALL);
        trainer_end(rank);
        for (uint32_t p = 0; p < 4; p++) {
            for (uint64_t i = 0; i < sizes[p]; i++) {
                int64_t sum = 0;
                int64_t samples = 0;
                for (uint32_t r = 0; r < rank->world_size; r++) {
                    for (uint32_t pass = 0; pass <= r; pass++, samples++)
                        sum += trainer_known(&module, r, 8 * step + pass, p, i);
                }
                const double mean = (double)((float)sum / (float)samples);
                const double found = trainer_value(&module, p, i);
                RANK_TRUE(rank, found >= mean && found <= mean);
            }
        }
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_20_windows_of_different_length(const struct setting *setting)
{
    calls_run(setting, uneven_body);
}

// Parameter 2 is used in the first step of the window only.
static void used_once_body(struct rank *rank)
{
    struct trained_module module;
    calls_make(rank, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 4; step++) {
        calls_zero(&module);
        window_step(rank, &module, step, 3 * step, ALL);
        window_step(rank, &module, step, 3 * step + 1, 0x1);
        trainer_begin(rank, NULL);
        calls_backward(rank, &module, 3 * step + 2, 0x9);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
        trainer_expect_parameter(rank, &module, 3 * step, 2, NULL);
        trainer_digest(rank, &module);
    }
    // Parameter 2 was used in the previous window, but not in this one.
    calls_zero(&module);
    window_step(rank, &module, 5, 0, 0xb);
    trainer_begin(rank, NULL);
    calls_backward(rank, &module, 1, 0xb);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "module 'net' parameter 'p2' on rank 0");
    trainer_free(&module);
}

static void case_21_used_once_in_the_window(const struct setting *setting)
{
    calls_run(setting, used_once_body);
}

// ---- Case 30 -----------------------------------------------------------------------------------

// Begins a call and aborts it after `reported` gradients, as after an exception.
static void broken_call(struct rank *rank, struct trained_module *module, uint32_t reported)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < reported; i++)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    RANK_OK(rank, lockstep_call_abort(call));
}

// Checks that step_end fails on every rank with the same text, and that all ranks have the same
// gradients.
static void broken_end(struct rank *rank, struct trained_module *module, uint32_t broken)
{
    char text[256];
    snprintf(text, sizeof(text),
             "step %" PRIu64 ": a backward pass was given up (lockstep_call_abort):"
             "\n  module 'net' on rank %" PRIu32 "\ndo not use the gradients of this step",
             atomic_load(&rank->step), broken);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    RANK_TRUE(rank, strcmp(lockstep_error_text(), text) == 0);
    trainer_digest(rank, module);
}

// Aborts a call in several steps, the learning step included, after each possible number of
// reports.
static void aborted_body(struct rank *rank)
{
    struct trained_module module;
    calls_make(rank, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t reported = 0; reported <= 4; reported++) {
        const uint32_t broken = reported % rank->world_size;
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        if (rank->rank == broken)
            broken_call(rank, &module, reported);
        else
            trainer_call(rank, &module);
        broken_end(rank, &module, broken);
        trainer_step_known(rank, &module, 1);
    }
    trainer_free(&module);
}

static void case_30_a_call_is_given_up(const struct setting *setting)
{
    calls_run(setting, aborted_body);
}

// Rank 0 aborts the first of two calls, or a call in the first step of a window, and goes on to
// step_end.
static void aborted_early_body(struct rank *rank)
{
    struct trained_module module;
    calls_make(rank, 2, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 6; step++) {
        const bool window = step % 3 == 0;
        calls_zero(&module);
        if (window && rank->rank == 0) {
            RANK_OK(rank, lockstep_step_begin(rank->session, &accumulating, NULL));
            broken_call(rank, &module, 3);
            RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        }
        trainer_begin(rank, NULL);
        if (rank->rank == 0 && step % 3 == 1)
            broken_call(rank, &module, 3);
        for (uint32_t pass = 0; pass < 2 && (rank->rank > 0 || step % 3 == 2); pass++)
            calls_backward(rank, &module, 2 * step + pass, ALL);
        if (step % 3 != 2) {
            broken_end(rank, &module, 0);
            continue;
        }
        trainer_end(rank);
        calls_expect(rank, &module, 2 * step, 2, all_used);
    }
    trainer_free(&module);
}

static void case_30_given_up_before_the_last_call(const struct setting *setting)
{
    calls_run(setting, aborted_early_body);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_16_an_expected_count_of_two", case_16_an_expected_count_of_two, NULL},
        {"case_16_used_in_any_call", case_16_used_in_any_call, NULL},
        {"case_40_fewer_calls_than_declared", case_40_fewer_calls_than_declared, NULL},
        {"case_18_declared_after_it_was_used", case_18_declared_after_it_was_used, NULL},
        {"case_40_calls_of_two_modules_interleaved", case_40_calls_of_two_modules_interleaved,
         NULL},
        {"case_20_accumulate_then_synchronize", case_20_accumulate_then_synchronize, NULL},
        {"case_20_windows_of_different_length", case_20_windows_of_different_length, NULL},
        {"case_21_used_once_in_the_window", case_21_used_once_in_the_window, NULL},
        {"case_30_a_call_is_given_up", case_30_a_call_is_given_up, NULL},
        {"case_30_given_up_before_the_last_call", case_30_given_up_before_the_last_call, NULL},
    };
    return stamp_run("reducer: calls", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
