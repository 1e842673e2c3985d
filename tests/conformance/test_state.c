// SPDX-License-Identifier: Apache-2.0
//
// Conformance: state other than gradients. The tests cover the root, whose values all ranks begin
// with; buffers, which are exchanged in steps; ignored tensors; and tensors whose memory is not in
// the order of their dimensions. Case numbers are those of the list of cases for reducers.
// test_start.c tests what all ranks have to declare alike.

#include "base/mutex.h"
#include "tests/support/listener.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h" // For the number of collectives of buffers.

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void last_is_root(struct rank *rank, struct lockstep_config *config)
{
    config->root = rank->world_size - 1;
}

static void run_with_root(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {.setting = setting, .configure = last_is_root, .body = body};
    ranks_run_test(&test);
}

// ---- Buffers with known numbers ----------------------------------------------------------------

struct buffer_spec {
    lockstep_dtype dtype;
    lockstep_buffer_policy policy;
    uint64_t every;
    int64_t elements;
};

// Several buffers in each group, with different intervals; one is empty.
static const struct buffer_spec specs[] = {
    {LOCKSTEP_FLOAT32, LOCKSTEP_BUFFER_MEAN, 0, 5},
    {LOCKSTEP_INT64, LOCKSTEP_BUFFER_SUM, 0, 1},
    {LOCKSTEP_FLOAT32, LOCKSTEP_BUFFER_MEAN, 2, 130},
    {LOCKSTEP_FLOAT32, LOCKSTEP_BUFFER_SUM, 3, 7},
    {LOCKSTEP_FLOAT16, LOCKSTEP_BUFFER_BROADCAST, 0, 9},
    {LOCKSTEP_FLOAT32, LOCKSTEP_BUFFER_MEAN, 0, 0},
    {LOCKSTEP_FLOAT64, LOCKSTEP_BUFFER_MEAN, 5, 33},
    {LOCKSTEP_UINT8, LOCKSTEP_BUFFER_BROADCAST, 2, 17},
    {LOCKSTEP_FLOAT32, LOCKSTEP_BUFFER_MEAN, 1, 700},
    {LOCKSTEP_UINT8, LOCKSTEP_BUFFER_SUM, 4, 3},
    {LOCKSTEP_INT32, LOCKSTEP_BUFFER_AT_START, 0, 6},
    {LOCKSTEP_INT32, LOCKSTEP_BUFFER_SUM, 2, 3},
    {LOCKSTEP_INT64, LOCKSTEP_BUFFER_BROADCAST, 3, 4},
    {LOCKSTEP_INT8, LOCKSTEP_BUFFER_SUM, 2, 70},
    {LOCKSTEP_UINT16, LOCKSTEP_BUFFER_SUM, 0, 5},
    {LOCKSTEP_UINT64, LOCKSTEP_BUFFER_SUM, 1, 9},
    {LOCKSTEP_BOOL, LOCKSTEP_BUFFER_BROADCAST, 0, 33},
    {LOCKSTEP_INT16, LOCKSTEP_BUFFER_BROADCAST, 5, 6},
    {LOCKSTEP_UINT32, LOCKSTEP_BUFFER_AT_START, 0, 2},
    {LOCKSTEP_FLOAT64, LOCKSTEP_BUFFER_IGNORE, 0, 3},
};
#define SPECS (sizeof(specs) / sizeof(specs[0]))

struct buffered {
    char names[SPECS][8];
    struct lockstep_buffer buffers[SPECS];
    void *data[SPECS];
    float value[4];
    float gradient[4];
    lockstep_module *module;
};

static const int64_t four[] = {4};

static const size_t dtype_bytes[] = {0, 4, 8, 4, 8, 2, 2, 1, 1, 2, 2, 4, 8, 1};

static size_t spec_size(size_t b)
{
    return dtype_bytes[specs[b].dtype];
}

static size_t spec_bytes(size_t b)
{
    return (size_t)specs[b].elements * spec_size(b);
}

static void buffered_describe(struct buffered *state, size_t b)
{
    snprintf(state->names[b], sizeof(state->names[b]), "b%u", (unsigned)b % 1000);
    state->data[b] = calloc(1, spec_bytes(b) + 1);
    state->buffers[b] = (struct lockstep_buffer){.name = state->names[b],
                                                 .dtype = specs[b].dtype,
                                                 .dims = 1,
                                                 .shape = &specs[b].elements,
                                                 .data = state->data[b],
                                                 .policy = specs[b].policy,
                                                 .every = specs[b].every};
}

