// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the finished buckets of a call, handed out one by one (lockstep_call_next). Case
// numbers are those of the list of cases for reducers.

#include "base/thread.h"
#include "tests/support/trainer.h"

#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define COUNT 6

static const uint64_t sizes[COUNT] = {40, 300, 1, 77, 0, 50};

// Small caps, so that each call has several buckets.
static void small_buckets(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static void next_run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {.setting = setting, .configure = small_buckets, .body = body};
    ranks_run_test(&test);
}

static void make(struct rank *rank, const char *name, uint32_t index, struct trained_module *module)
{
    const struct module_shape shape = {.name = name, .count = COUNT, .elements = sizes};
    trainer_make(rank, &shape, index, module);
}

static int try_call(struct rank *rank, struct trained_module *module, lockstep_call **call)
{
    int status = RANK_CALL(rank, lockstep_call_begin(module->module, call));
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    for (uint32_t i = 0; i < COUNT && status == 0; i++)
        status = RANK_CALL(
            rank, lockstep_grad_ready(module->module, *call, module->order[i], NULL, NULL));
    return status < 0 ? status : RANK_CALL(rank, lockstep_call_end(*call));
}

static lockstep_call *make_call(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    RANK_EQUAL(rank, try_call(rank, module, &call), 0);
    return call;
}

// Checks the gradients of a bucket, then changes them, as an optimizer may do. Adds the bits of its
// parameters to *seen.
static void use_bucket(struct rank *rank, const struct trained_module *module, uint32_t bucket,
                       uint64_t *seen)
{
    const uint32_t *parameters;
    uint32_t count;
    RANK_OK(rank, lockstep_bucket_parameters(module->module, bucket, &parameters, &count));
    RANK_TRUE(rank, count > 0);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t p = parameters[i];
        RANK_TRUE(rank, p < COUNT && (*seen >> p & 1) == 0);
        *seen |= UINT64_C(1) << p;
        trainer_expect_parameter(rank, module, atomic_load(&rank->step), p, NULL);
        memset(module->gradients[p], 0, sizes[p] * sizeof(float));
    }
}

// Takes all buckets of a call. Returns how many there were.
static uint32_t take_all(struct rank *rank, const struct trained_module *module,
                         lockstep_call *call, uint64_t *seen)
{
    uint32_t buckets = 0;
    uint32_t bucket = UINT32_MAX;
    int status = RANK_CALL(rank, lockstep_call_next(call, FOREVER, &bucket));
    for (; status == 0; buckets++) {
        use_bucket(rank, module, bucket, seen);
        bucket = UINT32_MAX;
        status = RANK_CALL(rank, lockstep_call_next(call, FOREVER, &bucket));
    }
    RANK_EQUAL(rank, status, LOCKSTEP_FINISHED);
    RANK_EQUAL(rank, bucket, UINT32_MAX);
    RANK_EQUAL(rank, RANK_CALL(rank, lockstep_call_next(call, 0, &bucket)), LOCKSTEP_FINISHED);
    return buckets;
}

static void expect_zeros(struct rank *rank, const struct trained_module *module)
{
    for (uint32_t p = 0; p < COUNT; p++) {
        for (uint64_t e = 0; e < sizes[p]; e++)
            RANK_EQUAL(rank, (int64_t)trainer_value(module, p, e), 0);
    }
}

