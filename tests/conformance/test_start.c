// SPDX-License-Identifier: Apache-2.0
//
// Conformance: lockstep_start. The registrations of all ranks are compared. If they differ, all
// ranks get the same report, which names both sides. Then all ranks take the state of rank 0; only
// tensors that differ travel. Case numbers are those of the list of cases for reducers.

#include "base/clock.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h" // For the counts of bytes.
#include "worker/transport/state.h" // For the transport's settings of cores.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define REPORT_BOUND_MS 3000 // Time limit of a report, before test_bound_ms().

// ---- Case 31: one difference of each kind ------------------------------------------------------

// The registration of a rank: two parameters and three buffers of one module.
struct declaration {
    struct lockstep_parameter parameters[3];
    struct lockstep_buffer buffers[3];
    struct lockstep_module_config config;
};

static float memory[7][8]; // Memory of each tensor; memory[6] is the gradient of the first one.
static const int64_t two_by_three[] = {2, 3};
static const int64_t three_by_two[] = {3, 2};
static const int64_t three[] = {3};

static void declare(struct declaration *declaration)
{
    static const struct lockstep_module_config initial = LOCKSTEP_MODULE_INIT;
    *declaration = (struct declaration){
        .parameters = {{.name = "weight",
                        .dtype = LOCKSTEP_FLOAT32,
                        .dims = 2,
                        .shape = two_by_three,
                        .data = memory[0],
                        .gradient = memory[6]},
                       {.name = "bias",
                        .dtype = LOCKSTEP_FLOAT32,
                        .dims = 1,
                        .shape = three,
                        .data = memory[1]},
                       {.name = "extra",
                        .dtype = LOCKSTEP_FLOAT32,
                        .dims = 1,
                        .shape = three,
                        .data = memory[2]}},
        .buffers = {{.name = "mean",
                     .dtype = LOCKSTEP_FLOAT32,
                     .dims = 1,
                     .shape = three,
                     .data = memory[3],
                     .policy = LOCKSTEP_BUFFER_IGNORE},
                    {.name = "count",
                     .dtype = LOCKSTEP_INT32,
                     .data = memory[4],
                     .policy = LOCKSTEP_BUFFER_IGNORE},
                    {.name = "table",
                     .dtype = LOCKSTEP_FLOAT32,
                     .dims = 2,
                     .shape = three_by_two,
                     .data = memory[5],
                     .policy = LOCKSTEP_BUFFER_IGNORE}},
        .config = initial,
    };
    declaration->config.name = "net";
    declaration->config.parameters = declaration->parameters;
    declaration->config.parameter_count = 2;
    declaration->config.buffers = declaration->buffers;
    declaration->config.buffer_count = 3;
}

static void shape_differs(struct declaration *declaration)
{
    declaration->parameters[0].shape = three_by_two;
}

static void dims_differ(struct declaration *declaration)
{
    declaration->parameters[0].dims = 1;
}

static void count_differs(struct declaration *declaration)
{
    declaration->config.parameter_count = 3;
}

static void dtype_differs(struct declaration *declaration)
{
    declaration->parameters[1].dtype = LOCKSTEP_FLOAT64;
}

static void name_differs(struct declaration *declaration)
{
    declaration->parameters[1].name = "offset";
}

static void order_differs(struct declaration *declaration)
{
    const struct lockstep_parameter first = declaration->parameters[0];
    declaration->parameters[0] = declaration->parameters[1];
    declaration->parameters[1] = first;
}

static void flag_differs(struct declaration *declaration)
{
    declaration->parameters[1].flags = LOCKSTEP_PARAMETER_FROZEN;
}

static void policy_differs(struct declaration *declaration)
{
    declaration->buffers[0].policy = LOCKSTEP_BUFFER_AT_START;
}

static void every_differs(struct declaration *declaration)
{
    declaration->buffers[1].policy = LOCKSTEP_BUFFER_SUM;
    declaration->buffers[1].every = 7;
}

static void buffer_dtype_differs(struct declaration *declaration)
{
    declaration->buffers[1].dtype = LOCKSTEP_INT64;
}