static void buffered_make(struct rank *rank, const char *name, struct buffered *state)
{
    const struct lockstep_parameter parameter = {.name = "weight",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = four,
                                                 .data = state->value,
                                                 .gradient = state->gradient};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    memset(state, 0, sizeof(*state));
    for (size_t b = 0; b < SPECS; b++)
        buffered_describe(state, b);
    config.name = name;
    config.parameters = &parameter;
    config.parameter_count = 1;
    config.buffers = state->buffers;
    config.buffer_count = SPECS;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &state->module));
}

static void buffered_free(struct buffered *state)
{
    for (size_t b = 0; b < SPECS; b++)
        free(state->data[b]);
}

// The known value of an element: small, so that sums over ranks are exact in every dtype.
static int64_t known(uint32_t rank, uint64_t step, size_t b, int64_t element)
{
    return (int64_t)((rank * 7 + step * 3 + b * 5 + (uint64_t)element) % 23) + 1;
}

static void put(size_t b, void *memory, int64_t i, double value)
{
    switch (specs[b].dtype) {
    case LOCKSTEP_FLOAT32:
        ((float *)memory)[i] = (float)value;
        break;
    case LOCKSTEP_FLOAT64:
        ((double *)memory)[i] = value;
        break;
    case LOCKSTEP_INT32:
        ((int32_t *)memory)[i] = (int32_t)value;
        break;
    case LOCKSTEP_INT64:
        ((int64_t *)memory)[i] = (int64_t)value;
        break;
    case LOCKSTEP_FLOAT16: // These dtypes are only broadcast, so any bits will do.
    case LOCKSTEP_BFLOAT16:
        ((uint16_t *)memory)[i] = (uint16_t)value;
        break;
    case LOCKSTEP_UINT8:
    case LOCKSTEP_INT8:
    case LOCKSTEP_BOOL:
        ((uint8_t *)memory)[i] = (uint8_t)value;
        break;
    case LOCKSTEP_INT16:
    case LOCKSTEP_UINT16:
        ((uint16_t *)memory)[i] = (uint16_t)value;
        break;
    case LOCKSTEP_UINT32:
        ((uint32_t *)memory)[i] = (uint32_t)value;
        break;
    case LOCKSTEP_UINT64:
        ((uint64_t *)memory)[i] = (uint64_t)value;
        break;
    }
}

static void buffered_fill(struct rank *rank, struct buffered *state, uint64_t step)
{
    for (size_t b = 0; b < SPECS; b++) {
        for (int64_t i = 0; i < specs[b].elements; i++)
            put(b, state->data[b], i, (double)known(rank->rank, step, b, i));
    }
}

// The expected value of an element after its buffer was exchanged, from the known values of all
// ranks.
static double exchanged(const struct rank *rank, uint64_t step, size_t b, int64_t i)
{
    int64_t sum = 0;
    if (specs[b].policy == LOCKSTEP_BUFFER_BROADCAST)
        return (double)known(rank->world_size - 1, step, b, i);
    for (uint32_t r = 0; r < rank->world_size; r++)
        sum += known(r, step, b, i);
    if (specs[b].policy == LOCKSTEP_BUFFER_MEAN)
        return (double)sum / (double)rank->world_size;
    return (double)sum;
}

static bool repeats(size_t b)
{
    return specs[b].policy != LOCKSTEP_BUFFER_AT_START && specs[b].policy != LOCKSTEP_BUFFER_IGNORE;
}

// The buffers that a step exchanges: those due by the number of the step, all with an interval, or
// none.
enum due {
    DUE_BY_NUMBER,
    DUE_ALL,
    DUE_NONE
};

static void buffered_expect(struct rank *rank, const struct buffered *state, uint64_t step,
                            enum due due)
{
    uint8_t expected[8];
    for (size_t b = 0; b < SPECS; b++) {
        const uint64_t every = specs[b].every == 0 ? 1 : specs[b].every;
        const bool moved =
            repeats(b) && (due == DUE_ALL || (due == DUE_BY_NUMBER && step % every == 0));
        for (int64_t i = 0; i < specs[b].elements; i++) {
            put(b, expected, 0,
                moved ? exchanged(rank, step, b, i) : (double)known(rank->rank, step, b, i));
            if (memcmp((const char *)state->data[b] + (size_t)i * spec_size(b), expected,
                       spec_size(b)) != 0)
                rank_fail(rank, __FILE__, __LINE__, "step %" PRIu64 ": buffer %zu element %" PRId64,
                          step, b, i);
        }
        if (moved)
            rank_digest(rank, state->data[b], spec_bytes(b));
    }
}