// Every bucket comes once, with its means, and the step keeps what the trainer writes then.
static void each_once_body(struct rank *rank)
{
    struct trained_module modules[2];
    make(rank, "actor", 0, &modules[0]);
    make(rank, "critic", 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 5; i++) {
        lockstep_call *calls[2];
        uint32_t buckets = 0;
        trainer_begin(rank, NULL);
        for (uint32_t m = 0; m < 2; m++)
            calls[m] = make_call(rank, &modules[m]);
        for (uint32_t m = 0; m < 2; m++) {
            uint64_t seen = 0;
            if (i == 3)
                RANK_OK(rank, lockstep_call_wait(calls[m], FOREVER));
            buckets += take_all(rank, &modules[m], calls[m], &seen);
            RANK_EQUAL(rank, seen, (UINT64_C(1) << COUNT) - 1);
            if (i == 4)
                RANK_OK(rank, lockstep_call_wait(calls[m], FOREVER));
        }
        trainer_end(rank);
        if (rank->world_size > 1)
            RANK_EQUAL(rank, trainer_report(rank).buckets, buckets);
        RANK_TRUE(rank, buckets >= 6);
        for (uint32_t m = 0; m < 2; m++)
            expect_zeros(rank, &modules[m]);
    }
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_51_each_bucket_once(const struct setting *setting)
{
    next_run(setting, each_once_body);
}

// Rank 1 reports only the first bucket. The other ranks take it before rank 1 reports the rest.
static void beside_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, "net", 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    trainer_step_known(rank, &module, 1);
    for (int i = 0; i < 3; i++) {
        lockstep_call *call;
        const uint32_t *parameters;
        uint64_t seen = 0;
        uint32_t bucket = 0;
        uint32_t count;
        trainer_begin(rank, NULL);
        RANK_OK(rank, lockstep_bucket_parameters(module.module, 0, &parameters, &count));
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t k = 0; k < count; k++) {
            seen |= UINT64_C(1) << parameters[k];
            RANK_OK(rank, lockstep_grad_ready(module.module, call, parameters[k], NULL, NULL));
        }
        if (rank->rank == 1)
            rank_meet(rank);
        for (uint32_t p = 0; p < COUNT; p++) {
            if ((seen >> p & 1) == 0)
                RANK_OK(rank, lockstep_grad_ready(module.module, call, p, NULL, NULL));
        }
        RANK_OK(rank, lockstep_call_end(call));
        seen = 0;
        if (rank->rank != 1) {
            RANK_OK(rank, lockstep_call_next(call, FOREVER, &bucket));
            RANK_EQUAL(rank, bucket, 0);
            use_bucket(rank, &module, bucket, &seen);
            RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_call_next(call, 0, &bucket));
            RANK_SAYS(rank, "has no further bucket that is averaged");
            RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_call_next(call, 5, &bucket));
            rank_meet(rank);
        }
        (void)take_all(rank, &module, call, &seen);
        RANK_EQUAL(rank, seen, (UINT64_C(1) << COUNT) - 1);
        trainer_end(rank);
        expect_zeros(rank, &module);
    }
    trainer_free(&module);
}

static void case_51_beside_the_wire(const struct setting *setting)
{
    next_run(setting, beside_body);
}

// Takes the buckets of two calls, on odd ranks in the other order. Returns the first failure.
// taken: for each module, the buckets that came before LOCKSTEP_DEFERRED, or UINT32_MAX after
// LOCKSTEP_FINISHED.
static int opposite_step(struct rank *rank, struct trained_module *modules, uint32_t *taken)
{
    int status = RANK_CALL(rank, lockstep_step_begin(rank->session, NULL, NULL));
    for (uint32_t i = 0; i < 2 && status == 0; i++) {
        const uint32_t m = (i + rank->rank) % 2;
        lockstep_call *call;
        uint32_t bucket;
        status = try_call(rank, &modules[m], &call);
        for (taken[m] = 0; status == 0; taken[m]++)
            status = RANK_CALL(rank, lockstep_call_next(call, FOREVER, &bucket));
        taken[m] = status == LOCKSTEP_FINISHED ? UINT32_MAX : taken[m] - 1;
        if (status == LOCKSTEP_FINISHED || status == LOCKSTEP_DEFERRED)
            status = 0;
    }
    return status < 0 ? status : RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
}

static void opposite_body(struct rank *rank)
{
    struct trained_module modules[2];
    uint32_t taken[2];
    make(rank, "actor", 0, &modules[0]);
    make(rank, "critic", 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 2);
    trainer_step_known(rank, modules, 2);
    rank_meet(rank);
    RANK_EQUAL(rank, opposite_step(rank, modules, taken), LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "waits for 'actor' (call 1) and has not made 'critic' (call 1)");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_51_opposite_orders(const struct setting *setting)
{
    next_run(setting, opposite_body);
}

static void zero_defer(struct rank *rank, struct lockstep_config *config)
{
    small_buckets(rank, config);
    config->order = LOCKSTEP_ORDER_ZERO_DEFER;
}

// With LOCKSTEP_ORDER_ZERO_DEFER all ranks end all steps, and hold the same gradients. The plan has
// the actor first, so odd ranks give it up. No bucket of a call that counts later is handed out.
static void deferred_body(struct rank *rank)
{
    struct trained_module modules[2];
    uint32_t taken[2];
    make(rank, "actor", 0, &modules[0]);
    make(rank, "critic", 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 2);
    for (int i = 0; i < 4; i++) {
        RANK_EQUAL(rank, opposite_step(rank, modules, taken), 0);
        RANK_EQUAL(rank, taken[0], rank->rank % 2 == 0 ? UINT32_MAX : 0);
        RANK_EQUAL(rank, taken[1], UINT32_MAX);
        trainer_digest(rank, &modules[0]);
        trainer_digest(rank, &modules[1]);
    }
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_51_deferred(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = zero_defer, .body = deferred_body};
    ranks_run_test(&test);
}

// Ranks are threads, and each needs parameters of its own.
static void replicas_configure(struct trained_module *module, struct lockstep_module_config *config)
{
    static _Thread_local struct lockstep_parameter both[2];
    static _Thread_local float gradient[2][40];
    both[0] = both[1] = module->parameters[0];
    both[0].gradient = gradient[0];
    both[1].gradient = gradient[1];
    config->parameters = both;
    config->parameter_count = 1;
    config->replicas = 2;
}

static void misuse_body(struct rank *rank)
{
    const struct module_shape twice = {
        .name = "twice", .count = 1, .elements = sizes, .configure = replicas_configure};
    struct trained_module modules[2];
    const uint32_t *parameters;
    lockstep_call *call;
    uint32_t count;
    uint32_t bucket;
    make(rank, "net", 0, &modules[0]);
    trainer_make(rank, &twice, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_bucket_parameters(modules[0].module, 0, &parameters, &count));
    RANK_SAYS(rank, "buckets are those of an open step");
    trainer_begin(rank, NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_bucket_parameters(modules[0].module, 99, &parameters, &count));
    RANK_SAYS(rank, "99 is none of their numbers");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_bucket_parameters(modules[0].module, 0, NULL, &count));
    RANK_OK(rank, lockstep_call_begin(modules[0].module, &call));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_next(call, 0, &bucket));
    RANK_SAYS(rank, "its call is open");
    RANK_OK(rank, lockstep_call_abort(call));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_next(call, 0, &bucket));
    RANK_SAYS(rank, "given up");
    RANK_OK(rank, lockstep_call_begin(modules[1].module, &call));
    RANK_OK(rank, lockstep_call_end(call));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_next(call, 0, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED, lockstep_call_next(call, 0, &bucket));
    RANK_SAYS(rank, "has replicas");
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_51_misuse(const struct setting *setting)
{
    ranks_run(setting, misuse_body, NULL);
}

