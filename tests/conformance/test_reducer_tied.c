// SPDX-License-Identifier: Apache-2.0
//
// Conformance: one weight under two names in one module, such as the token embedding and the head
// of a language model; and overlapping tensors, which are refused. Case numbers are those of the
// list of cases for reducers.

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 4
#define OWNER 0
#define TIED 3 // The second name of parameter 0.
#define REPLICAS 2
#define LARGEST 300

static const uint64_t sizes[COUNT] = {LARGEST, 40, 17, LARGEST};

struct tied {
    struct trained_module net; // The first member: configure gets this one.
    struct lockstep_parameter parameters[REPLICAS * COUNT];
    float data[COUNT][LARGEST]; // Values of the second replica.
    float gradients[COUNT][LARGEST]; // Gradients of the second replica.
    uint64_t replicas;
    uint64_t ready_count;
    bool separate;
    bool unregistered; // True if the gradient under the second name is not registered.
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
    struct tied *tied = (struct tied *)module;
    config->replicas = tied->replicas;
    config->separate_calls = tied->separate;
    config->parameters = tied->parameters;
    for (uint32_t i = 0; i < REPLICAS * COUNT; i++) {
        struct lockstep_parameter *parameter = &tied->parameters[i];
        *parameter = module->parameters[i % COUNT];
        if (i >= COUNT) {
            parameter->data = tied->data[i % COUNT];
            parameter->gradient = tied->gradients[i % COUNT];
        }
        if (i % COUNT != TIED)
            continue;
        parameter->data = tied->parameters[i - TIED].data;
        parameter->gradient = tied->unregistered ? NULL : tied->parameters[i - TIED].gradient;
        parameter->flags = LOCKSTEP_PARAMETER_SHARED;
        parameter->ready_count = tied->ready_count;
    }
}

static void tied_start(struct rank *rank, struct module_shape shape, struct tied *tied)
{
    shape.name = "net";
    shape.count = COUNT;
    shape.elements = sizes;
    shape.configure = tie;
    trainer_make(rank, &shape, 0, &tied->net);
    ((float *)tied->net.data[OWNER])[1] = (float)(1 + rank->rank);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_TRUE(rank, ((float *)tied->net.data[OWNER])[1] == 1); // The root's value.
}

// Reports all gradients; the tied one under the names whose bit is set: 1 the owner's name, 2 the
// second name.
static void tied_report(struct rank *rank, struct tied *tied, lockstep_call *call, uint32_t names)
{
    for (uint32_t p = 0; p < COUNT; p++) {
        const bool other = p == TIED && tied->ready_count > 1;
        if ((p == OWNER && (names & 1) == 0) || (p == TIED && (names & 2) == 0))
            continue;
        for (uint32_t i = 0; i < (other ? tied->ready_count : 1); i++)
            RANK_OK(rank, lockstep_grad_ready(tied->net.module, call, p, NULL, NULL));
    }
}

static void tied_step(struct rank *rank, struct tied *tied, uint64_t weight, uint32_t names)
{
    const struct lockstep_step_options options = {.struct_bytes = sizeof(options),
                                                  .weight = weight};
    lockstep_call *call;
    trainer_begin(rank, &options);
    trainer_fill_known(&tied->net, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(tied->net.module, &call));
    tied_report(rank, tied, call, names);
    RANK_OK(rank, lockstep_call_end(call));
}

static void expect_result(struct rank *rank, struct tied *tied, const uint64_t *weights)
{
    for (uint32_t p = 0; p < TIED; p++)
        trainer_expect_parameter(rank, &tied->net, atomic_load(&rank->step), p, weights);
}

// ---- Reported ----------------------------------------------------------------------------------

