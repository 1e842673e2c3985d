// SPDX-License-Identifier: Apache-2.0
//
// Conformance: tied weights of two modules. A decoder shares a parameter of the encoder, in the
// same memory. The shared gradient is the sum over both backward passes, and travels once. Case
// numbers are those of the list of cases for reducers.

#include "base/thread.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define OWNED 4 // Number of the encoder's parameters; p2 is the tied one.
#define TIED 2
#define SHARING 3 // Number of the decoder's parameters; p1 is the shared one.
#define SHARED 1

static const uint64_t owned_sizes[OWNED] = {40, 1, 300, 17};
static const uint64_t sharing_sizes[SHARING] = {64, 300, 5};

struct tied {
    struct trained_module decoder; // The first member: configure gets this one.
    struct trained_module encoder;
    lockstep_abort_policy on_abort;
    uint64_t ready_count; // ready_count of the tied parameter in the decoder.
};

static void tied_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static void tied_run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {
        .setting = setting, .configure = tied_configure, .body = body};
    ranks_run_test(&test);
}

static void tie(struct trained_module *module, struct lockstep_module_config *config)
{
    const struct tied *tied = (const struct tied *)module;
    struct lockstep_parameter *parameter = &module->parameters[SHARED];
    parameter->data = tied->encoder.data[TIED];
    parameter->gradient = NULL;
    parameter->flags = LOCKSTEP_PARAMETER_SHARED;
    parameter->ready_count = tied->ready_count;
    config->on_abort = tied->on_abort;
}

static void accept_abort(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->on_abort = LOCKSTEP_ABORT_ACCEPT;
}

// The encoder's policy for unused parameters holds for the tied one.
static void tied_make(struct rank *rank, lockstep_unused_policy unused, uint64_t calls_per_step,
                      struct tied *tied)
{
    const struct module_shape encoder = {
        .name = "encoder",
        .count = OWNED,
        .elements = owned_sizes,
        .unused = unused,
        .configure = tied->on_abort == LOCKSTEP_ABORT_ACCEPT ? accept_abort : NULL};
    const struct module_shape decoder = {.name = "decoder",
                                         .count = SHARING,
                                         .elements = sharing_sizes,
                                         .calls_per_step = calls_per_step,
                                         .configure = tie};
    trainer_make(rank, &encoder, 0, &tied->encoder);
    trainer_make(rank, &decoder, 1, &tied->decoder);
}