static void buffered_call(struct rank *rank, struct buffered *state, bool used)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(state->module, &call));
    if (used)
        RANK_OK(rank, lockstep_grad_ready(state->module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
}

static uint64_t buffered_begin(struct rank *rank, struct buffered *state)
{
    trainer_begin(rank, NULL);
    buffered_fill(rank, state, atomic_load(&rank->step));
    return atomic_load(&rank->step);
}

static void buffered_step(struct rank *rank, struct buffered *state)
{
    const uint64_t step = buffered_begin(rank, state);
    buffered_call(rank, state, true);
    buffered_expect(rank, state, step, DUE_NONE);
    trainer_end(rank);
    buffered_expect(rank, state, step, DUE_BY_NUMBER);
}

// ---- Policies ----------------------------------------------------------------------------------

static void policies_body(struct rank *rank)
{
    struct buffered states[2];
    uint64_t step;
    buffered_make(rank, "net", &states[0]);
    buffered_make(rank, "other", &states[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 12; i++) {
        step = buffered_begin(rank, &states[0]);
        buffered_fill(rank, &states[1], step);
        buffered_call(rank, &states[i % 2], true);
        buffered_call(rank, &states[1 - i % 2], true);
        trainer_end(rank);
        buffered_expect(rank, &states[0], step, DUE_BY_NUMBER);
        buffered_expect(rank, &states[1], step, DUE_BY_NUMBER);
    }
    // One collective exchanges all due buffers of a policy and a dtype.
    RANK_EQUAL(rank, rank->session->buffers.group_count, 14);
    buffered_free(&states[0]);
    buffered_free(&states[1]);
}

static void buffers_follow_their_policies(const struct setting *setting)
{
    run_with_root(setting, policies_body);
}

// All ranks begin with the root's values, for any policy.
static void begin_body(struct rank *rank)
{
    struct buffered state;
    buffered_make(rank, "net", &state);
    buffered_fill(rank, &state, 0);
    RANK_OK(rank, lockstep_start(rank->session));
    for (size_t b = 0; b < SPECS; b++) {
        const uint32_t of =
            specs[b].policy == LOCKSTEP_BUFFER_IGNORE ? rank->rank : rank->world_size - 1;
        uint8_t expected[8];
        for (int64_t i = 0; i < specs[b].elements; i++) {
            put(b, expected, 0, (double)known(of, 0, b, i));
            RANK_TRUE(rank, memcmp((const char *)state.data[b] + (size_t)i * spec_size(b), expected,
                                   spec_size(b)) == 0);
        }
    }
    RANK_OK(rank, lockstep_state_check(rank->session));
    buffered_free(&state);
}

static void buffers_begin_as_the_root_has_them(const struct setting *setting)
{
    run_with_root(setting, begin_body);
}

// Accumulating steps exchange no buffers. A window has one step number.
static void windows_body(struct rank *rank)
{
    struct lockstep_step_options accumulate = LOCKSTEP_STEP_INIT;
    struct buffered state;
    uint64_t step = 0;
    accumulate.accumulate = 1;
    buffered_make(rank, "net", &state);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t window = 1; window <= 6; window++) {
        for (uint32_t i = 0; i < window % 3 + rank->rank; i++) { // Ranks have different lengths.
            trainer_begin(rank, &accumulate);
            step = atomic_load(&rank->step);
            buffered_fill(rank, &state, step);
            buffered_call(rank, &state, true);
            trainer_end(rank);
            buffered_expect(rank, &state, step, DUE_NONE);
        }
        buffered_step(rank, &state);
        RANK_EQUAL(rank, atomic_load(&rank->step), window);
    }
    buffered_free(&state);
}

static void buffers_wait_for_the_end_of_a_window(const struct setting *setting)
{
    run_with_root(setting, windows_body);
}

// Buffers are exchanged even if the trainer has the maximum number of collectives in flight.
static void crowded_body(struct rank *rank)
{
    struct buffered state;
    static const char *const names[] = {"even", "odd"};
    lockstep_work *works[LOCKSTEP_MAX_PLAIN];
    lockstep_work *one_more;
    int32_t values[LOCKSTEP_MAX_PLAIN];
    buffered_make(rank, "net", &state);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++) {
        values[i] = (int32_t)rank->rank;
        RANK_OK(rank, lockstep_allreduce_async(rank->session, names[i % 2], &values[i], 1,
                                               LOCKSTEP_INT32, LOCKSTEP_MAX, &works[i]));
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_barrier_async(rank->session, "even", &one_more));
    for (int i = 0; i < 4; i++)
        buffered_step(rank, &state);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++) {
        RANK_OK(rank, lockstep_work_wait(works[i], LOCKSTEP_WAIT_FOREVER));
        RANK_EQUAL(rank, values[i], rank->world_size - 1);
    }
    buffered_free(&state);
}

static void buffers_beside_many_collectives(const struct setting *setting)
{
    run_with_root(setting, crowded_body);
}