// A tied gradient reported under one name, under both names, or under different names on different
// ranks counts once, and is used under both names.
static void names_body(struct rank *rank)
{
    struct tied tied = {.unregistered = rank->rank == 1};
    tied_start(rank, (struct module_shape){0}, &tied);
    for (uint32_t i = 0; i < 9; i++) {
        uint32_t ranks[COUNT];
        tied_step(rank, &tied, 1, 1 + (i + (i >= 3 ? rank->rank : 0)) % 3);
        trainer_end(rank);
        expect_result(rank, &tied, NULL);
        RANK_OK(rank, lockstep_module_usage(tied.net.module, ranks, COUNT));
        for (uint32_t p = 0; p < COUNT; p++)
            RANK_EQUAL(rank, ranks[p], rank->world_size);
    }
    RANK_OK(rank, lockstep_state_check(rank->session));
    trainer_free(&tied.net);
}

static void case_13_tied_under_either_name(const struct setting *setting)
{
    tied_run(setting, names_body);
}

// If the tied gradient were reduced twice, it would be divided by the total weight twice.
static void weighted_body(struct rank *rank)
{
    struct tied tied = {.ready_count = 3};
    uint64_t weights[CLUSTER_MAX_WORLD];
    tied_start(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_SUM}, &tied);
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t r = 0; r < rank->world_size; r++)
            weights[r] = 2 + r;
        tied_step(rank, &tied, weights[rank->rank], 3);
        trainer_end(rank);
        expect_result(rank, &tied, weights);
    }
    trainer_free(&tied.net);
}

static void case_26_tied_sums_count_once(const struct setting *setting)
{
    tied_run(setting, weighted_body);
}

// Every replica has both names; some reports are under the second one only.
static void replicas_body(struct rank *rank)
{
    struct tied tied = {.replicas = REPLICAS};
    tied_start(rank, (struct module_shape){0}, &tied);
    for (uint32_t i = 0; i < 6; i++) {
        lockstep_call *call;
        trainer_begin(rank, NULL);
        trainer_fill_known(&tied.net, rank->rank, atomic_load(&rank->step));
        for (uint32_t p = 0; p < TIED; p++)
            memcpy(tied.gradients[p], tied.net.gradients[p], sizes[p] * sizeof(float));
        RANK_OK(rank, lockstep_call_begin(tied.net.module, &call));
        for (uint32_t n = 0; n < REPLICAS * COUNT; n++) {
            const uint32_t p = n % COUNT;
            // Half of the steps report only under the second name, the others only under the first.
            if (p == (i % 2 == 0 ? OWNER : TIED))
                continue;
            RANK_OK(rank, lockstep_replica_ready(tied.net.module, call, n / COUNT, p, NULL, NULL));
        }
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        expect_result(rank, &tied, NULL);
        for (uint64_t e = 0; e < sizes[OWNER]; e++)
            RANK_TRUE(rank, tied.gradients[OWNER][e] == ((float *)tied.net.gradients[OWNER])[e]);
    }
    trainer_free(&tied.net);
}

static void case_13_tied_in_replicas(const struct setting *setting)
{
    tied_run(setting, replicas_body);
}

// Each call has a gradient of its own, under both names.
static void separate_body(struct rank *rank)
{
    struct tied tied = {.separate = true};
    static const uint32_t calls = 2;
    float *second[COUNT];
    for (uint32_t p = 0; p < COUNT; p++)
        second[p] = calloc(sizes[p], sizeof(float));
    tied_start(rank, (struct module_shape){.calls_per_step = calls}, &tied);
    for (uint32_t i = 0; i < 4; i++) {
        lockstep_call *call;
        trainer_begin(rank, NULL);
        trainer_fill_known(&tied.net, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(tied.net.module, &call));
        tied_report(rank, &tied, call, 3);
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_call_begin(tied.net.module, &call));
        for (uint32_t p = 0; p < COUNT; p++) {
            float *gradient = second[p == TIED ? OWNER : p];
            for (uint64_t e = 0; e < sizes[p]; e++)
                gradient[e] = (float)(8 * (e % 5) + 2 * rank->rank);
            RANK_OK(rank, lockstep_grad_ready(tied.net.module, call, p, gradient, NULL));
        }
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        expect_result(rank, &tied, NULL);
        for (uint64_t e = 0; e < sizes[OWNER]; e++)
            RANK_TRUE(rank, second[OWNER][e] == (float)(8 * (e % 5) + rank->world_size - 1));
    }
    for (uint32_t p = 0; p < COUNT; p++)
        free(second[p]);
    trainer_free(&tied.net);
}