static void buffer_shape_differs(struct declaration *declaration)
{
    declaration->buffers[0].shape = two_by_three;
}

static void buffer_name_differs(struct declaration *declaration)
{
    declaration->buffers[0].name = "average";
}

static void strides_differ(struct declaration *declaration)
{
    static const int64_t columns_first[] = {1, 2};
    declaration->parameters[0].strides = columns_first;
}

static void buffer_strides_differ(struct declaration *declaration)
{
    static const int64_t columns_first[] = {1, 3};
    declaration->buffers[2].strides = columns_first;
}

static void ignored_differs(struct declaration *declaration)
{
    static const char *const patterns[] = {"bi*", "mean"};
    declaration->config.ignore = patterns;
    declaration->config.ignore_count = 2;
}

static void buffer_count_differs(struct declaration *declaration)
{
    declaration->config.buffer_count = 2;
}

static void kind_differs(struct declaration *declaration)
{
    declaration->config.gradient_kind = LOCKSTEP_GRADIENT_SUM;
}

static void unused_differs(struct declaration *declaration)
{
    declaration->config.unused = LOCKSTEP_UNUSED_ACCEPT;
}

static void calls_differ(struct declaration *declaration)
{
    declaration->config.calls_per_step = 4;
}

static void wire_differs(struct declaration *declaration)
{
    declaration->config.wire = LOCKSTEP_WIRE_BFLOAT16;
}

static void exponent_differs(struct declaration *declaration)
{
    declaration->config.float16_exponent = -5;
}

static void caps_differ(struct declaration *declaration)
{
    declaration->config.bucket_last_bytes = 777;
}

static void module_differs(struct declaration *declaration)
{
    declaration->config.name = "network";
}

static void nothing_differs(struct declaration *declaration)
{
    (void)declaration;
}

struct difference {
    const char *what;
    void (*change)(struct declaration *declaration);
    const char *said[2]; // Parts of the report; %a is one of the equal ranks, %b the different one.
    size_t bucket_bytes; // bucket_bytes of the rank that differs.
};

static const struct difference differences[] = {
    {"shape", shape_differs, {"weight: shape [2, 3] on rank %a, shape [3, 2] on rank %b"}, 0},
    {"dims", dims_differ, {"weight: shape [2, 3] on rank %a, shape [2] on rank %b"}, 0},
    {"count", count_differs, {"only on rank %b: extra (float32 [3])"}, 0},
    {"dtype", dtype_differs, {"bias: dtype float32 on rank %a, dtype float64 on rank %b"}, 0},
    {"name",
     name_differs,
     {"only on rank %a: bias (float32 [3])", "only on rank %b: offset (float32 [3])"},
     0},
    {"order", order_differs, {"before", "on rank %a, after it on rank %b"}, 0},
    {"flag", flag_differs, {"bias: flags 0x0 on rank %a, flags 0x1 on rank %b"}, 0},
    {"policy",
     policy_differs,
     {"buffer mean: policy=ignore on rank %a, policy=at_start on rank %b"},
     0},
    {"buffers", buffer_count_differs, {"only on rank %a: buffer table (float32 [3, 2])"}, 0},
    {"every",
     every_differs,
     {"buffer count: policy=ignore on rank %a, policy=sum on rank %b",
      "buffer count: unset on rank %a, every=7 on rank %b"},
     0},
    {"buffer dtype",
     buffer_dtype_differs,
     {"buffer count: dtype int32 on rank %a, dtype int64 on rank %b"},
     0},
    {"buffer shape",
     buffer_shape_differs,
     {"buffer mean: shape [3] on rank %a, shape [2] on rank %b"},
     0},
    {"buffer name",
     buffer_name_differs,
     {"only on rank %a: buffer mean (float32 [3])",
      "only on rank %b: buffer average (float32 [3])"},
     0},
    {"strides",
     strides_differ,
     {"weight: strides [3, 1] on rank %a, strides [1, 2] on rank %b"},
     0},
    {"buffer strides",
     buffer_strides_differ,
     {"buffer table: strides [2, 1] on rank %a, strides [1, 3] on rank %b"},
     0},
    {"ignored",
     ignored_differs,
     {"bias: unset on rank %a, ignored=1 on rank %b",
      "buffer mean: unset on rank %a, ignored=1 on rank %b"},
     0},
    {"kind",
     kind_differs,
     {"module net: gradient_kind=mean on rank %a, gradient_kind=sum on rank %b"},
     0},
    {"unused", unused_differs, {"unused=error", "unused=accept"}, 0},
    {"calls", calls_differ, {"calls_per_step=1 on rank %a", "calls_per_step=4 on rank %b"}, 0},
    {"wire", wire_differs, {"wire=same on rank %a", "wire=bfloat16 on rank %b"}, 0},
    {"exponent",
     exponent_differs,
     {"float16_exponent=0 on rank %a", "float16_exponent=-5 on rank %b"},
     0},
    {"caps", caps_differ, {"module net: unset on rank %a, bucket_last_bytes=777 on rank %b"}, 0},
    {"module",
     module_differs,
     {"only on rank %a: module net", "only on rank %b: module network"},
     0},
    {"option", nothing_differs, {"bucket_bytes=12345 on rank %b"}, 12345},
};