// A step that ends with an error about unused gradients still makes the buffers equal.
static void unused_body(struct rank *rank)
{
    struct buffered state;
    uint64_t step;
    buffered_make(rank, "net", &state);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        step = buffered_begin(rank, &state);
        buffered_call(rank, &state, i % 2 == 1 || rank->rank != 0);
        if (i % 2 == 1)
            trainer_end(rank);
        else
            RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        buffered_expect(rank, &state, step, DUE_BY_NUMBER);
    }
    buffered_free(&state);
}

static void buffers_of_a_step_with_an_error(const struct setting *setting)
{
    run_with_root(setting, unused_body);
}

static void sync_body(struct rank *rank)
{
    struct buffered state;
    buffered_make(rank, "net", &state);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_state_sync(rank->session));
    RANK_SAYS(rank, "after lockstep_start");
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t i = 1; i <= 4; i++) {
        buffered_fill(rank, &state, 100 + i);
        RANK_OK(rank, lockstep_state_sync(rank->session));
        buffered_expect(rank, &state, 100 + i, DUE_ALL);
        buffered_step(rank, &state);
    }
    trainer_begin(rank, NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_state_sync(rank->session));
    RANK_SAYS(rank, "outside a step");
    trainer_end(rank);
    buffered_free(&state);
}

static void sync_makes_all_equal_now(const struct setting *setting)
{
    run_with_root(setting, sync_body);
}

// No rank returns from lockstep_state_sync before all ranks have called it, not even the root,
// which only sends.
static void sync_waits_body(struct rank *rank)
{
    atomic_uint *arrived = rank->context;
    float value = 1;
    const struct lockstep_buffer buffer = {.name = "b",
                                           .dtype = LOCKSTEP_FLOAT32,
                                           .data = &value,
                                           .policy = LOCKSTEP_BUFFER_BROADCAST};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = "net";
    config.buffers = &buffer;
    config.buffer_count = 1;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 1; i <= 20; i++) {
        atomic_fetch_add(arrived, 1);
        RANK_OK(rank, lockstep_state_sync(rank->session));
        RANK_TRUE(rank, atomic_load(arrived) >= i * rank->world_size);
    }
}

static void sync_waits_for_all(const struct setting *setting)
{
    atomic_uint arrived = 0;
    ranks_run(setting, sync_waits_body, &arrived);
}

// In a world of one rank a mean and a sum leave the buffers unchanged.
static void alone_body(struct rank *rank)
{
    struct buffered state;
    lockstep_session *const session = rank->session;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    buffered_make(rank, "net", &state);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 6; i++) {
        const uint64_t step = buffered_begin(rank, &state);
        buffered_call(rank, &state, true);
        trainer_end(rank);
        RANK_OK(rank, lockstep_state_sync(rank->session));
        buffered_expect(rank, &state, step, DUE_NONE);
    }
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = session;
    buffered_free(&state);
}

static void buffers_alone(const struct setting *setting)
{
    ranks_run(setting, alone_body, NULL);
}

// ---- Failures ----------------------------------------------------------------------------------

// A rank aborts while the other ranks exchange buffers. They get an error, and Lockstep no longer
// accesses their memory.
static void lost_body(struct rank *rank)
{
    struct buffered state;
    buffered_make(rank, "net", &state);
    RANK_OK(rank, lockstep_start(rank->session));
    buffered_step(rank, &state);
    buffered_begin(rank, &state);
    buffered_call(rank, &state, true);
    rank_meet(rank); // Otherwise the abort could fail earlier calls of the other ranks.
    if (rank->rank == 1) {
        RANK_OK(rank, lockstep_abort(rank->session, "no more data"));
        while (lockstep_step_end(rank->session, NULL) == LOCKSTEP_OK)
            ;
    } else {
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "no more data");
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_state_sync(rank->session));
    }
    buffered_free(&state);
}

static void buffers_of_a_lost_peer(const struct setting *setting)
{
    run_with_root(setting, lost_body);
}

// An unplanned call fails the session when the step is settled. The buffers are equal then, and
// Lockstep no longer accesses them.
static void unplanned_body(struct rank *rank)
{
    struct buffered states[2];
    uint64_t step;
    buffered_make(rank, "net", &states[0]);
    buffered_make(rank, "other", &states[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 2; i++) {
        step = buffered_begin(rank, &states[0]);
        buffered_fill(rank, &states[1], step);
        buffered_call(rank, &states[0], true);
        trainer_end(rank);
    }
    step = buffered_begin(rank, &states[0]);
    buffered_fill(rank, &states[1], step);
    buffered_call(rank, &states[0], true);
    if (rank->rank == 0)
        buffered_call(rank, &states[1], true);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "outside the plan of phase '': module 'other' (call 1)");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    buffered_expect(rank, &states[0], step, DUE_BY_NUMBER);
    buffered_expect(rank, &states[1], step, DUE_BY_NUMBER);
    buffered_free(&states[0]);
    buffered_free(&states[1]);
}