static void case_40_tied_in_separate_calls(const struct setting *setting)
{
    tied_run(setting, separate_body);
}

// ---- Not reported, and reported too often ------------------------------------------------------

static void missing_body(struct rank *rank)
{
    struct tied tied = {.separate = false};
    lockstep_call *call;
    tied_start(rank, (struct module_shape){.unused = LOCKSTEP_UNUSED_ERROR}, &tied);
    for (uint32_t i = 0; i < 3; i++) {
        tied_step(rank, &tied, 1, rank->rank == 1 ? 0 : 3);
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "1 gradient was not produced by the backward pass:\n"
                        "  module 'net' parameter 'p0' (also 'p3') on rank 1");
    }
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(tied.net.module, &call));
    tied_report(rank, &tied, call, 3);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(tied.net.module, call, TIED, NULL, NULL));
    RANK_SAYS(rank, "parameter 'p3' is ready twice");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(tied.net.module, call, OWNER, NULL, NULL));
    RANK_SAYS(rank, "parameter 'p0' is ready twice");
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
    trainer_free(&tied.net);
}

static void case_14_tied_is_missed_once(const struct setting *setting)
{
    tied_run(setting, missing_body);
}

// The library allocates one gradient for both names. Only the owner's gradient can be moved.
static void placed_body(struct rank *rank)
{
    struct tied tied = {.unregistered = true};
    void *gradients[COUNT];
    tied_start(rank, (struct module_shape){0}, &tied);
    RANK_OK(rank, lockstep_module_gradients(tied.net.module, gradients, COUNT));
    RANK_TRUE(rank, gradients[TIED] == gradients[OWNER]);
    for (uint32_t p = 0; p < TIED; p++)
        tied.net.gradients[p] = gradients[p];
    for (uint32_t i = 0; i < 3; i++) {
        tied_step(rank, &tied, 1, 3);
        trainer_end(rank);
        expect_result(rank, &tied, NULL);
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_parameter_move(tied.net.module, TIED, NULL, gradients[TIED]));
    RANK_SAYS(rank, "is shared: move parameter 'p0' of module 'net', which owns it");
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    trainer_free(&tied.net);
}

static void case_09_tied_in_given_memory(const struct setting *setting)
{
    tied_run(setting, placed_body);
}

// ---- Overlaps, in a world of one ---------------------------------------------------------------

#define MANY 16384

static float memory[64];

#define FAILS(status, part, call) \
    do { \
        assert_int_equal((status), (call)); \
        if (!strstr(lockstep_error_text(), (part))) \
            fail_msg("'%s' is not in: %s", (part), lockstep_error_text()); \
    } while (0)

// Two parameters and a buffer of four elements each; the numbers are their first elements in
// `memory`.
struct overlap {
    uint32_t data[2];
    uint32_t gradients[2];
    uint32_t buffer;
    bool shared; // True if the second parameter has LOCKSTEP_PARAMETER_SHARED.
    bool other_module; // True if the second name is in a module of its own.
    const char *part; // Part of the error's text; NULL: no error is expected.
};