static void tied_start(struct rank *rank, lockstep_unused_policy unused, uint64_t calls_per_step,
                       struct tied *tied)
{
    tied_make(rank, unused, calls_per_step, tied);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void tied_free(struct tied *tied)
{
    trainer_free(&tied->encoder);
    trainer_free(&tied->decoder);
}

// Fills the gradients of both modules with known numbers, and the tied gradient with zeros.
static void tied_fill(struct rank *rank, struct tied *tied)
{
    trainer_fill_known(&tied->encoder, rank->rank, atomic_load(&rank->step));
    trainer_fill_known(&tied->decoder, rank->rank, atomic_load(&rank->step));
    memset(tied->encoder.gradients[TIED], 0, owned_sizes[TIED] * sizeof(float));
}

static void tied_add(struct rank *rank, struct tied *tied, const struct trained_module *from,
                     uint32_t parameter, uint64_t pass)
{
    float *gradient = tied->encoder.gradients[TIED];
    for (uint64_t i = 0; i < owned_sizes[TIED]; i++)
        gradient[i] +=
            (float)trainer_known(from, rank->rank, atomic_load(&rank->step) + pass, parameter, i);
}

static void encoder_call(struct rank *rank, struct tied *tied, bool uses)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(tied->encoder.module, &call));
    for (uint32_t p = OWNED; p-- > 0;) {
        if (p == TIED && !uses)
            continue;
        if (p == TIED)
            tied_add(rank, tied, &tied->encoder, TIED, 0);
        RANK_OK(rank, lockstep_grad_ready(tied->encoder.module, call, p, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

static void decoder_call(struct rank *rank, struct tied *tied, bool uses, uint64_t pass)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(tied->decoder.module, &call));
    for (uint32_t p = SHARING; p-- > 0;) {
        if (p == SHARED && !uses)
            continue;
        if (p == SHARED)
            tied_add(rank, tied, &tied->decoder, SHARED, pass);
        RANK_OK(rank, lockstep_grad_ready(tied->decoder.module, call, p, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// The tied gradient of rank r. Bit r of by_encoder and by_decoder says whether rank r has reported
// it in that module; `passes` is the number of the decoder's passes.
static int64_t tied_sum(const struct rank *rank, const struct tied *tied, uint32_t r,
                        uint64_t element, uint64_t by_encoder, uint64_t by_decoder, uint64_t passes)
{
    const uint64_t step = atomic_load(&rank->step);
    int64_t sum = 0;
    if ((by_encoder >> r & 1) != 0)
        sum += trainer_known(&tied->encoder, r, step, TIED, element);
    for (uint64_t pass = 0; pass < passes && (by_decoder >> r & 1) != 0; pass++)
        sum += trainer_known(&tied->decoder, r, step + pass, SHARED, element);
    return sum;
}

static void expect_tied(struct rank *rank, const struct tied *tied, uint64_t by_encoder,
                        uint64_t by_decoder, uint64_t passes)
{
    for (uint64_t i = 0; i < owned_sizes[TIED]; i++) {
        int64_t sum = 0;
        for (uint32_t r = 0; r < rank->world_size; r++)
            sum += tied_sum(rank, tied, r, i, by_encoder, by_decoder, passes);
        const double wanted = (double)((float)sum / (float)rank->world_size);
        const double found = trainer_value(&tied->encoder, TIED, i);
        if (!(found >= wanted && found <= wanted))
            rank_fail(rank, __FILE__, __LINE__,
                      "step %" PRIu64 ": element %" PRIu64 " is %g, not %g",
                      atomic_load(&rank->step), i, found, wanted);
    }
    rank_digest(rank, tied->encoder.gradients[TIED], owned_sizes[TIED] * sizeof(float));
}

static void expect_others(struct rank *rank, const struct tied *tied)
{
    for (uint32_t p = 0; p < OWNED; p++) {
        if (p != TIED)
            trainer_expect_parameter(rank, &tied->encoder, atomic_load(&rank->step), p, NULL);
    }
    for (uint32_t p = 0; p < SHARING; p++) {
        if (p != SHARED)
            trainer_expect_parameter(rank, &tied->decoder, atomic_load(&rank->step), p, NULL);
    }
}

// ---- Both modules report it --------------------------------------------------------------------

// Calls both modules: the encoder first, the decoder first, or the decoder inside the encoder's
// call.
static void both_calls(struct rank *rank, struct tied *tied, uint32_t order)
{
    lockstep_call *call;
    if (order == 0)
        encoder_call(rank, tied, true);
    if (order < 2)
        decoder_call(rank, tied, true, 0);
    if (order == 1)
        encoder_call(rank, tied, true);
    if (order < 2)
        return;
    RANK_OK(rank, lockstep_call_begin(tied->encoder.module, &call));
    for (uint32_t p = OWNED; p-- > 0;) {
        if (p == TIED)
            tied_add(rank, tied, &tied->encoder, TIED, 0);
        RANK_OK(rank, lockstep_grad_ready(tied->encoder.module, call, p, NULL, NULL));
        if (p == 1)
            decoder_call(rank, tied, true, 0);
    }
    RANK_OK(rank, lockstep_call_end(call));
}

static void both_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (uint32_t i = 0; i < 6; i++) {
        const uint32_t buckets =
            tied.encoder.module->layout.bucket_count + tied.decoder.module->layout.bucket_count;
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        both_calls(rank, &tied, (rank->rank + i) % 3);
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, 1);
        expect_others(rank, &tied);
        RANK_EQUAL(rank, trainer_report(rank).buckets, buckets);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
    }
    tied_free(&tied);
}

static void shared_gradients_travel_once(const struct setting *setting)
{
    tied_run(setting, both_body);
}

// Before the decoder begins, all buckets of the encoder travel except the one with the tied
// gradient, to which the decoder still adds.
static void waits_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (int i = 0; i < 4; i++) {
        const uint32_t buckets = tied.encoder.module->layout.bucket_count;
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        encoder_call(rank, &tied, true);
        rank_enter(rank, "the buckets of the encoder", __LINE__);
        while (atomic_load(&rank->session->tallies.buckets_travelled) + 1 < buckets)
            sched_yield();
        rank_left(rank, 0);
        rank_meet(rank);
        RANK_EQUAL(rank, atomic_load(&rank->session->tallies.buckets_travelled) + 1, buckets);
        decoder_call(rank, &tied, true, 0);
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, 1);
        expect_others(rank, &tied);
    }
    tied_free(&tied);
}

static void shared_gradients_wait(const struct setting *setting)
{
    tied_run(setting, waits_body);
}

// ---- Case 38: waiting for one that shares ------------------------------------------------------

static void must_end_first(struct rank *rank, lockstep_call *call, const char *party)
{
    char text[96];
    snprintf(text, sizeof(text), "end the last call of module '%s' first", party);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
    RANK_SAYS(rank, text);
}

// The shared gradient travels after both calls have ended, so a wait for one call fails before the
// other call has ended. After both, a wait for the decoder also waits for the shared gradient,
// which the encoder owns.
static void tied_wait_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (uint32_t i = 0; i < 4; i++) {
        lockstep_call *encoder = &tied.encoder.module->calls[0];
        lockstep_call *decoder = &tied.decoder.module->calls[0];
        const bool encoder_first = i % 2 == 0;
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        if (encoder_first)
            encoder_call(rank, &tied, true);
        else
            decoder_call(rank, &tied, true, 0);
        must_end_first(rank, encoder_first ? encoder : decoder,
                       encoder_first ? "decoder" : "encoder");
        if (encoder_first)
            decoder_call(rank, &tied, true, 0);
        else
            encoder_call(rank, &tied, true);
        RANK_OK(rank, lockstep_call_wait(i < 2 ? decoder : encoder, LOCKSTEP_WAIT_FOREVER));
        expect_tied(rank, &tied, 7, 7, 1);
        if (i < 2)
            expect_others(rank, &tied);
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, 1);
        expect_others(rank, &tied);
    }
    tied_free(&tied);
}