static void refuse_unplanned(struct rank *rank, struct lockstep_config *config)
{
    last_is_root(rank, config);
    config->unplanned = LOCKSTEP_UNPLANNED_FAIL;
}

static void buffers_of_a_step_outside_the_plan(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = refuse_unplanned, .body = unplanned_body};
    ranks_run_test(&test);
}

// ---- Case 35 -----------------------------------------------------------------------------------

#define EVALUATIONS 200

// Reads all buffers repeatedly, as a forward pass of an evaluation does.
static void evaluate(struct rank *rank, const atomic_uint *ending)
{
    uint64_t first;
    uint64_t again;
    RANK_OK(rank, lockstep_mark(rank->session, "evaluating"));
    RANK_OK(rank, lockstep_state_hash(rank->session, &first));
    for (int i = 0; i < EVALUATIONS || atomic_load(ending) < rank->world_size - 1; i++) {
        RANK_OK(rank, lockstep_state_hash(rank->session, &again));
        RANK_TRUE(rank, first == again);
    }
}

// Rank 0 evaluates after every step, while the other ranks have already passed their buffers of the
// next step. The buffers of rank 0 must not change meanwhile.
static void evaluation_body(struct rank *rank)
{
    atomic_uint *ending = rank->context;
    struct buffered state;
    buffered_make(rank, "net", &state);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 7; i++) {
        const uint64_t step = buffered_begin(rank, &state);
        buffered_call(rank, &state, true);
        if (rank->rank != 0)
            atomic_fetch_add(&ending[i], 1);
        trainer_end(rank);
        buffered_expect(rank, &state, step, DUE_BY_NUMBER);
        if (rank->rank == 0)
            evaluate(rank, &ending[i + 1 < 7 ? i + 1 : i]);
    }
    buffered_free(&state);
}

static void case_35_evaluation_on_one_rank(const struct setting *setting)
{
    atomic_uint ending[7] = {0};
    const struct cluster_test test = {
        .setting = setting, .configure = last_is_root, .body = evaluation_body, .context = ending};
    ranks_run_test(&test);
}

// ---- Case 32: the root -------------------------------------------------------------------------

#define MIXED 13

// Parameters and buffers of all dtypes in turn.
static void root_body(struct rank *rank)
{
    static const lockstep_dtype mixed[] = {
        LOCKSTEP_FLOAT32, LOCKSTEP_INT64,   LOCKSTEP_FLOAT64, LOCKSTEP_UINT8, LOCKSTEP_BFLOAT16,
        LOCKSTEP_INT32,   LOCKSTEP_FLOAT16, LOCKSTEP_INT8,    LOCKSTEP_INT16, LOCKSTEP_UINT16,
        LOCKSTEP_UINT32,  LOCKSTEP_UINT64,  LOCKSTEP_BOOL};
    static const int64_t shapes[] = {3, 0, 1, 700, 17};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g",
                                        "h", "i", "j", "k", "l", "m"};
    struct lockstep_parameter parameters[MIXED];
    struct lockstep_buffer buffers[MIXED];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    char data[2 * MIXED][700 * 8];
    memset(data, (int)rank->rank + 1, sizeof(data));
    for (uint32_t t = 0; t < MIXED; t++) {
        parameters[t] = (struct lockstep_parameter){.name = names[t],
                                                    .dtype = mixed[t],
                                                    .dims = 1,
                                                    .shape = &shapes[t % 5],
                                                    .data = data[t],
                                                    .flags = LOCKSTEP_PARAMETER_FROZEN};
        buffers[t] = (struct lockstep_buffer){.name = names[t],
                                              .dtype = mixed[t],
                                              .dims = 1,
                                              .shape = &shapes[(t + 2) % 5],
                                              .data = data[MIXED + t]};
    }
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = MIXED;
    config.buffers = buffers;
    config.buffer_count = MIXED;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t t = 0; t < 2 * MIXED; t++) {
        const int64_t elements = shapes[t < MIXED ? t % 5 : (t - MIXED + 2) % 5];
        const size_t used = (size_t)elements * dtype_bytes[mixed[t % MIXED]];
        for (size_t i = 0; i < sizeof(data[t]); i++)
            RANK_EQUAL(rank, data[t][i], i < used ? rank->world_size : rank->rank + 1);
    }
    RANK_OK(rank, lockstep_state_check(rank->session));
    data[0][0]++; // Only the root keeps this change.
    if (rank->rank != rank->world_size - 1)
        data[0][0]--;
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_state_check(rank->session));
    RANK_SAYS(rank, rank->world_size == 2 ? "those of rank 1:" : "those of rank 2:");
}

static void case_32_the_root_is_the_last_rank(const struct setting *setting)
{
    run_with_root(setting, root_body);
}