static const struct overlap overlaps[] = {
    {{0, 4}, {8, 12}, 16, false, false, NULL},
    {{0, 4}, {0, 4}, 16, false, false, NULL}, // A gradient may lie in its own value.
    {{0, 0}, {8, 8}, 16, true, false, NULL},
    {{0, 0}, {8, 8}, 16, true, true, NULL},
    {{0, 0},
     {8, 12},
     16,
     false,
     false,
     "parameter 'b' has the memory of parameter 'a' of module 'net': mark it "
     "LOCKSTEP_PARAMETER_SHARED"},
    {{0, 0}, {8, 12}, 16, true, false, "its gradient memory is not that of its owner"},
    {{0, 4},
     {8, 8},
     16,
     false,
     false,
     "the gradient of parameter 'a' of module 'net' and the gradient of parameter 'b' of module "
     "'net' overlap in memory: they have 16 bytes"},
    {{0, 4}, {8, 8}, 16, false, true, "the gradient of parameter 'b' of module 'further' overlap"},
    {{0, 4}, {8, 11}, 16, false, false, "overlap in memory: they have 4 bytes"},
    {{0, 4}, {8, 11}, 16, false, true, "overlap in memory: they have 4 bytes"},
    {{0, 3}, {8, 12}, 16, false, false, "the value of parameter 'a'"},
    {{0, 3}, {8, 12}, 16, true, false, "is shared, and no earlier parameter has its memory"},
    {{0, 4}, {8, 5}, 16, false, false, "the value of parameter 'b' of module 'net' and the"},
    {{0, 4},
     {8, 12},
     14,
     false,
     false,
     "the gradient of parameter 'b' of module 'net' and the buffer 'c' of module 'net' overlap in "
     "memory: they have 8 bytes"},
    {{0, 4}, {8, 12}, 4, false, false, "the buffer 'c' of module 'net' overlap"},
};

static int overlap_register(lockstep_session *session, const struct overlap *overlap)
{
    static const int64_t four = 4;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[2] = {LOCKSTEP_PARAMETER_INIT, LOCKSTEP_PARAMETER_INIT};
    struct lockstep_buffer buffer = LOCKSTEP_BUFFER_INIT;
    lockstep_module *module;
    int status;
    for (uint32_t i = 0; i < 2; i++) {
        parameters[i].name = i == 0 ? "a" : "b";
        parameters[i].dims = 1;
        parameters[i].shape = &four;
        parameters[i].data = memory + overlap->data[i];
        parameters[i].gradient = memory + overlap->gradients[i];
    }
    parameters[1].flags = overlap->shared ? LOCKSTEP_PARAMETER_SHARED : 0;
    buffer.name = "c";
    buffer.dims = 1;
    buffer.shape = &four;
    buffer.data = memory + overlap->buffer;
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = overlap->other_module ? 1 : 2;
    config.buffers = &buffer;
    config.buffer_count = 1;
    status = lockstep_module_register(session, &config, &module);
    if (status < 0 || !overlap->other_module)
        return status;
    config.name = "further";
    config.parameters = parameters + 1;
    config.buffer_count = 0;
    return lockstep_module_register(session, &config, &module);
}

static void overlaps_are_refused(const struct setting *setting)
{
    (void)setting;
    for (size_t i = 0; i < sizeof(overlaps) / sizeof(overlaps[0]); i++) {
        lockstep_session *session;
        assert_int_equal(lockstep_open(NULL, &session), 0);
        if (!overlaps[i].part)
            assert_int_equal(overlap_register(session, &overlaps[i]), 0);
        else
            FAILS(LOCKSTEP_E_INVALID, overlaps[i].part, overlap_register(session, &overlaps[i]));
        assert_int_equal(lockstep_close(session), 0);
    }
}

// Registers parameters that lie side by side.
static lockstep_module *register_many(lockstep_session *session, uint32_t count, float *data,
                                      float *gradients)
{
    static char names[MANY][8];
    static struct lockstep_parameter parameters[MANY];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    for (uint32_t i = 0; i < count; i++) {
        parameters[i] = (struct lockstep_parameter)LOCKSTEP_PARAMETER_INIT;
        snprintf(names[i], sizeof(names[i]), "p%" PRIu32, i);
        parameters[i].name = names[i];
        parameters[i].data = data + count - 1 - i;
        parameters[i].gradient = gradients + i;
    }
    config.name = "many";
    config.parameters = parameters;
    config.parameter_count = count;
    assert_int_equal(lockstep_module_register(session, &config, &module), 0);
    return module;
}

