// SPDX-License-Identifier: Apache-2.0
//
// Conformance: modules whose calls travel separately, each with gradient memory of its own. Case
// numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 4
#define CALLS 3
#define ALL 0xfu
#define LARGEST 300

static const uint64_t sizes[COUNT] = {40, 1, LARGEST, 17};

struct separate {
    struct trained_module net; // The first call uses the registered gradient memory.
    float memory[CALLS][COUNT][LARGEST]; // Gradient memory of the other calls.
};

static void separate_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static void separate_run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {
        .setting = setting, .configure = separate_configure, .body = body};
    ranks_run_test(&test);
}

static void declare_separate(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->separate_calls = 1;
}

static void separate_make(struct rank *rank, const char *name, lockstep_unused_policy unused,
                          struct separate *separate)
{
    const struct module_shape shape = {.name = name,
                                       .count = COUNT,
                                       .elements = sizes,
                                       .unused = unused,
                                       .calls_per_step = CALLS,
                                       .configure = declare_separate};
    trainer_make(rank, &shape, (uint32_t)strlen(name), &separate->net);
}

static float *place(struct separate *separate, uint32_t call, uint32_t parameter)
{
    return call == 0 ? separate->net.gradients[parameter] : separate->memory[call][parameter];
}

// The known gradient of an element; it depends on the step and on the call.
static int64_t known(const struct separate *separate, uint32_t rank, uint64_t step, uint32_t call,
                     uint32_t parameter, uint64_t element)
{
    return trainer_known(&separate->net, rank, CALLS * step + call, parameter, element);
}

static void fill_all(struct rank *rank, struct separate *separate)
{
    const uint64_t step = atomic_load(&rank->step);
    for (uint32_t c = 0; c < CALLS; c++) {
        for (uint32_t p = 0; p < COUNT; p++) {
            for (uint64_t i = 0; i < sizes[p]; i++)
                place(separate, c, p)[i] = (float)known(separate, rank->rank, step, c, p, i);
        }
    }
}

static void report(struct rank *rank, struct separate *separate, uint32_t call, uint32_t parameter)
{
    RANK_OK(rank, lockstep_grad_ready(separate->net.module, NULL, parameter,
                                      call == 0 ? NULL : place(separate, call, parameter), NULL));
}

static void one_call(struct rank *rank, struct separate *separate, uint32_t number, uint64_t used)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(separate->net.module, &call));
    for (uint32_t i = 0; i < COUNT; i++) {
        if ((used >> separate->net.order[i] & 1) != 0)
            report(rank, separate, number, separate->net.order[i]);
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// Checks a gradient of a call. weights[r] is the weight of rank r in this call. Ranks whose bit in
// `users` is 0 count as zeros. users 0: the gradient must be unchanged.
static void expect(struct rank *rank, struct separate *separate, uint32_t call, uint32_t parameter,
                   const uint64_t *weights, uint64_t users)
{
    const uint64_t step = atomic_load(&rank->step);
    for (uint64_t i = 0; i < sizes[parameter]; i++) {
        int64_t sum = 0;
        int64_t total = 0;
        for (uint32_t r = 0; r < rank->world_size; r++) {
            const bool uses = (users >> r & 1) != 0;
            sum += uses ? (int64_t)weights[r] * known(separate, r, step, call, parameter, i) : 0;
            total += (int64_t)weights[r];
        }
        const float mean = (float)sum / (float)total;
        const float own = (float)known(separate, rank->rank, step, call, parameter, i);
        const float wanted = users == 0 ? own : mean;
        const float found = place(separate, call, parameter)[i];
        if (!(found >= wanted && found <= wanted))
            rank_fail(rank, __FILE__, __LINE__,
                      "step %" PRIu64 " call %" PRIu32 ": parameter %" PRIu32 " element %" PRIu64
                      " is %g, not %g",
                      step, call, parameter, i, (double)found, (double)wanted);
    }
}

static void digest_call(struct rank *rank, struct separate *separate, uint32_t call)
{
    for (uint32_t p = 0; p < COUNT; p++)
        rank_digest(rank, place(separate, call, p), sizes[p] * sizeof(float));
}

// ---- All ranks make all calls ------------------------------------------------------------------

// Every call travels, so a step has the buckets of one call times the number of calls.
static void all_calls_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct separate separate;
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 5; i++) {
        const uint64_t weights[] = {1 + (uint64_t)i, 2, 5};
        const uint32_t buckets = separate.net.module->layout.bucket_count;
        options.weight = weights[rank->rank];
        trainer_begin(rank, &options);
        fill_all(rank, &separate);
        for (uint32_t c = 0; c < CALLS; c++)
            one_call(rank, &separate, c, ALL);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).buckets, CALLS * buckets);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
        for (uint32_t c = 0; c < CALLS; c++) {
            for (uint32_t p = 0; p < COUNT; p++)
                expect(rank, &separate, c, p, weights, 7);
            digest_call(rank, &separate, c);
        }
    }
    trainer_free(&separate.net);
}

