// SPDX-License-Identifier: Apache-2.0
//
// Conformance: deferred contributions of all kinds of modules: with 16-bit gradients, compressed
// wires, separate calls, replicas, shared parameters and unused parameters; and in steps without a
// weight. Case numbers are those of the list of cases for reducers.
//
// In every test rank 0 calls the module "net" and then "key". The other ranks first call "key" and
// wait for it, which gives up the calls of "net" that the plan has before "key".

#include "tests/support/trainer.h"
#include "worker/kernels/kernels.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 2
#define CALLS 2
#define LARGEST 300

static const uint64_t sizes[COUNT] = {LARGEST, 3};
// More buckets than may be in flight.
static const uint64_t key_sizes[] = {60, 60, 60, 60, 60, 60, 60, 60, 60, 60};
#define KEY_COUNT (sizeof(key_sizes) / sizeof(key_sizes[0]))
static_assert(KEY_COUNT > LOCKSTEP_WINDOW, "what comes behind it is parked");

static void configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
    config->order = LOCKSTEP_ORDER_ZERO_DEFER;
    config->unplanned = LOCKSTEP_UNPLANNED_DEFER;
}

static void run(const struct setting *setting, void (*body)(struct rank *rank), void *context)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure, .body = body, .context = context};
    ranks_run_test(&test);
}

// ---- A module of some kind ---------------------------------------------------------------------

struct net {
    struct trained_module net; // The first member: configure gets this one.
    struct trained_module key;
    lockstep_dtype dtype;
    lockstep_wire wire;
    int32_t exponent;
    bool separate; // True if calls travel separately.
    uint32_t replicas; // Number of replicas; 0: 1.
    struct lockstep_parameter parameters[2 * COUNT];
    double memory[2 * CALLS][COUNT][LARGEST]; // Gradients of each call, or of each replica.
};

static void declare(struct trained_module *module, struct lockstep_module_config *config)
{
    struct net *net = (struct net *)module;
    const uint32_t replicas = net->replicas == 0 ? 1 : net->replicas;
    for (uint32_t i = 0; i < replicas * COUNT; i++) {
        net->parameters[i] = module->parameters[i % COUNT];
        net->parameters[i].dtype = net->dtype;
        net->parameters[i].gradient = net->memory[i / COUNT][i % COUNT];
    }
    config->parameters = net->parameters;
    config->replicas = replicas;
    config->wire = net->wire;
    config->float16_exponent = net->exponent;
    config->separate_calls = net->separate;
}

static void net_make(struct rank *rank, lockstep_gradient_kind kind, struct net *net)
{
    // float64 gives memory enough for any dtype.
    const lockstep_dtype wide[COUNT] = {LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT64};
    const struct module_shape shape = {.name = "net",
                                       .count = COUNT,
                                       .elements = sizes,
                                       .dtypes = wide,
                                       .kind = kind,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .calls_per_step = net->separate ? CALLS : 1,
                                       .configure = declare};
    const struct module_shape key = {.name = "key", .count = KEY_COUNT, .elements = key_sizes};
    trainer_make(rank, &shape, 0, &net->net);
    trainer_make(rank, &key, 1, &net->key);
    net->net.shape.dtypes = NULL;
    RANK_OK(rank, lockstep_start(rank->session));
}

static void net_free(struct net *net)
{
    trainer_free(&net->net);
    trainer_free(&net->key);
}

static void set(const struct net *net, uint32_t place, uint32_t parameter, double value)
{
    const enum dtype dtype = (enum dtype)net->dtype;
    const float narrow = (float)value;
    char *to = (char *)(uintptr_t)net->memory[place][parameter];
    for (uint64_t i = 0; i < sizes[parameter]; i++, to += dtype_size(dtype)) {
        if (dtype == DTYPE_FLOAT64)
            memcpy(to, &value, sizeof(value));
        else if (dtype == DTYPE_FLOAT32)
            memcpy(to, &narrow, sizeof(narrow));
        else
            kernel_narrow(dtype, (void *)to, &narrow, 1);
    }
}