static void case_38_shared_gradients_are_waited_for(const struct setting *setting)
{
    tied_run(setting, tied_wait_body);
}

// ---- Some report it ----------------------------------------------------------------------------

static uint64_t users(uint32_t world_size, uint64_t step, uint64_t every)
{
    uint64_t bits = 0;
    for (uint32_t r = 0; r < world_size; r++)
        bits |= (uint64_t)((r + step) % every == 0) << r;
    return step % 4 == 0 ? 0 : bits;
}

static uint64_t count_without(uint32_t world_size, uint64_t bits)
{
    uint64_t count = 0;
    for (uint32_t r = 0; r < world_size; r++)
        count += (bits >> r & 1) == 0;
    return count;
}

// Checks the usage of the tied parameter: in both modules it counts the ranks that reported the
// parameter in any module.
static void expect_usage(struct rank *rank, struct tied *tied, uint64_t users_of_any)
{
    uint32_t owned[OWNED];
    uint32_t sharing[SHARING];
    const uint64_t used = rank->world_size - count_without(rank->world_size, users_of_any);
    RANK_OK(rank, lockstep_module_usage(tied->encoder.module, owned, OWNED));
    RANK_OK(rank, lockstep_module_usage(tied->decoder.module, sharing, SHARING));
    RANK_EQUAL(rank, owned[TIED], used);
    RANK_EQUAL(rank, sharing[SHARED], used);
    RANK_EQUAL(rank, owned[0], rank->world_size);
}

// The tied parameter is used if any module has reported it. If no rank uses it, its gradient stays
// as it was.
static void some_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ACCEPT, 0, &tied);
    for (int i = 0; i < 8; i++) {
        trainer_begin(rank, NULL);
        const uint64_t step = atomic_load(&rank->step);
        const uint64_t by_encoder = users(rank->world_size, step, 2);
        const uint64_t by_decoder = users(rank->world_size, step, 3);
        const float *gradient = tied.encoder.gradients[TIED];
        tied_fill(rank, &tied);
        if ((by_encoder | by_decoder) == 0)
            memset(tied.encoder.gradients[TIED], 0x5a, owned_sizes[TIED] * sizeof(float));
        const float marker = gradient[0];
        decoder_call(rank, &tied, (by_decoder >> rank->rank & 1) != 0, 0);
        encoder_call(rank, &tied, (by_encoder >> rank->rank & 1) != 0);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).unused,
                   count_without(rank->world_size, by_encoder | by_decoder));
        expect_usage(rank, &tied, by_encoder | by_decoder);
        expect_others(rank, &tied);
        if ((by_encoder | by_decoder) != 0)
            expect_tied(rank, &tied, by_encoder, by_decoder, 1);
        else
            RANK_TRUE(rank, gradient[0] >= marker && gradient[0] <= marker);
    }
    tied_free(&tied);
}

static void case_13_shared_is_used_by_any_module(const struct setting *setting)
{
    tied_run(setting, some_body);
}