static void separate_calls_travel_each(const struct setting *setting)
{
    separate_run(setting, all_calls_body);
}

// Waits until the first call has travelled, before the next one begins. If the library held the
// call back, the test would hang here, and the report of the hang would say so.
static void await_first_call(struct rank *rank, struct separate *separate)
{
    const uint32_t buckets = separate->net.module->layout.bucket_count;
    rank_enter(rank, "the buckets of the first call", __LINE__);
    while (atomic_load(&rank->session->tallies.buckets_travelled) < buckets)
        sched_yield();
    rank_left(rank, 0);
    rank_meet(rank);
}

static void early_body(struct rank *rank)
{
    struct separate separate;
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        const uint64_t weights[] = {1, 1, 1};
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        one_call(rank, &separate, 0, ALL);
        await_first_call(rank, &separate);
        for (uint32_t c = 1; c < CALLS; c++)
            one_call(rank, &separate, c, ALL);
        trainer_end(rank);
        for (uint32_t c = 0; c < CALLS; c++) {
            for (uint32_t p = 0; p < COUNT; p++)
                expect(rank, &separate, c, p, weights, 7);
        }
    }
    trainer_free(&separate.net);
}

static void separate_calls_travel_early(const struct setting *setting)
{
    separate_run(setting, early_body);
}

// The trainer waits for each call before it begins the next one, or for the first call after all
// have ended.
static void waited_body(struct rank *rank)
{
    struct separate separate;
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        const uint64_t weights[] = {1, 1, 1};
        lockstep_call *calls = separate.net.module->calls;
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        for (uint32_t c = 0; c < CALLS; c++) {
            one_call(rank, &separate, c, ALL);
            if (i % 2 == 0)
                RANK_OK(rank, lockstep_call_wait(&calls[c], LOCKSTEP_WAIT_FOREVER));
            for (uint32_t p = 0; p < COUNT && i % 2 == 0; p++)
                expect(rank, &separate, c, p, weights, 7);
        }
        RANK_OK(rank, lockstep_call_wait(&calls[0], LOCKSTEP_WAIT_FOREVER));
        for (uint32_t p = 0; p < COUNT; p++)
            expect(rank, &separate, 0, p, weights, 7);
        trainer_end(rank);
        for (uint32_t c = 0; c < CALLS; c++) {
            for (uint32_t p = 0; p < COUNT; p++)
                expect(rank, &separate, c, p, weights, 7);
        }
    }
    trainer_free(&separate.net);
}

static void case_38_separate_calls_are_waited_for(const struct setting *setting)
{
    separate_run(setting, waited_body);
}

// ---- Calls that are not made -------------------------------------------------------------------

// Rank r makes r + 1 calls. The mean of a call is over the ranks that made the call. A rank that
// did not make it has no memory for the mean, which is an error, except for the first call, which
// has registered memory.
static void fewer_calls_body(struct rank *rank)
{
    const uint32_t made = rank->rank + 1 < CALLS ? rank->rank + 1 : CALLS;
    struct separate separate;
    char text[64];
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        for (uint32_t c = 0; c < made; c++)
            one_call(rank, &separate, c, ALL);
        if (rank->rank + 1 < rank->world_size) {
            RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
            snprintf(text, sizeof(text), "no memory for it here (call %" PRIu32 ")", made + 1);
            RANK_SAYS(rank, text);
        } else {
            trainer_end(rank);
        }
        for (uint32_t c = 0; c < made; c++) {
            const uint64_t weights[] = {c < 1, c < 2, c < 3};
            for (uint32_t p = 0; p < COUNT; p++)
                expect(rank, &separate, c, p, weights, 7);
        }
        digest_call(rank, &separate, 0);
    }
    trainer_free(&separate.net);
}

static void separate_calls_not_made(const struct setting *setting)
{
    separate_run(setting, fewer_calls_body);
}

// ---- Unused ------------------------------------------------------------------------------------

// Each call has a usage of its own: no rank uses p0 in the second call, and all ranks except rank 0
// use p1 in the first call.
static void unused_body(struct rank *rank)
{
    const uint64_t ones[] = {1, 1, 1};
    struct separate separate;
    separate_make(rank, "net", LOCKSTEP_UNUSED_ACCEPT, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        one_call(rank, &separate, 0, rank->rank == 0 ? 0xd : ALL);
        one_call(rank, &separate, 1, 0xe);
        one_call(rank, &separate, 2, ALL);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).unused, 1 + rank->world_size);
        for (uint32_t c = 0; c < CALLS; c++) {
            for (uint32_t p = 0; p < COUNT; p++)
                expect(rank, &separate, c, p, ones,
                       c == 0 && p == 1   ? 6
                       : c == 1 && p == 0 ? 0
                                          : 7);
        }
    }
    trainer_free(&separate.net);
}