// Parameters can exchange their memory by several moves, because overlaps are checked only when the
// next step begins.
static void moves_may_exchange(const struct setting *setting)
{
    static float data[MANY], gradients[MANY], moved[MANY];
    lockstep_session *session;
    lockstep_module *module;
    (void)setting;
    assert_int_equal(lockstep_open(NULL, &session), 0);
    module = register_many(session, MANY, data, gradients);
    assert_int_equal(lockstep_start(session), 0);
    for (uint32_t round = 0; round < 3; round++) {
        float *to = round == 1 ? moved : gradients;
        for (uint32_t i = 0; i < MANY; i++)
            assert_int_equal(lockstep_parameter_move(module, i, NULL, to + (i + round) % MANY), 0);
        assert_int_equal(lockstep_step_begin(session, NULL, NULL), 0);
        assert_int_equal(lockstep_step_end(session, NULL), 0);
    }
    assert_int_equal(lockstep_parameter_move(module, 7, NULL, gradients + 10), 0);
    FAILS(LOCKSTEP_E_INVALID,
          "the gradient of parameter 'p7' of module 'many' and the gradient of parameter 'p8' of "
          "module 'many' overlap in memory",
          lockstep_step_begin(session, NULL, NULL));
    assert_int_equal(lockstep_step_begin(session, NULL, NULL), LOCKSTEP_E_INVALID);
    assert_int_equal(lockstep_parameter_move(module, 7, NULL, moved), 0);
    assert_int_equal(lockstep_step_begin(session, NULL, NULL), 0);
    assert_int_equal(lockstep_step_end(session, NULL), 0);
    assert_int_equal(lockstep_close(session), 0);
}

// lockstep_free frees a block in which there is only a second name, whose owner has moved, or an
// empty parameter.
static void freed_body(struct rank *rank)
{
    static float data[8];
    static const int64_t none[] = {0}, eight[] = {8};
    struct lockstep_parameter parameters[3];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    static const char *const names[] = {"empty", "weight", "tied"};
    lockstep_module *module;
    void *blocks[3], *gradients[3];
    for (int i = 0; i < 3; i++) {
        RANK_OK(rank, lockstep_alloc(rank->session, sizeof(data), &blocks[i]));
        parameters[i] =
            (struct lockstep_parameter){.name = names[i],
                                        .dtype = LOCKSTEP_FLOAT32,
                                        .dims = 1,
                                        .shape = i == 0 ? none : eight,
                                        .data = i == 0 ? blocks[0] : data,
                                        .gradient = blocks[i == 0 ? 0 : 1],
                                        .flags = i == 2 ? LOCKSTEP_PARAMETER_SHARED : 0};
    }
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = 3;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_free(rank->session, blocks[0]));
    RANK_OK(rank, lockstep_parameter_move(module, 1, NULL, blocks[2]));
    RANK_OK(rank, lockstep_free(rank->session, blocks[1]));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_free(rank->session, blocks[2]));
    RANK_OK(rank, lockstep_module_gradients(module, gradients, 3));
    RANK_TRUE(rank, gradients[0] == gradients[1] && gradients[2] == gradients[1]);
    RANK_OK(rank, lockstep_free(rank->session, blocks[2]));
}

static void moved_memory_is_freed(const struct setting *setting)
{
    ranks_run(setting, freed_body, NULL);
}

int main(void)
{
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"case_13_tied_under_either_name", case_13_tied_under_either_name, NULL},
        {"case_26_tied_sums_count_once", case_26_tied_sums_count_once, NULL},
        {"case_13_tied_in_replicas", case_13_tied_in_replicas, NULL},
        {"case_40_tied_in_separate_calls", case_40_tied_in_separate_calls, NULL},
        {"case_14_tied_is_missed_once", case_14_tied_is_missed_once, NULL},
        {"case_09_tied_in_given_memory", case_09_tied_in_given_memory, NULL},
        {"overlaps_are_refused", overlaps_are_refused, one},
        {"moves_may_exchange", moves_may_exchange, one},
        {"moved_memory_is_freed", moved_memory_is_freed, one},
    };
    return stamp_run("reducer: tied weights", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