// The owner's policy reports an error if no module of a rank has reported the tied parameter. A
// declaration as unused in one of the two modules prevents the error.
static void policy_body(struct rank *rank)
{
    const uint32_t shared = SHARED;
    struct tied tied = {.ready_count = 0};
    lockstep_call *call;
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (int i = 0; i < 6; i++) {
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        encoder_call(rank, &tied, rank->rank > 0);
        if (i % 2 == 0 || rank->rank > 0) {
            decoder_call(rank, &tied, rank->rank > 0, 0);
        } else {
            RANK_OK(rank, lockstep_call_begin(tied.decoder.module, &call));
            RANK_OK(rank, lockstep_call_unused(call, &shared, 1));
            RANK_OK(rank, lockstep_grad_ready(tied.decoder.module, call, 2, NULL, NULL));
            RANK_OK(rank, lockstep_grad_ready(tied.decoder.module, call, 0, NULL, NULL));
            RANK_OK(rank, lockstep_call_end(call));
        }
        RANK_STATUS(rank, i % 2 == 0 ? LOCKSTEP_E_UNUSED : LOCKSTEP_OK,
                    lockstep_step_end(rank->session, NULL));
        if (i % 2 == 0)
            RANK_SAYS(rank, ": 1 gradient was not produced by the backward pass:"
                            "\n  module 'encoder' parameter 'p2' on rank 0");
        expect_tied(rank, &tied, 6, 6, 1);
        expect_others(rank, &tied);
    }
    tied_free(&tied);
}

static void case_14_the_owners_policy(const struct setting *setting)
{
    tied_run(setting, policy_body);
}

// ---- Modules that are not called ---------------------------------------------------------------

// Runs a step of a phase in which only the decoder is called, only the encoder is called, or the
// encoder is called on rank 0 only. With the decoder alone, only the tied parameter of the encoder
// has a gradient, which is no error.
static void alone_step(struct rank *rank, struct tied *tied, const char *phase)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const bool encodes = phase[0] == 'e' || (phase[0] == 'm' && rank->rank == 0);
    options.phase = phase;
    trainer_begin(rank, &options);
    tied_fill(rank, tied);
    const float before = *(const float *)tied->encoder.gradients[3];
    if (phase[0] != 'e')
        decoder_call(rank, tied, true, 0);
    if (encodes)
        encoder_call(rank, tied, true);
    trainer_end(rank);
    RANK_EQUAL(rank, trainer_report(rank).unused, 0);
    expect_tied(rank, tied,
                phase[0] == 'e'   ? 7
                : phase[0] == 'm' ? 1
                                  : 0,
                phase[0] == 'e' ? 0 : 7, 1);
    if (phase[0] == 'd')
        RANK_TRUE(rank, *(const float *)tied->encoder.gradients[3] >= before &&
                            *(const float *)tied->encoder.gradients[3] <= before);
}

static void alone_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (int i = 0; i < 3; i++) {
        alone_step(rank, &tied, "decoder");
        alone_step(rank, &tied, "mixed");
        alone_step(rank, &tied, "encoder");
    }
    tied_free(&tied);
}

// The plan of a phase has the encoder's bucket even if the decoder did not use the tied parameter
// in the learning step.
static void later_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    options.phase = "decoder";
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, &options);
        tied_fill(rank, &tied);
        decoder_call(rank, &tied, i > 0, 0);
        trainer_end(rank);
        if (i > 0)
            expect_tied(rank, &tied, 0, 7, 1);
    }
    tied_free(&tied);
}

static void case_12_shared_is_used_later(const struct setting *setting)
{
    tied_run(setting, later_body);
}

static void case_40_shared_and_one_module_called(const struct setting *setting)
{
    tied_run(setting, alone_body);
}

// ---- Several calls, several reports, windows ---------------------------------------------------

// The decoder makes one or two of two expected passes, and then the encoder makes its pass. The
// gradients of all passes are added.
static void passes_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 2, &tied);
    for (int i = 0; i < 6; i++) {
        const uint64_t passes = 1 + (uint64_t)i % 2;
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        decoder_call(rank, &tied, true, 0);
        if (passes == 2)
            decoder_call(rank, &tied, true, 1);
        encoder_call(rank, &tied, true);
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, passes);
        expect_others(rank, &tied);
    }
    tied_free(&tied);
}

static void case_20_shared_over_several_calls(const struct setting *setting)
{
    tied_run(setting, passes_body);
}