static void root_outside(const struct setting *setting)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    (void)setting;
    config.root = 1;
    assert_int_equal(lockstep_open(&config, &session), LOCKSTEP_E_CONFIG);
    assert_non_null(strstr(lockstep_error_text(), "config.root 1 does not fit a world of 1"));
    config.root = 4;
    config.coordinator = cluster_coordinator();
    config.world_size = 4;
    assert_int_equal(lockstep_open(&config, &session), LOCKSTEP_E_CONFIG);
    assert_non_null(strstr(lockstep_error_text(), "config.root 4 does not fit a world of 4"));
}

// The world size is open, so the configured root could exist in a larger world.
static void may_be_larger(struct rank *rank, struct lockstep_config *config)
{
    config->world_size = 0;
    config->world_min = rank->world_size;
    config->world_max = rank->world_size + 1;
    config->world_window_ms = 1;
    config->root = rank->world_size;
}

static void smaller_body(struct rank *rank)
{
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_start(rank->session));
    RANK_SAYS(rank, "config.root");
    RANK_SAYS(rank, "does not fit the world of");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_barrier(rank->session, "b", LOCKSTEP_WAIT_FOREVER));
}

static void root_outside_the_world_that_forms(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = may_be_larger, .body = smaller_body};
    ranks_run_test(&test);
}

#define KEPT 1 // The parameter and the buffer that are not ignored.

static void ignored_register(struct rank *rank, float (*data)[8], float (*gradients)[8],
                             lockstep_module **module)
{
    static const char *const names[] = {"head.weight", "body", "replay.7"};
    static const char *const ignore[] = {"head.*", "replay.[0-9]", "no such ?ame"};
    static const int64_t eight[] = {8};
    struct lockstep_parameter parameters[3];
    struct lockstep_buffer buffers[3];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    for (int t = 0; t < 3; t++) {
        parameters[t] =
            (struct lockstep_parameter){.name = names[t],
                                        .dtype = t == 2 ? LOCKSTEP_INT32 : LOCKSTEP_FLOAT32,
                                        .dims = 1,
                                        .shape = eight,
                                        .data = data[t],
                                        .gradient = gradients[t]};
        buffers[t] = (struct lockstep_buffer){.name = names[t],
                                              .dtype = LOCKSTEP_FLOAT32,
                                              .dims = 1,
                                              .shape = eight,
                                              .data = data[3 + t],
                                              .policy = LOCKSTEP_BUFFER_MEAN};
    }
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = 3;
    config.buffers = buffers;
    config.buffer_count = 3;
    config.ignore = ignore;
    config.ignore_count = 3;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, module));
}

static void ignored_fill(struct rank *rank, float (*data)[8], uint32_t count)
{
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t i = 0; i < 8; i++)
            data[t][i] = (float)(rank->rank * 100 + t * 10 + i);
    }
}

static void ignored_expect(struct rank *rank, float (*data)[8], uint32_t count, double others)
{
    float own[6][8];
    ignored_fill(rank, own, 6);
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t i = 0; i < 8; i++) {
            const double wanted = t % 3 == KEPT ? others + (double)(t * 10 + i) : (double)own[t][i];
            RANK_TRUE(rank, data[t][i] >= (float)wanted && data[t][i] <= (float)wanted);
        }
    }
}

static void ignored_body(struct rank *rank)
{
    const double mean = 50.0 * (rank->world_size - 1); // The mean of 0, 100, 200 and so on.
    struct listener *listener = listener_of(rank);
    float data[6][8];
    float gradients[3][8];
    lockstep_module *module;
    lockstep_call *call;
    ignored_fill(rank, data, 6);
    ignored_register(rank, data, gradients, &module);
    mutex_lock(&listener->mutex);
    RANK_EQUAL(rank, listener->lines, 1);
    RANK_TRUE(rank, strstr(listener->last, "no such ?ame") != NULL);
    mutex_unlock(&listener->mutex);
    RANK_OK(rank, lockstep_start(rank->session));
    ignored_expect(rank, data, 6, 0);
    for (int i = 0; i < 3; i++) {
        ignored_fill(rank, gradients, 3);
        ignored_fill(rank, data + 3, 3);
        trainer_begin(rank, NULL);
        RANK_OK(rank, lockstep_call_begin(module, &call));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_grad_ready(module, call, 0, NULL, NULL));
        RANK_SAYS(rank, "'head.weight' is ignored");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_unused(call, (uint32_t[]){2}, 1));
        RANK_SAYS(rank, "'replay.7' is ignored");
        RANK_OK(rank, lockstep_grad_ready(module, call, KEPT, NULL, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank); // Gradients of ignored parameters are not missing.
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
        ignored_expect(rank, gradients, 3, mean);
        ignored_expect(rank, data + 3, 3, mean);
        RANK_OK(rank, lockstep_state_check(rank->session)); // Ignored tensors do not count.
    }
}