static void separate_calls_have_usage_each(const struct setting *setting)
{
    separate_run(setting, unused_body);
}

static void strict_body(struct rank *rank)
{
    struct separate separate;
    char text[256];
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        one_call(rank, &separate, 0, rank->rank == 1 ? 0x7 : ALL);
        one_call(rank, &separate, 1, 0xd);
        one_call(rank, &separate, 2, ALL);
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        snprintf(text, sizeof(text),
                 ": %" PRIu32 " gradients were not produced by the backward pass:"
                 "\n  module 'net' call 1 parameter 'p3' on rank 1"
                 "\n  module 'net' call 2 parameter 'p1' on rank 0"
                 "\n  module 'net' call 2 parameter 'p1' on rank 1",
                 rank->world_size + 1);
        RANK_SAYS(rank, text);
        rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    }
    trainer_free(&separate.net);
}

static void case_14_unused_names_the_call(const struct setting *setting)
{
    separate_run(setting, strict_body);
}

// ---- Given up ----------------------------------------------------------------------------------

// Rank 0 aborts its second call. Its first call counts, and it does not make the third one.
static void given_up_body(struct rank *rank)
{
    const uint64_t ones[] = {1, 1, 1};
    struct separate separate;
    lockstep_call *call;
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        one_call(rank, &separate, 0, ALL);
        for (uint32_t c = 1; c < CALLS && rank->rank > 0; c++)
            one_call(rank, &separate, c, ALL);
        if (rank->rank == 0) {
            RANK_OK(rank, lockstep_call_begin(separate.net.module, &call));
            for (int reported = 0; reported < i; reported++)
                report(rank, &separate, 1, separate.net.order[reported]);
            RANK_OK(rank, lockstep_call_abort(call));
            RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_begin(separate.net.module, &call));
        }
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "module 'net' on rank 0");
        RANK_EQUAL(rank, trainer_report(rank).aborted, 1);
        for (uint32_t p = 0; p < COUNT; p++)
            expect(rank, &separate, 0, p, ones, 7);
    }
    trainer_free(&separate.net);
}

static void case_30_a_separate_call_is_given_up(const struct setting *setting)
{
    separate_run(setting, given_up_body);
}

// Rank 0 aborts its second call, and waits in a barrier while the others wait for the third one.
static void given_up_and_awaited_body(struct rank *rank)
{
    struct separate separate;
    lockstep_call *call;
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        const bool gives_up = i > 0 && rank->rank == 0;
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        for (uint32_t c = 0; c < CALLS && !gives_up; c++) {
            RANK_OK(rank, lockstep_call_begin(separate.net.module, &call));
            for (uint32_t p = 0; p < COUNT; p++)
                report(rank, &separate, c, p);
            RANK_OK(rank, lockstep_call_end(call));
        }
        if (gives_up) {
            one_call(rank, &separate, 0, ALL);
            RANK_OK(rank, lockstep_call_begin(separate.net.module, &call));
            RANK_OK(rank, lockstep_call_abort(call));
        } else {
            RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
        }
        RANK_OK(rank, lockstep_barrier(rank->session, "meet", LOCKSTEP_WAIT_FOREVER));
        RANK_STATUS(rank, i == 0 ? LOCKSTEP_OK : LOCKSTEP_E_UNUSED,
                    lockstep_step_end(rank->session, NULL));
        RANK_EQUAL(rank, trainer_report(rank).aborted, i > 0);
    }
    trainer_free(&separate.net);
}

static void case_30_calls_after_it_are_not_awaited(const struct setting *setting)
{
    separate_run(setting, given_up_and_awaited_body);
}

// ---- Two modules, interleaved in other orders on the ranks -------------------------------------

static void interleaved_body(struct rank *rank)
{
    const uint64_t ones[] = {1, 1, 1};
    struct separate modules[2];
    separate_make(rank, "a", LOCKSTEP_UNUSED_ERROR, &modules[0]);
    separate_make(rank, "bb", LOCKSTEP_UNUSED_ERROR, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        for (uint32_t m = 0; m < 2; m++)
            fill_all(rank, &modules[m]);
        for (uint32_t c = 0; c < CALLS; c++) {
            one_call(rank, &modules[(rank->rank + i + c) % 2], c, ALL);
            one_call(rank, &modules[(rank->rank + i + c + 1) % 2], c, ALL);
        }
        trainer_end(rank);
        for (uint32_t m = 0; m < 2; m++) {
            for (uint32_t c = 0; c < CALLS; c++) {
                for (uint32_t p = 0; p < COUNT; p++)
                    expect(rank, &modules[m], c, p, ones, 7);
                digest_call(rank, &modules[m], c);
            }
        }
    }
    trainer_free(&modules[0].net);
    trainer_free(&modules[1].net);
}