static void difference_configure(struct rank *rank, struct lockstep_config *config)
{
    const struct difference *difference = rank->context;
    if (rank->rank == rank->world_size - 1)
        config->bucket_bytes = difference->bucket_bytes;
}

// Replaces %a and %b by ranks. The report names the first two ranks that differ, which depends on
// the order in which ranks report.
static void fill_ranks(char *text, size_t bytes, const char *pattern, unsigned a, unsigned b)
{
    size_t used = 0;
    for (const char *at = pattern; *at != '\0' && used + 16 < bytes; at++) {
        if (*at == '%')
            used += (size_t)snprintf(text + used, bytes - used, "%u", *++at == 'a' ? a : b);
        else
            text[used++] = *at;
    }
    text[used] = '\0';
}

static void expect_parts(struct rank *rank, const struct difference *difference)
{
    const unsigned differing = rank->world_size - 1;
    unsigned equal = differing;
    RANK_EQUAL(rank, sscanf(lockstep_error_text(), "manifests differ: rank %u", &equal), 1);
    RANK_TRUE(rank, equal < differing);
    for (int i = 0; i < 2 && difference->said[i]; i++) {
        char part[256];
        fill_ranks(part, sizeof(part), difference->said[i], equal, differing);
        RANK_SAYS(rank, part);
    }
}

static void difference_body(struct rank *rank)
{
    const struct difference *difference = rank->context;
    struct declaration declaration;
    lockstep_module *module;
    uint64_t began_ms;
    declare(&declaration);
    if (rank->rank == rank->world_size - 1)
        difference->change(&declaration);
    RANK_OK(rank, lockstep_module_register(rank->session, &declaration.config, &module));
    rank_meet(rank);
    began_ms = clock_now_ms();
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_TRUE(rank, clock_now_ms() - began_ms < test_bound_ms(REPORT_BOUND_MS));
    expect_parts(rank, difference);
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
}

static void case_31_differences_reach_all_ranks(const struct setting *setting)
{
    for (size_t i = 0; i < sizeof(differences) / sizeof(differences[0]); i++) {
        struct difference difference = differences[i];
        const struct cluster_test test = {.setting = setting,
                                          .configure = difference_configure,
                                          .body = difference_body,
                                          .context = &difference};
        ranks_run_test(&test);
    }
}

static void roots_configure(struct rank *rank, struct lockstep_config *config)
{
    config->root = rank->rank == rank->world_size - 1 ? 1 : 0;
}

static void case_31_roots_differ(const struct setting *setting)
{
    struct difference difference = {
        "root", nothing_differs, {"config.root: 0 on rank %a, 1 on rank %b"}, 0};
    const struct cluster_test test = {.setting = setting,
                                      .configure = roots_configure,
                                      .body = difference_body,
                                      .context = &difference};
    ranks_run_test(&test);
}