static void window_body(struct rank *rank)
{
    static const struct lockstep_step_options accumulating = {
        .struct_bytes = sizeof(accumulating), .weight = 1, .accumulate = 1};
    struct tied tied = {.ready_count = 2};
    lockstep_call *call;
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (uint64_t step = 1; step <= 4; step++) {
        atomic_store(&rank->step, step);
        tied_fill(rank, &tied);
        RANK_OK(rank, lockstep_step_begin(rank->session, &accumulating, NULL));
        decoder_call(rank, &tied, true, 0); // The first of two reports.
        RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        trainer_begin(rank, NULL);
        encoder_call(rank, &tied, true);
        RANK_OK(rank, lockstep_call_begin(tied.decoder.module, &call));
        RANK_OK(rank, lockstep_grad_ready(tied.decoder.module, call, SHARED, NULL, NULL));
        tied_add(rank, &tied, &tied.decoder, SHARED, 1);
        RANK_OK(rank, lockstep_grad_ready(tied.decoder.module, call, SHARED, NULL, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, 2);
        expect_others(rank, &tied);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
    }
    tied_free(&tied);
}

static void case_21_shared_in_a_window(const struct setting *setting)
{
    tied_run(setting, window_body);
}

// ---- Given up ----------------------------------------------------------------------------------

// Checks a step in which rank 1 aborted the decoder's call before its report of the tied parameter.
// The whole bucket with this parameter counts on the other ranks only.
static void expect_without_1(struct rank *rank, const struct tied *tied, const bool *left_out)
{
    const uint64_t weights[] = {1, 0, 1};
    for (uint32_t p = 0; p < OWNED; p++) {
        if (p != TIED)
            trainer_expect_parameter(rank, &tied->encoder, atomic_load(&rank->step), p,
                                     left_out[p] ? weights : NULL);
    }
    for (uint64_t i = 0; i < owned_sizes[TIED]; i++) {
        int64_t sum = 0;
        for (uint32_t r = 0; r < rank->world_size; r++)
            sum += r == 1 ? 0 : tied_sum(rank, tied, r, i, 7, 7, 1);
        const double wanted = (double)((float)sum / (float)(rank->world_size - 1));
        const double found = trainer_value(&tied->encoder, TIED, i);
        RANK_TRUE(rank, found >= wanted && found <= wanted);
    }
}

static void give_up(struct rank *rank, struct tied *tied)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(tied->decoder.module, &call));
    RANK_OK(rank, lockstep_grad_ready(tied->decoder.module, call, 2, NULL, NULL));
    RANK_OK(rank, lockstep_call_abort(call));
}

static void given_up_step(struct rank *rank, struct tied *tied, bool before)
{
    const struct lockstep_module *owner = tied->encoder.module;
    bool left_out[OWNED];
    trainer_begin(rank, NULL);
    tied_fill(rank, tied);
    for (uint32_t p = 0; p < OWNED; p++)
        left_out[p] = owner->bucket_of[p] == owner->bucket_of[TIED];
    if (rank->rank == 1 && before)
        give_up(rank, tied);
    encoder_call(rank, tied, true);
    if (rank->rank == 1 && !before)
        give_up(rank, tied);
    if (rank->rank != 1)
        decoder_call(rank, tied, true, 0);
    RANK_STATUS(rank, tied->on_abort == LOCKSTEP_ABORT_ACCEPT ? LOCKSTEP_OK : LOCKSTEP_E_UNUSED,
                lockstep_step_end(rank->session, NULL));
    if (tied->on_abort != LOCKSTEP_ABORT_ACCEPT)
        RANK_SAYS(rank, "\n  module 'decoder' on rank 1\n");
    RANK_EQUAL(rank, trainer_report(rank).aborted, 1);
    expect_without_1(rank, tied, left_out);
    trainer_digest(rank, &tied->encoder);
}

static void given_up_body(struct rank *rank)
{
    const lockstep_abort_policy *policy = rank->context;
    struct tied tied = {.on_abort = *policy};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (int i = 0; i < 4; i++) {
        given_up_step(rank, &tied, i % 2 == 0);
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        both_calls(rank, &tied, 0);
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, 1);
        expect_others(rank, &tied);
    }
    tied_free(&tied);
}

static void case_30_one_of_the_sharing_gives_up(const struct setting *setting)
{
    lockstep_abort_policy policies[] = {LOCKSTEP_ABORT_ERROR, LOCKSTEP_ABORT_ACCEPT};
    for (int i = 0; i < 2; i++) {
        const struct cluster_test test = {.setting = setting,
                                          .configure = tied_configure,
                                          .body = given_up_body,
                                          .context = &policies[i]};
        ranks_run_test(&test);
    }
}