static double get(const struct net *net, uint32_t place, uint32_t parameter, uint64_t element)
{
    const enum dtype dtype = (enum dtype)net->dtype;
    const char *from = (const char *)net->memory[place][parameter] + element * dtype_size(dtype);
    float narrow;
    double wide;
    memcpy(&wide, from, dtype_size(dtype) == 8 ? 8 : 0);
    if (dtype == DTYPE_FLOAT64)
        return wide;
    if (dtype == DTYPE_FLOAT32)
        memcpy(&narrow, from, sizeof(narrow));
    else
        kernel_widen(dtype, &narrow, (const void *)from, 1);
    return (double)narrow;
}

// Checks that all elements of a gradient are `wanted`, up to the rounding error of the format.
static void expect(struct rank *rank, const struct net *net, uint32_t place, uint32_t parameter,
                   double wanted)
{
    const bool small = dtype_size((enum dtype)net->dtype) == 2 || net->wire != LOCKSTEP_WIRE_SAME;
    const double bound = (small ? 0.03 : 1e-6) * (wanted < 0 ? -wanted : wanted);
    for (uint64_t i = 0; i < sizes[parameter]; i++) {
        const double found = get(net, place, parameter, i);
        if (!(found >= wanted - bound && found <= wanted + bound))
            rank_fail(rank, __FILE__, __LINE__,
                      "step %" PRIu64 ": place %" PRIu32 " parameter %" PRIu32 " element %" PRIu64
                      " is %g, not %g",
                      atomic_load(&rank->step), place, parameter, i, found, wanted);
    }
    rank_digest(rank, net->memory[place][parameter],
                sizes[parameter] * dtype_size((enum dtype)net->dtype));
}

// ---- A step ------------------------------------------------------------------------------------

static void begin(struct rank *rank, uint64_t weight)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = weight;
    trainer_begin(rank, &options);
}

// Calls "net". The gradient of parameter p is value * (p + 1), reported if bit p of `used` is set.
static lockstep_call *call(struct rank *rank, struct net *net, uint32_t place, double value,
                           uint32_t used)
{
    lockstep_call *made;
    RANK_OK(rank, lockstep_call_begin(net->net.module, &made));
    for (uint32_t p = 0; p < COUNT; p++) {
        for (uint32_t r = 0; r < (net->replicas == 0 ? 1 : net->replicas); r++) {
            void *memory = net->memory[place + r][p];
            set(net, place + r, p, value * (double)(p + 1));
            if ((used >> p & 1) != 0)
                RANK_OK(rank, lockstep_replica_ready(net->net.module, made, r, p, memory, NULL));
        }
    }
    RANK_OK(rank, lockstep_call_end(made));
    return made;
}