static void ignored_is_never_touched(const struct setting *setting)
{
    listener_run(setting, "event=ignore_matches_nothing", NULL, ignored_body);
}

// ---- Strides -----------------------------------------------------------------------------------

// A channels-last tensor: its elements are reduced and broadcast in the order of memory.
static void strides_body(struct rank *rank)
{
    static const int64_t shape[] = {2, 3, 1, 4};
    static const int64_t strides[] = {12, 1, 77, 3};
    float data[24];
    float gradient[24];
    const struct lockstep_parameter parameter = {.name = "w",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 4,
                                                 .shape = shape,
                                                 .strides = strides,
                                                 .data = data,
                                                 .gradient = gradient};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    lockstep_call *call;
    config.name = "net";
    config.parameters = &parameter;
    config.parameter_count = 1;
    for (uint32_t i = 0; i < 24; i++)
        data[i] = gradient[i] = (float)(rank->rank * 100 + i);
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module, &call));
    RANK_OK(rank, lockstep_grad_ready(module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
    for (uint32_t i = 0; i < 24; i++) {
        RANK_EQUAL(rank, data[i], i);
        RANK_EQUAL(rank, gradient[i], (rank->world_size - 1) * 50 + i);
    }
}

static void strides_of_dense_memory(const struct setting *setting)
{
    ranks_run(setting, strides_body, NULL);
}

struct stride_case {
    int64_t shape[3];
    int64_t strides[3];
    const char *text; // Part of the expected error; NULL: the strides are valid.
};

static const struct stride_case stride_cases[] = {
    {{2, 3, 4}, {12, 4, 1}, NULL},
    {{2, 3, 4}, {1, 2, 6}, NULL},
    {{2, 3, 4}, {4, 8, 1}, NULL},
    {{2, 1, 4}, {4, -9, 1}, NULL}, // The stride of a dimension of one element is free.
    {{2, 0, 4}, {0, 0, 0}, NULL}, // The strides of an empty tensor are free.
    {{1, 1, 1}, {0, 0, 0}, NULL},
    {{2, 3, 4}, {12, 4, 2}, "no dimension that is left has the stride 1"},
    {{2, 3, 4}, {16, 4, 1}, "no dimension that is left has the stride 12"}, // Has a hole.
    {{2, 3, 4}, {4, 4, 1}, "no dimension that is left has the stride 8"}, // Has an overlap.
    {{2, 3, 4}, {0, 4, 1}, "no dimension that is left has the stride 12"}, // An expanded tensor.
    {{2, 3, 4}, {-12, 4, 1}, "no dimension that is left has the stride 12"},
    {{3, 3, 3}, {1, 1, 9}, "'t' has strides that leave holes or overlap"},
};

// ---- Invalid declarations, in a world of one ---------------------------------------------------

static float values[64];

static void expect_refused(lockstep_session *session, const struct lockstep_module_config *config,
                           const char *text)
{
    lockstep_module *module;
    const int status = lockstep_module_register(session, config, &module);
    assert_int_equal(status, !text ? LOCKSTEP_OK : LOCKSTEP_E_INVALID);
    if (!text) // The next module uses the same memory.
        assert_int_equal(lockstep_module_close(module), LOCKSTEP_OK);
    if (text && !strstr(lockstep_error_text(), text))
        fail_msg("no '%s' in: %s", text, lockstep_error_text());
}

static void strides_are_checked(const struct setting *setting)
{
    lockstep_session *session;
    (void)setting;
    assert_int_equal(lockstep_open(NULL, &session), 0);
    for (size_t i = 0; i < sizeof(stride_cases) / sizeof(stride_cases[0]); i++) {
        const struct stride_case *one = &stride_cases[i];
        const struct lockstep_parameter parameter = {.name = "t",
                                                     .dtype = LOCKSTEP_FLOAT32,
                                                     .dims = 3,
                                                     .shape = one->shape,
                                                     .strides = one->strides,
                                                     .data = values};
        const struct lockstep_buffer buffer = {.name = "t",
                                               .dtype = LOCKSTEP_INT64,
                                               .dims = 3,
                                               .shape = one->shape,
                                               .strides = one->strides,
                                               .data = values};
        struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
        char name[16];
        snprintf(name, sizeof(name), "p%u", (unsigned)i % 100);
        config.name = name;
        config.parameters = &parameter;
        config.parameter_count = 1;
        expect_refused(session, &config, one->text);
        name[0] = 'b';
        config.parameter_count = 0;
        config.buffers = &buffer;
        config.buffer_count = 1;
        expect_refused(session, &config, one->text);
    }
    assert_int_equal(lockstep_close(session), 0);
}

static void policies_are_checked(const struct setting *setting)
{
    lockstep_session *session;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_buffer buffer = {.name = "b", .dtype = LOCKSTEP_INT32, .data = values};
    (void)setting;
    config.name = "net";
    config.buffers = &buffer;
    config.buffer_count = 1;
    assert_int_equal(lockstep_open(NULL, &session), 0);
    buffer.policy = LOCKSTEP_BUFFER_MEAN;
    expect_refused(session, &config, "'b' is int32: a mean of integers does not exist");
    buffer.dtype = LOCKSTEP_UINT16;
    expect_refused(session, &config, "'b' is uint16: a mean of integers does not exist");
    buffer.dtype = LOCKSTEP_BOOL;
    expect_refused(session, &config,
                   "'b' is bool: a mean of integers does not exist; use LOCKSTEP_BUFFER_BROADCAST");
    buffer.policy = LOCKSTEP_BUFFER_SUM;
    expect_refused(session, &config, "'b' is bool: a sum of booleans does not exist");
    buffer.policy = LOCKSTEP_BUFFER_BROADCAST;
    expect_refused(session, &config, NULL);
    buffer.dtype = LOCKSTEP_INT32;
    buffer.policy = (lockstep_buffer_policy)5;
    expect_refused(session, &config, "'b' has the unknown policy 5");
    buffer.policy = LOCKSTEP_BUFFER_AT_START;
    buffer.every = 3;
    expect_refused(session, &config, "'b' has every 3 and a policy that does not repeat");
    buffer.policy = LOCKSTEP_BUFFER_IGNORE;
    expect_refused(session, &config, "'b' has every 3 and a policy that does not repeat");
    buffer.policy = LOCKSTEP_BUFFER_SUM;
    expect_refused(session, &config, NULL);
    assert_int_equal(lockstep_close(session), 0);
}

static void patterns_are_checked(const struct setting *setting)
{
    static char long_pattern[300];
    const char *patterns[65];
    lockstep_session *session;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    (void)setting;
    memset(long_pattern, '*', sizeof(long_pattern) - 1);
    for (int i = 0; i < 65; i++)
        patterns[i] = "*";
    config.name = "net";
    config.ignore_count = 1;
    assert_int_equal(lockstep_open(NULL, &session), 0);
    expect_refused(session, &config, "an ignore_count and no patterns");
    config.ignore = patterns;
    config.ignore_count = 65;
    expect_refused(session, &config, "ignore_count is 65; a module has at most 64 patterns");
    config.ignore_count = 64;
    patterns[63] = "";
    expect_refused(session, &config, "ignore pattern 63 is empty");
    patterns[63] = NULL;
    expect_refused(session, &config, "ignore pattern 63 is empty");
    patterns[63] = long_pattern;
    expect_refused(session, &config, "ignore pattern 63 is too long");
    patterns[63] = "\xff";
    expect_refused(session, &config, "ignore pattern 63 is not valid UTF-8");
    patterns[63] = "[a-"; // Malformed: it matches nothing.
    expect_refused(session, &config, NULL);
    assert_int_equal(lockstep_close(session), 0);
}

int main(void)
{
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"buffers_follow_their_policies", buffers_follow_their_policies, NULL},
        {"buffers_begin_as_the_root_has_them", buffers_begin_as_the_root_has_them, NULL},
        {"buffers_wait_for_the_end_of_a_window", buffers_wait_for_the_end_of_a_window, NULL},
        {"buffers_beside_many_collectives", buffers_beside_many_collectives, NULL},
        {"buffers_of_a_step_with_an_error", buffers_of_a_step_with_an_error, NULL},
        {"sync_makes_all_equal_now", sync_makes_all_equal_now, NULL},
        {"sync_waits_for_all", sync_waits_for_all, NULL},
        {"buffers_alone", buffers_alone, one},
        {"buffers_of_a_lost_peer", buffers_of_a_lost_peer, NULL},
        {"buffers_of_a_step_outside_the_plan", buffers_of_a_step_outside_the_plan, NULL},
        {"case_35_evaluation_on_one_rank", case_35_evaluation_on_one_rank, NULL},
        {"case_32_the_root_is_the_last_rank", case_32_the_root_is_the_last_rank, NULL},
        {"root_outside", root_outside, one},
        {"root_outside_the_world_that_forms", root_outside_the_world_that_forms, NULL},
        {"ignored_is_never_touched", ignored_is_never_touched, NULL},
        {"strides_of_dense_memory", strides_of_dense_memory, NULL},
        {"strides_are_checked", strides_are_checked, one},
        {"policies_are_checked", policies_are_checked, one},
        {"patterns_are_checked", patterns_are_checked, one},
    };
    return stamp_run("state", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