// ---- Reported by two threads at once -----------------------------------------------------------

struct reporter {
    struct thread thread;
    lockstep_module *module;
    uint32_t count;
    atomic_uint refused;
};

static void reporter_run(void *argument)
{
    struct reporter *reporter = argument;
    for (uint32_t p = 0; p < reporter->count; p++) {
        if (lockstep_grad_ready(reporter->module, NULL, p, NULL, NULL) != 0)
            atomic_fetch_add(&reporter->refused, 1);
    }
}

static void threads_step(struct rank *rank, struct tied *tied)
{
    struct reporter reporters[2] = {{.module = tied->encoder.module, .count = OWNED},
                                    {.module = tied->decoder.module, .count = SHARING}};
    lockstep_call *calls[2];
    trainer_begin(rank, NULL);
    tied_fill(rank, tied);
    tied_add(rank, tied, &tied->encoder, TIED, 0);
    tied_add(rank, tied, &tied->decoder, SHARED, 0);
    for (int i = 0; i < 2; i++)
        RANK_OK(rank, lockstep_call_begin(reporters[i].module, &calls[i]));
    for (int i = 0; i < 2; i++)
        RANK_EQUAL(rank,
                   thread_start(&reporters[i].thread, "reporter", reporter_run, &reporters[i]), 0);
    for (int i = 0; i < 2; i++) {
        thread_join(&reporters[i].thread);
        RANK_EQUAL(rank, atomic_load(&reporters[i].refused), 0);
        RANK_OK(rank, lockstep_call_end(calls[i]));
    }
    trainer_end(rank);
    expect_tied(rank, tied, 7, 7, 1);
    expect_others(rank, tied);
}

static void threads_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (int i = 0; i < 20; i++)
        threads_step(rank, &tied);
    tied_free(&tied);
}

static void case_19_shared_from_two_threads(const struct setting *setting)
{
    tied_run(setting, threads_body);
}

// ---- Values ------------------------------------------------------------------------------------

// The tied value is broadcast and hashed once: six tensors are compared, not seven.
static void values_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    float *value;
    tied_make(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    value = tied.encoder.data[TIED];
    value[7] = (float)(1 + rank->rank);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_EQUAL(rank, value[7], 1);
    RANK_OK(rank, lockstep_state_check(rank->session));
    value[7] += (float)rank->rank;
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_state_check(rank->session));
    RANK_SAYS(rank, "1 of 6 tensors differ from those of rank 0:"
                    "\n  module 'encoder' parameter 'p2'");
    tied_free(&tied);
}

static void shared_values_are_the_owners(const struct setting *setting)
{
    tied_run(setting, values_body);
}

// Rank 1 ties another parameter of equal shape.
static void owners_differ_body(struct rank *rank)
{
    static const uint64_t equal[] = {300, 300};
    const struct module_shape encoder = {.name = "encoder", .count = 2, .elements = equal};
    const struct module_shape decoder = {
        .name = "decoder", .count = SHARING, .elements = sharing_sizes, .configure = tie};
    struct tied tied = {.ready_count = 0};
    trainer_make(rank, &encoder, 0, &tied.encoder);
    tied.encoder.data[TIED] = tied.encoder.data[rank->rank == 1 ? 0 : 1];
    trainer_make(rank, &decoder, 1, &tied.decoder);
    rank_meet(rank); // All sessions are open.
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "owner=module_0_parameter_1 on rank");
    RANK_SAYS(rank, "owner=module_0_parameter_0 on rank 1");
    tied_free(&tied);
}

static void shared_owners_differ(const struct setting *setting)
{
    tied_run(setting, owners_differ_body);
}

// ---- Modules that end, memory that moves -------------------------------------------------------