static void key(struct rank *rank, struct net *net, bool waits)
{
    lockstep_call *made;
    trainer_fill_known(&net->key, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(net->key.module, &made));
    for (uint32_t p = 0; p < KEY_COUNT; p++)
        RANK_OK(rank, lockstep_grad_ready(net->key.module, made, p, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(made));
    if (waits)
        RANK_OK(rank, lockstep_call_wait(made, LOCKSTEP_WAIT_FOREVER));
}

// Runs a step in which all ranks call net and then key, which is the learned order.
static void step_together(struct rank *rank, struct net *net, double value, uint64_t weight)
{
    begin(rank, weight);
    call(rank, net, 0, value, 3);
    key(rank, net, false);
    trainer_end(rank);
}

// Runs a step in which rank 0 calls net and then key. The other ranks give up net by a wait for
// key, and then call net with twice the value.
static void step_apart(struct rank *rank, struct net *net, double value, uint32_t used)
{
    lockstep_call *made;
    begin(rank, 1);
    if (rank->rank > 0)
        key(rank, net, true);
    made = call(rank, net, 0, rank->rank > 0 ? 2 * value : value, rank->rank > 0 ? used : 3);
    if (rank->rank > 0)
        RANK_STATUS(rank, LOCKSTEP_DEFERRED, lockstep_call_wait(made, LOCKSTEP_WAIT_FOREVER));
    else
        key(rank, net, false);
    trainer_end(rank);
    RANK_EQUAL(rank, trainer_report(rank).deferred > 0, rank->rank > 0);
}

// ---- Formats -----------------------------------------------------------------------------------

struct format {
    lockstep_dtype dtype;
    lockstep_wire wire;
    int32_t exponent;
    lockstep_gradient_kind kind;
};

static void format_body(struct rank *rank)
{
    const struct format *format = rank->context;
    const double others = rank->world_size - 1;
    struct net *net = calloc(1, sizeof(*net));
    net->dtype = format->dtype;
    net->wire = format->wire;
    net->exponent = format->exponent;
    net_make(rank, format->kind, net);
    step_together(rank, net, 12, 1);
    for (uint32_t p = 0; p < COUNT; p++)
        expect(rank, net, 0, p, 12 * (p + 1));
    step_apart(rank, net, 12, 3);
    for (uint32_t p = 0; p < COUNT; p++)
        expect(rank, net, 0, p, 12 * (p + 1));
    step_together(rank, net, 6, 1);
    for (uint32_t p = 0; p < COUNT; p++)
        expect(rank, net, 0, p, (6 + others * (24 + 6)) / (1 + 2 * others) * (p + 1));
    net_free(net);
    free(net);
}

static void case_38_every_format(const struct setting *setting)
{
    static const struct format formats[] = {
        {LOCKSTEP_FLOAT64, LOCKSTEP_WIRE_SAME, 0, LOCKSTEP_GRADIENT_MEAN},
        {LOCKSTEP_FLOAT32, LOCKSTEP_WIRE_BFLOAT16, 0, LOCKSTEP_GRADIENT_MEAN},
        {LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_SAME, 0, LOCKSTEP_GRADIENT_MEAN},
        {LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_SAME, -4, LOCKSTEP_GRADIENT_MEAN},
        {LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_FLOAT32, 0, LOCKSTEP_GRADIENT_SUM},
        {LOCKSTEP_BFLOAT16, LOCKSTEP_WIRE_SAME, 0, LOCKSTEP_GRADIENT_SUM},
        {LOCKSTEP_BFLOAT16, LOCKSTEP_WIRE_FLOAT32, 0, LOCKSTEP_GRADIENT_MEAN},
    };
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++)
        run(setting, format_body, (void *)(uintptr_t)&formats[f]);
}

// ---- Replicas ----------------------------------------------------------------------------------

// The mean over the replicas is deferred. All replicas get the result, even in a step whose result
// is 0.
static void replicas_body(struct rank *rank)
{
    struct net *net = calloc(1, sizeof(*net));
    net->dtype = LOCKSTEP_FLOAT32;
    net->replicas = 2;
    net_make(rank, LOCKSTEP_GRADIENT_MEAN, net);
    step_together(rank, net, 12, 1);
    step_apart(rank, net, 12, 3);
    for (uint32_t r = 0; r < 2; r++)
        expect(rank, net, r, 1, 24);
    begin(rank, 1);
    for (uint32_t i = 0; i < 2 * COUNT; i++)
        set(net, i / COUNT, i % COUNT, 0);
    if (rank->rank > 0) {
        key(rank, net, true);
        call(rank, net, 0, 6, 3);
    }
    trainer_end(rank);
    for (uint32_t r = 0; r < 2; r++)
        expect(rank, net, r, 1, 0);
    net_free(net);
    free(net);
}

static void case_38_replicas(const struct setting *setting)
{
    run(setting, replicas_body, NULL);
}

// ---- Separate calls ----------------------------------------------------------------------------