// Two ranks that differ get the report at once. Ranks that call lockstep_start later get the same
// report.
static void late_body(struct rank *rank)
{
    struct declaration declaration;
    lockstep_module *module;
    declare(&declaration);
    if (rank->rank == 1)
        shape_differs(&declaration);
    RANK_OK(rank, lockstep_module_register(rank->session, &declaration.config, &module));
    rank_meet(rank); // All sessions are open.
    if (rank->rank >= 2)
        rank_meet(rank); // Ranks 0 and 1 have failed.
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    if (rank->rank < 2)
        rank_meet(rank);
}

static void case_31_nobody_waits_for_the_last(const struct setting *setting)
{
    ranks_run(setting, late_body, NULL);
}

// ---- Case 32 -----------------------------------------------------------------------------------

#define TENSORS 9

static const lockstep_dtype mixed[] = {LOCKSTEP_FLOAT32, LOCKSTEP_INT64, LOCKSTEP_FLOAT64,
                                       LOCKSTEP_INT32};
static const uint64_t mixed_bytes[] = {4, 8, 8, 4};

struct state {
    int64_t sizes[TENSORS];
    struct lockstep_parameter parameters[TENSORS];
    struct lockstep_buffer buffers[TENSORS];
    char names[TENSORS][8];
    char *data[2 * TENSORS]; // Parameters, then buffers.
    size_t bytes[2 * TENSORS];
};

static void state_make(struct rank *rank, struct state *state, uint32_t rank_of_values)
{
    uint64_t seed = rank_of_values;
    for (uint32_t i = 0; i < 2 * TENSORS; i++) {
        const uint32_t t = i % TENSORS;
        state->sizes[t] = (int64_t[]){3, 0, 1, 700, 17}[t % 5];
        state->bytes[i] = (size_t)state->sizes[t] * mixed_bytes[i % 4];
        state->data[i] = malloc(state->bytes[i] + 1);
        for (size_t b = 0; b < state->bytes[i]; b++)
            state->data[i][b] = (char)trainer_random(&seed);
        snprintf(state->names[t], sizeof(state->names[0]), "t%" PRIu32, t % 100);
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        state->parameters[t] = (struct lockstep_parameter){
            .name = state->names[t],
            .dtype = mixed[t % 4],
            .dims = 1,
            .shape = &state->sizes[t],
            .data = state->data[t],
            .flags = LOCKSTEP_PARAMETER_FROZEN,
        };
        state->buffers[t] = (struct lockstep_buffer){
            .name = state->names[t],
            .dtype = mixed[(t + TENSORS) % 4],
            .dims = 1,
            .shape = &state->sizes[t],
            .data = state->data[TENSORS + t],
            .policy = t == 0 ? LOCKSTEP_BUFFER_IGNORE : LOCKSTEP_BUFFER_AT_START,
        };
    }
    RANK_TRUE(rank, state->data[2 * TENSORS - 1] != NULL);
}

static void state_register(struct rank *rank, const struct state *state)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = "net";
    config.parameters = state->parameters;
    config.parameter_count = TENSORS;
    config.buffers = state->buffers;
    config.buffer_count = TENSORS;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
}

static void state_free_all(struct state *state)
{
    for (uint32_t i = 0; i < 2 * TENSORS; i++)
        free(state->data[i]);
}

// All ranks begin with different values. After lockstep_start they have the values of rank 0,
// except in ignored tensors.
static void broadcast_body(struct rank *rank)
{
    struct state mine;
    struct state of_0;
    struct state before;
    state_make(rank, &mine, rank->rank);
    state_make(rank, &before, rank->rank);
    state_make(rank, &of_0, 0);
    state_register(rank, &mine);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 2 * TENSORS; i++) {
        const struct state *expected = i == TENSORS ? &before : &of_0;
        RANK_TRUE(rank, memcmp(mine.data[i], expected->data[i], mine.bytes[i]) == 0);
    }
    RANK_OK(rank, lockstep_state_check(rank->session));
    state_free_all(&mine);
    state_free_all(&of_0);
    state_free_all(&before);
}

static void case_32_mixed_dtypes_are_broadcast(const struct setting *setting)
{
    ranks_run(setting, broadcast_body, NULL);
}