static void alone_configured(struct rank *rank)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    small_buckets(rank, &config);
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    each_once_body(rank);
}

static void case_51_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_configured, .without_session = true};
    ranks_run_test(&test);
}

// ---- Several threads ---------------------------------------------------------------------------

#define TAKERS 3
#define TAKEN_MAX 16

struct taker {
    struct thread thread;
    lockstep_call *call;
    uint32_t timeout_ms;
    uint32_t buckets[TAKEN_MAX]; // [count], taken by this thread.
    uint32_t count;
    int status; // Result of the last call, which gave no bucket.
    char text[512];
};

static void takers_configure(struct rank *rank, struct lockstep_config *config)
{
    small_buckets(rank, config);
    config->trainer_threads = TAKERS;
}

static void taker_run(void *argument)
{
    struct taker *taker = argument;
    uint32_t bucket;
    while (taker->count < TAKEN_MAX) {
        taker->status = lockstep_call_next(taker->call, taker->timeout_ms, &bucket);
        if (taker->status != 0)
            break;
        taker->buckets[taker->count++] = bucket;
    }
    if (taker->status < 0)
        snprintf(taker->text, sizeof(taker->text), "%s", lockstep_error_text());
}

// Several threads take the buckets of one call. A thread that comes too late for a bucket waits for
// the next one.
static void takers_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, "net", 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 50; i++) {
        struct taker takers[TAKERS];
        uint64_t seen = 0;
        trainer_begin(rank, NULL);
        lockstep_call *call = make_call(rank, &module);
        for (uint32_t t = 0; t < TAKERS; t++) {
            takers[t] = (struct taker){.call = call, .timeout_ms = t == 0 ? 600000 : FOREVER};
            RANK_EQUAL(rank, thread_start(&takers[t].thread, "taker", taker_run, &takers[t]), 0);
        }
        for (uint32_t t = 0; t < TAKERS; t++)
            thread_join(&takers[t].thread);
        for (uint32_t t = 0; t < TAKERS; t++) {
            if (takers[t].status != LOCKSTEP_FINISHED)
                rank_fail(rank, __FILE__, __LINE__, "status %d: %s", takers[t].status,
                          takers[t].text);
            for (uint32_t b = 0; b < takers[t].count; b++)
                use_bucket(rank, &module, takers[t].buckets[b], &seen);
        }
        RANK_EQUAL(rank, seen, (UINT64_C(1) << COUNT) - 1);
        trainer_end(rank);
        expect_zeros(rank, &module);
    }
    trainer_free(&module);
}

static void case_51_threads_take(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = takers_configure, .body = takers_body};
    ranks_run_test(&test);
}

static const uint32_t worlds[] = {1, 2, 3, 5, 0};
static const uint32_t more[] = {2, 3, 0};
static const uint32_t one[] = {1, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_51_each_bucket_once", case_51_each_bucket_once, worlds},
        {"case_51_beside_the_wire", case_51_beside_the_wire, more},
        {"case_51_opposite_orders", case_51_opposite_orders, more},
        {"case_51_deferred", case_51_deferred, more},
        {"case_51_misuse", case_51_misuse, NULL},
        {"case_51_alone", case_51_alone, one},
        {"case_51_threads_take", case_51_threads_take, worlds},
    };
    return stamp_run("reducer: next bucket", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