// The owner cannot be closed before the modules that share its parameter. Without the decoder, the
// encoder does not wait for its reports; after the decoder is registered again, the encoder does.
static void closed_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 0};
    const struct module_shape decoder = {
        .name = "decoder", .count = SHARING, .elements = sharing_sizes, .configure = tie};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (int i = 0; i < 2; i++) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_close(tied.encoder.module));
        RANK_SAYS(rank, "owns parameter 'p2', which module 'decoder' shares: close that one first");
        RANK_OK(rank, lockstep_module_close(tied.decoder.module));
        trainer_free(&tied.decoder);
        RANK_OK(rank, lockstep_start(rank->session));
        trainer_step_known(rank, &tied.encoder, 1);
        trainer_step_known(rank, &tied.encoder, 1);
        RANK_EQUAL(rank,
                   atomic_load(&tied.encoder.module->contributions[0].gradients[TIED].awaited), 0);
        RANK_OK(rank, lockstep_module_close(tied.encoder.module));
        trainer_free(&tied.encoder);
        tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        both_calls(rank, &tied, 0);
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, 1);
    }
    RANK_OK(rank, lockstep_module_close(tied.decoder.module));
    trainer_free(&tied.decoder);
    trainer_make(rank, &decoder, 1, &tied.decoder);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    tied_fill(rank, &tied);
    both_calls(rank, &tied, 2);
    trainer_end(rank);
    expect_tied(rank, &tied, 7, 7, 1);
    tied_free(&tied);
}

static void case_30_shared_modules_are_closed(const struct setting *setting)
{
    tied_run(setting, closed_body);
}

static void moved_body(struct rank *rank)
{
    float gradient[300];
    float data[300] = {0};
    struct tied tied = {.ready_count = 0};
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_parameter_move(tied.decoder.module, SHARED, NULL, gradient));
    RANK_SAYS(rank,
              "parameter 'p1' is shared: move parameter 'p2' of module 'encoder', which owns it");
    RANK_OK(rank, lockstep_parameter_move(tied.encoder.module, TIED, data, gradient));
    tied.encoder.gradients[TIED] = gradient;
    for (uint32_t i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        both_calls(rank, &tied, i);
        trainer_end(rank);
        expect_tied(rank, &tied, 7, 7, 1);
    }
    data[0] = (float)rank->rank;
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_state_check(rank->session));
    RANK_SAYS(rank, "1 of 6 tensors");
    tied_free(&tied);
}

static void case_09_shared_memory_moves(const struct setting *setting)
{
    tied_run(setting, moved_body);
}

// ---- What is refused ---------------------------------------------------------------------------

static struct lockstep_parameter refused_parameter(void)
{
    static const int64_t four[] = {4};
    static float values[4];
    static float gradients[4];
    return (struct lockstep_parameter){.name = "w",
                                       .dtype = LOCKSTEP_FLOAT32,
                                       .dims = 1,
                                       .shape = four,
                                       .data = values,
                                       .gradient = gradients};
}

struct refused {
    const char *part;
    void (*spoil)(struct lockstep_parameter *parameter, struct lockstep_module_config *config);
};

static void not_marked(struct lockstep_parameter *parameter, struct lockstep_module_config *config)
{
    (void)config;
    parameter->flags = 0;
}

static void other_dtype(struct lockstep_parameter *parameter, struct lockstep_module_config *config)
{
    (void)config;
    parameter->dtype = LOCKSTEP_BFLOAT16;
}

static void other_shape(struct lockstep_parameter *parameter, struct lockstep_module_config *config)
{
    static const int64_t two[] = {2, 2};
    (void)config;
    parameter->dims = 2;
    parameter->shape = two;
}

static void frozen_here(struct lockstep_parameter *parameter, struct lockstep_module_config *config)
{
    (void)config;
    parameter->flags |= LOCKSTEP_PARAMETER_FROZEN;
}

static void other_memory(struct lockstep_parameter *parameter,
                         struct lockstep_module_config *config)
{
    static float elsewhere[4];
    (void)config;
    parameter->gradient = elsewhere;
}

static void no_owner(struct lockstep_parameter *parameter, struct lockstep_module_config *config)
{
    static float elsewhere[4];
    (void)config;
    parameter->data = elsewhere;
}

static void separate_calls(struct lockstep_parameter *parameter,
                           struct lockstep_module_config *config)
{
    (void)parameter;
    config->separate_calls = 1;
}

static const struct refused refusals[] = {
    {"module 'second': parameter 'w' has the memory of parameter 'w' of module 'first': mark it "
     "LOCKSTEP_PARAMETER_SHARED",
     not_marked},
    {"its dtype is not that of its owner, parameter 'w' of module 'first'", other_dtype},
    {"its shape is not that of its owner", other_shape},
    {"its flag LOCKSTEP_PARAMETER_FROZEN is not that of its owner", frozen_here},
    {"its gradient memory is not that of its owner", other_memory},
    {"parameter 'w' is shared, and no earlier parameter has its memory", no_owner},
    {"neither may have separate_calls or replicas", separate_calls},
};