// ---- Case 33 -----------------------------------------------------------------------------------

#define LARGE 20000 // Elements.

// Bytes of tensors and hashes that this rank has sent so far. Runs a barrier first; no rank goes on
// before all ranks have read their counters. The engine may still be driving after the barrier, and
// owns the counters while it does.
static int64_t payload_sent(struct rank *rank)
{
    struct lockstep_session *session = rank->session;
    struct transport_statistics statistics;
    RANK_OK(rank, lockstep_barrier(session, "count", LOCKSTEP_WAIT_FOREVER));
    mutex_lock(&session->mutex);
    while (session->drive.holder != DRIVE_NOBODY) {
        mutex_unlock(&session->mutex);
        (void)usleep(1000);
        mutex_lock(&session->mutex);
    }
    transport_statistics(session->transport, &statistics);
    mutex_unlock(&session->mutex);
    rank_meet(rank);
    return (int64_t)statistics.payload_bytes_sent;
}

// context: the rank whose second tensor differs; world_size: all tensors are equal. The expected
// bytes: the root sends three hashes to every other rank; the marks of differing tensors are
// reduced, and so are the 4 bytes of the barrier; if a tensor differs, the root sends it to every
// other rank.
static void equal_body(struct rank *rank)
{
    static const uint64_t sizes[] = {LARGE, LARGE, LARGE};
    const struct module_shape shape = {.name = "net", .count = 3, .elements = sizes};
    const uint32_t *differs = rank->context;
    const int64_t others = rank->world_size - 1;
    int64_t expected = others * (3 * 8 + 2 * 3 * 8 + 2 * 4);
    struct trained_module module;
    int64_t sent;
    trainer_make(rank, &shape, 0, &module);
    if (rank->rank == *differs)
        ((float *)module.data[1])[LARGE - 1] = 1;
    RANK_OK(rank, lockstep_start(rank->session));
    sent = payload_sent(rank);
    RANK_OK(rank, lockstep_allreduce(rank->session, "sent", &sent, 1, LOCKSTEP_INT64, LOCKSTEP_SUM,
                                     LOCKSTEP_WAIT_FOREVER));
    if (*differs < rank->world_size)
        expected += others * (int64_t)(LARGE * sizeof(float));
    RANK_EQUAL(rank, sent, expected);
    RANK_OK(rank, lockstep_state_check(rank->session));
    trainer_free(&module);
}

static void case_33_equal_state_does_not_travel(const struct setting *setting)
{
    // The bytes that a ring sends can be predicted.
    const struct setting ring = setting_on_ring(setting);
    for (uint32_t differs = 0; differs <= setting->world_size; differs++)
        ranks_run(&ring, equal_body, &differs);
}

// ---- Nothing to declare ------------------------------------------------------------------------

static void nothing_body(struct rank *rank)
{
    uint64_t hash = 1;
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_start(rank->session));
    RANK_SAYS(rank, "already");
    RANK_EQUAL(rank, rank->session->transport->flows.world.core_ranks, rank->world_size);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).buckets, 0);
    }
    RANK_OK(rank, lockstep_state_hash(rank->session, &hash));
    RANK_OK(rank, lockstep_state_check(rank->session));
    rank_digest(rank, &hash, sizeof(hash));
}

static void start_without_modules(const struct setting *setting)
{
    ranks_run(setting, nothing_body, NULL);
}

int main(void)
{
    static const uint32_t only_three[] = {3, 0};
    static const struct stamp stamps[] = {
        {"case_31_differences_reach_all_ranks", case_31_differences_reach_all_ranks, NULL},
        {"case_31_roots_differ", case_31_roots_differ, NULL},
        {"case_31_nobody_waits_for_the_last", case_31_nobody_waits_for_the_last, only_three},
        {"case_32_mixed_dtypes_are_broadcast", case_32_mixed_dtypes_are_broadcast, NULL},
        {"case_33_equal_state_does_not_travel", case_33_equal_state_does_not_travel, NULL},
        {"start_without_modules", start_without_modules, NULL},
    };
    return stamp_run("start", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