// The plan is net 1, key, net 2. The wait for key defers the first call of net, and the second call
// of the same step carries it.
static void separate_body(struct rank *rank)
{
    const double others = rank->world_size - 1;
    struct net *net = calloc(1, sizeof(*net));
    net->dtype = LOCKSTEP_FLOAT32;
    net->separate = true;
    net_make(rank, LOCKSTEP_GRADIENT_MEAN, net);
    for (int i = 0; i < 3; i++) {
        begin(rank, 1);
        if (i > 0 && rank->rank > 0) {
            key(rank, net, true);
            call(rank, net, 0, 10, 3);
        } else {
            call(rank, net, 0, 10, 3);
            key(rank, net, i == 0);
        }
        call(rank, net, 1, 4, 3);
        trainer_end(rank);
        for (uint32_t p = 0; p < COUNT; p++) {
            expect(rank, net, 0, p, 10 * (p + 1));
            expect(rank, net, 1, p,
                   (i == 0 ? 4 : (4 + others * (10 + 4)) / (1 + 2 * others)) * (p + 1));
        }
    }
    net_free(net);
    free(net);
}

static void case_38_separate_calls(const struct setting *setting)
{
    run(setting, separate_body, NULL);
}

// The plan has one call of net, behind key. A step makes two calls of net before key: the first is
// ready but has to wait for key, and the second is deferred. The first call does not carry the
// second one, which was deferred later; the first call of the next step does.
static void parked_body(struct rank *rank)
{
    struct net *net = calloc(1, sizeof(*net));
    net->dtype = LOCKSTEP_FLOAT32;
    net->separate = true;
    net_make(rank, LOCKSTEP_GRADIENT_MEAN, net);
    begin(rank, 1);
    key(rank, net, false);
    call(rank, net, 0, 10, 3);
    trainer_end(rank);
    for (int i = 0; i < 2; i++) {
        begin(rank, 1);
        call(rank, net, 0, 10, 3);
        call(rank, net, 1, 4, 3);
        key(rank, net, false);
        trainer_end(rank);
        for (uint32_t p = 0; p < COUNT; p++) {
            expect(rank, net, 0, p, (i == 0 ? 10 : 7) * (p + 1));
            expect(rank, net, 1, p, 0);
        }
    }
    net_free(net);
    free(net);
}

static void case_40_behind_a_parked_slot(const struct setting *setting)
{
    run(setting, parked_body, NULL);
}

// ---- Shared parameters -------------------------------------------------------------------------

// The first parameter of "tied" is that of "own". Its gradient is complete when both modules were
// called.
struct tied {
    struct trained_module modules[3]; // "own", "tied", and then "key".
};

static const uint64_t own_sizes[] = {40, 7};
static const uint64_t tied_sizes[] = {40, 90};

static void tie(struct trained_module *module, struct lockstep_module_config *config)
{
    const struct trained_module *owner = module - 1;
    (void)config;
    module->parameters[0].data = owner->data[0];
    module->parameters[0].gradient = NULL;
    module->parameters[0].flags = LOCKSTEP_PARAMETER_SHARED;
    module->gradients[0] = owner->gradients[0];
}

static void tied_make(struct rank *rank, struct tied *tied)
{
    const struct module_shape shapes[] = {
        {.name = "own", .count = 2, .elements = own_sizes},
        {.name = "tied", .count = 2, .elements = tied_sizes, .configure = tie},
        {.name = "key", .count = KEY_COUNT, .elements = key_sizes}};
    for (uint32_t m = 0; m < 3; m++)
        trainer_make(rank, &shapes[m], m, &tied->modules[m]);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void tied_key(struct rank *rank, struct tied *tied, bool waits)
{
    struct trained_module *module = &tied->modules[2];
    lockstep_call *made;
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module->module, &made));
    for (uint32_t p = 0; p < KEY_COUNT; p++)
        RANK_OK(rank, lockstep_grad_ready(module->module, made, p, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(made));
    if (waits)
        RANK_OK(rank, lockstep_call_wait(made, LOCKSTEP_WAIT_FOREVER));
}

// Runs a step in which all gradients of both modules are `value`. With `gives_up` the rank first
// calls key and waits for it.
static void tied_step(struct rank *rank, struct tied *tied, float value, bool gives_up)
{
    begin(rank, 1);
    if (gives_up)
        tied_key(rank, tied, true);
    for (uint32_t m = 0; m < 2; m++) {
        struct trained_module *module = &tied->modules[m];
        for (uint32_t p = m; p < 2; p++) {
            for (uint64_t i = 0; i < module->shape.elements[p]; i++)
                ((float *)module->gradients[p])[i] = value;
        }
    }
    trainer_call(rank, &tied->modules[0]);
    trainer_call(rank, &tied->modules[1]);
    if (!gives_up)
        tied_key(rank, tied, false);
    trainer_end(rank);
}