// After a refused registration the module can be registered correctly.
static void refused_body(struct rank *rank)
{
    struct lockstep_parameter parameter = refused_parameter();
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    config.parameters = &parameter;
    config.parameter_count = 1;
    config.name = "first";
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    config.name = "second";
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct lockstep_module_config spoilt = config;
        parameter = refused_parameter();
        parameter.flags = LOCKSTEP_PARAMETER_SHARED;
        refusals[i].spoil(&parameter, &spoilt);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_register(rank->session, &spoilt, &module));
        RANK_SAYS(rank, refusals[i].part);
    }
    parameter = refused_parameter();
    parameter.flags = LOCKSTEP_PARAMETER_SHARED;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    config.name = "third"; // Three modules share the parameter.
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
}

// If the owner freezes the tied parameter, it is frozen in all modules and no report is missing.
// After it is unfrozen, it travels again.
static void frozen_body(struct rank *rank)
{
    const uint32_t owned = TIED;
    const uint32_t shared = SHARED;
    struct tied tied = {.ready_count = 0};
    lockstep_call *call;
    tied_start(rank, LOCKSTEP_UNUSED_ERROR, 0, &tied);
    for (uint32_t i = 0; i < 6; i++) {
        const bool frozen = i % 2 == 1;
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_freeze(tied.decoder.module, &shared, 1, frozen));
        RANK_SAYS(rank, "is shared: say it of parameter 'p2' of module 'encoder', which owns it");
        RANK_OK(rank, lockstep_module_freeze(tied.encoder.module, &owned, 1, frozen));
        trainer_begin(rank, NULL);
        tied_fill(rank, &tied);
        encoder_call(rank, &tied, !frozen);
        decoder_call(rank, &tied, !frozen, 0);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).learning, i < 2);
        expect_others(rank, &tied);
        if (!frozen)
            expect_tied(rank, &tied, 7, 7, 1);
        for (uint64_t e = 0; frozen && e < owned_sizes[TIED]; e++)
            RANK_EQUAL(rank, trainer_value(&tied.encoder, TIED, e), 0);
    }
    RANK_OK(rank, lockstep_module_freeze(tied.encoder.module, &owned, 1, 1));
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(tied.decoder.module, &call));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(tied.decoder.module, call, SHARED, NULL, NULL));
    RANK_SAYS(rank, "is frozen and has no gradient");
    for (uint32_t p = 0; p < SHARING; p++) {
        if (p != SHARED)
            RANK_OK(rank, lockstep_grad_ready(tied.decoder.module, call, p, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
    encoder_call(rank, &tied, false);
    trainer_end(rank);
    tied_free(&tied);
}

static void case_34_shared_is_frozen_with_its_owner(const struct setting *setting)
{
    tied_run(setting, frozen_body);
}

static void shared_is_refused_by_name(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = refused_body, .without_session = true};
    ranks_run_test(&test);
}

int main(void)
{
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"shared_gradients_travel_once", shared_gradients_travel_once, NULL},
        {"shared_gradients_wait", shared_gradients_wait, NULL},
        {"case_38_shared_gradients_are_waited_for", case_38_shared_gradients_are_waited_for, NULL},
        {"case_13_shared_is_used_by_any_module", case_13_shared_is_used_by_any_module, NULL},
        {"case_14_the_owners_policy", case_14_the_owners_policy, NULL},
        {"case_40_shared_and_one_module_called", case_40_shared_and_one_module_called, NULL},
        {"case_12_shared_is_used_later", case_12_shared_is_used_later, NULL},
        {"case_20_shared_over_several_calls", case_20_shared_over_several_calls, NULL},
        {"case_21_shared_in_a_window", case_21_shared_in_a_window, NULL},
        {"case_30_one_of_the_sharing_gives_up", case_30_one_of_the_sharing_gives_up, NULL},
        {"case_19_shared_from_two_threads", case_19_shared_from_two_threads, NULL},
        {"case_30_shared_modules_are_closed", case_30_shared_modules_are_closed, NULL},
        {"case_09_shared_memory_moves", case_09_shared_memory_moves, NULL},
        {"shared_values_are_the_owners", shared_values_are_the_owners, NULL},
        {"shared_owners_differ", shared_owners_differ, NULL},
        {"case_34_shared_is_frozen_with_its_owner", case_34_shared_is_frozen_with_its_owner, NULL},
        {"shared_is_refused_by_name", shared_is_refused_by_name, one},
    };
    return stamp_run("reducer: shared", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