static void case_40_separate_calls_interleaved(const struct setting *setting)
{
    separate_run(setting, interleaved_body);
}

// ---- What is refused ---------------------------------------------------------------------------

static void refused_body(struct rank *rank)
{
    static const struct lockstep_step_options accumulating = {
        .struct_bytes = sizeof(accumulating), .weight = 1, .accumulate = 1};
    struct separate separate;
    lockstep_call *call;
    separate_make(rank, "net", LOCKSTEP_UNUSED_ERROR, &separate);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_step_begin(rank->session, &accumulating, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_begin(separate.net.module, &call));
    RANK_SAYS(rank, "its calls are separate");
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    for (int i = 0; i < 2; i++) { // The first one closes the window.
        trainer_begin(rank, NULL);
        fill_all(rank, &separate);
        one_call(rank, &separate, 0, ALL);
        RANK_OK(rank, lockstep_call_begin(separate.net.module, &call));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_grad_ready(separate.net.module, call, 2, NULL, NULL));
        RANK_SAYS(rank, "call 2 has gradient memory of its own, and none is given for 'p2'");
        for (uint32_t p = 0; p < COUNT; p++)
            report(rank, &separate, 1, p);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_grad_ready(separate.net.module, call, 2, place(&separate, 1, 2), NULL));
        RANK_SAYS(rank, "'p2' is ready twice in call 2");
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
    }
    trainer_free(&separate.net);
}

static void case_16_separate_calls_refuse(const struct setting *setting)
{
    separate_run(setting, refused_body);
}

static void differ_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net",
                                       .count = COUNT,
                                       .elements = sizes,
                                       .calls_per_step = 2,
                                       .configure = rank->rank == 1 ? declare_separate : NULL};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    rank_meet(rank); // All sessions are open.
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "separate_calls=0 on rank");
    RANK_SAYS(rank, "separate_calls=1 on rank 1");
    trainer_free(&module);
}

static void separate_calls_differ(const struct setting *setting)
{
    separate_run(setting, differ_body);
}

// In a world of one rank every call has a result of its own, too.
static void alone_body(struct rank *rank)
{
    static const uint64_t sum_sizes[] = {5};
    const struct module_shape shape = {.name = "net",
                                       .count = 1,
                                       .elements = sum_sizes,
                                       .kind = LOCKSTEP_GRADIENT_SUM,
                                       .calls_per_step = 2,
                                       .configure = declare_separate};
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    float second[5] = {8, 8, 8, 8, 8};
    lockstep_call *call;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    options.weight = 4;
    trainer_begin(rank, &options);
    ((float *)module.gradients[0])[4] = 6;
    for (int c = 0; c < 2; c++) {
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        RANK_OK(rank, lockstep_grad_ready(module.module, call, 0, c == 0 ? NULL : second, NULL));
        RANK_OK(rank, lockstep_call_end(call));
    }
    trainer_end(rank);
    RANK_TRUE(rank, trainer_value(&module, 0, 4) >= 1.5 && trainer_value(&module, 0, 4) <= 1.5);
    RANK_EQUAL(rank, second[0], 2);
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    trainer_free(&module);
}

static void separate_calls_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

int main(void)
{
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"separate_calls_travel_each", separate_calls_travel_each, NULL},
        {"separate_calls_travel_early", separate_calls_travel_early, NULL},
        {"case_38_separate_calls_are_waited_for", case_38_separate_calls_are_waited_for, NULL},
        {"separate_calls_not_made", separate_calls_not_made, NULL},
        {"separate_calls_have_usage_each", separate_calls_have_usage_each, NULL},
        {"case_14_unused_names_the_call", case_14_unused_names_the_call, NULL},
        {"case_30_a_separate_call_is_given_up", case_30_a_separate_call_is_given_up, NULL},
        {"case_30_calls_after_it_are_not_awaited", case_30_calls_after_it_are_not_awaited, NULL},
        {"case_40_separate_calls_interleaved", case_40_separate_calls_interleaved, NULL},
        {"case_16_separate_calls_refuse", case_16_separate_calls_refuse, NULL},
        {"separate_calls_differ", separate_calls_differ, NULL},
        {"separate_calls_alone", separate_calls_alone, one},
    };
    return stamp_run("reducer: separate calls", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