static void tied_expect(struct rank *rank, const struct tied *tied, float wanted)
{
    for (uint32_t m = 0; m < 2; m++) {
        const struct trained_module *module = &tied->modules[m];
        for (uint32_t p = m; p < 2; p++) {
            for (uint64_t i = 0; i < module->shape.elements[p]; i++) {
                const float found = ((const float *)module->gradients[p])[i];
                RANK_TRUE(rank, found >= wanted && found <= wanted);
            }
        }
    }
}

static void shared_body(struct rank *rank)
{
    const float others = (float)(rank->world_size - 1);
    struct tied *tied = calloc(1, sizeof(*tied));
    tied_make(rank, tied);
    tied_step(rank, tied, 12, false);
    tied_expect(rank, tied, 12);
    tied_step(rank, tied, rank->rank > 0 ? 24 : 12, rank->rank > 0);
    tied_expect(rank, tied, 12);
    RANK_EQUAL(rank, trainer_report(rank).deferred > 0, rank->rank > 0);
    tied_step(rank, tied, 6, false);
    tied_expect(rank, tied, (6 + others * (24 + 6)) / (1 + 2 * others));
    for (uint32_t m = 0; m < 3; m++)
        trainer_free(&tied->modules[m]);
    free(tied);
}

static void case_38_shared_parameters(const struct setting *setting)
{
    run(setting, shared_body, NULL);
}

// ---- Unused parameters, and weights ------------------------------------------------------------

// An unused gradient of a deferred call counts as zeros, with its weight, in the later step.
static void unused_body(struct rank *rank)
{
    const double others = rank->world_size - 1;
    struct net *net = calloc(1, sizeof(*net));
    net->dtype = LOCKSTEP_FLOAT32;
    net_make(rank, LOCKSTEP_GRADIENT_MEAN, net);
    step_together(rank, net, 12, 1);
    step_apart(rank, net, 12, 1);
    expect(rank, net, 0, 0, 12);
    expect(rank, net, 0, 1, 24);
    step_together(rank, net, 6, 1);
    expect(rank, net, 0, 0, (6 + others * (24 + 6)) / (1 + 2 * others));
    expect(rank, net, 0, 1, 2 * (6 + others * 6) / (1 + 2 * others));
    net_free(net);
    free(net);
}

static void case_38_unused_parameters(const struct setting *setting)
{
    run(setting, unused_body, NULL);
}

// A step in which all ranks have weight 0 carries deferred contributions. Its result is the mean of
// these contributions.
static void weightless_body(struct rank *rank)
{
    struct net *net = calloc(1, sizeof(*net));
    net->dtype = LOCKSTEP_FLOAT32;
    net_make(rank, LOCKSTEP_GRADIENT_MEAN, net);
    step_together(rank, net, 12, 1);
    step_apart(rank, net, 12, 3);
    begin(rank, 0);
    call(rank, net, 0, 99, 3);
    trainer_end(rank);
    for (uint32_t p = 0; p < COUNT; p++)
        expect(rank, net, 0, p, 24 * (p + 1));
    net_free(net);
    free(net);
}

static void case_38_carried_without_a_weight(const struct setting *setting)
{
    run(setting, weightless_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_38_every_format", case_38_every_format, NULL},
        {"case_38_replicas", case_38_replicas, NULL},
        {"case_38_separate_calls", case_38_separate_calls, NULL},
        {"case_40_behind_a_parked_slot", case_40_behind_a_parked_slot, NULL},
        {"case_38_shared_parameters", case_38_shared_parameters, NULL},
        {"case_38_unused_parameters", case_38_unused_parameters, NULL},
        {"case_38_carried_without_a_weight", case_38_carried_without_a_weight, NULL},
    };
    return stamp_run_whole("reducer: deferred kinds", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
