// SPDX-License-Identifier: Apache-2.0
//
// Conformance: several replicas of a module in one process. Lockstep adds their gradients before
// they travel, and all replicas get the result. Case numbers are those of the list of cases for
// reducers.

#include "base/thread.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 4
#define REPLICAS 4 // Maximum number of replicas.
#define LARGEST 300
#define ALL 0xfu

static const uint64_t sizes[COUNT] = {40, 1, LARGEST, 17};

struct replicated {
    struct trained_module net; // The first member: configure gets this one.
    uint32_t replicas;
    bool separate;
    bool unregistered; // True if further replicas pass their gradients with each report.
    lockstep_abort_policy on_abort;
    struct lockstep_parameter parameters[REPLICAS * COUNT];
    float data[REPLICAS][COUNT][LARGEST]; // Values of the further replicas.
    float gradients[REPLICAS][COUNT][LARGEST]; // Gradients of the further replicas.
};

static void replicated_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static uint64_t replicated_run(const struct setting *setting, void (*body)(struct rank *rank),
                               void *context)
{
    const struct cluster_test test = {
        .setting = setting, .configure = replicated_configure, .body = body, .context = context};
    return ranks_run_test(&test);
}

static void replicate(struct trained_module *module, struct lockstep_module_config *config)
{
    struct replicated *net = (struct replicated *)module;
    for (uint32_t i = 0; i < net->replicas * COUNT; i++) {
        const uint32_t r = i / COUNT;
        const uint32_t p = i % COUNT;
        net->parameters[i] = module->parameters[p];
        if (r == 0)
            continue;
        net->parameters[i].data = net->data[r][p];
        net->parameters[i].gradient = net->unregistered ? NULL : net->gradients[r][p];
    }
    config->parameters = net->parameters;
    config->replicas = net->replicas;
    config->separate_calls = net->separate;
    config->on_abort = net->on_abort;
}

static void replicated_make(struct rank *rank, struct module_shape shape, struct replicated *net)
{
    shape.name = "net";
    shape.count = COUNT;
    shape.elements = sizes;
    shape.configure = replicate;
    trainer_make(rank, &shape, 0, &net->net);
    RANK_OK(rank, lockstep_start(rank->session));
}

// Number of replicas of a rank. It is a power of two, so the division by it rounds nothing.
static uint32_t replicas_of(uint32_t rank)
{
    return 1u << rank % 3;
}

static float *place(struct replicated *net, uint32_t replica, uint32_t parameter)
{
    return replica == 0 ? net->net.gradients[parameter] : net->gradients[replica][parameter];
}

static int64_t known(const struct replicated *net, uint32_t rank, uint64_t step, uint32_t replica,
                     uint32_t parameter, uint64_t element)
{
    return trainer_known(&net->net, rank + 11 * replica, step, parameter, element);
}

static void fill(struct rank *rank, struct replicated *net)
{
    for (uint32_t r = 0; r < net->replicas; r++) {
        for (uint32_t p = 0; p < COUNT; p++) {
            for (uint64_t i = 0; i < sizes[p]; i++)
                place(net, r, p)[i] =
                    (float)known(net, rank->rank, atomic_load(&rank->step), r, p, i);
        }
    }
}

static void report(struct rank *rank, struct replicated *net, uint32_t replica, uint32_t parameter)
{
    void *gradient = net->unregistered && replica > 0 ? place(net, replica, parameter) : NULL;
    if (replica == 0)
        RANK_OK(rank, lockstep_grad_ready(net->net.module, NULL, parameter, NULL, NULL));
    else
        RANK_OK(rank,
                lockstep_replica_ready(net->net.module, NULL, replica, parameter, gradient, NULL));
}

// The replicas of a rank that report a parameter: bit r of the result stands for replica r.
typedef uint64_t reports(uint32_t rank, uint32_t parameter, uint64_t step);

static uint64_t all_report(uint32_t rank, uint32_t parameter, uint64_t step)
{
    (void)rank, (void)parameter, (void)step;
    return ALL;
}

// Calls the module; the order of the reports depends on the seed.
static void backward(struct rank *rank, struct replicated *net, reports *reports_of, uint64_t seed)
{
    uint32_t order[REPLICAS * COUNT];
    lockstep_call *call;
    for (uint32_t i = 0; i < net->replicas * COUNT; i++)
        order[i] = net->replicas * COUNT - 1 - i;
    if (seed > 0)
        trainer_shuffle(order, net->replicas * COUNT, seed);
    RANK_OK(rank, lockstep_call_begin(net->net.module, &call));
    for (uint32_t i = 0; i < net->replicas * COUNT; i++) {
        const uint32_t r = order[i] / COUNT;
        const uint32_t p = order[i] % COUNT;
        if ((reports_of(rank->rank, p, atomic_load(&rank->step)) >> r & 1) != 0)
            report(rank, net, r, p);
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// The contribution of rank r: the exact sum or mean over its replicas. A replica without a report
// counts as zeros.
static double contributed(const struct replicated *net, uint32_t r, uint64_t step,
                          uint32_t parameter, uint64_t element, reports *reports_of)
{
    const uint64_t reported = reports_of(r, parameter, step);
    int64_t sum = 0;
    for (uint32_t replica = 0; replica < replicas_of(r); replica++) {
        if ((reported >> replica & 1) != 0)
            sum += known(net, r, step, replica, parameter, element);
    }
    if (net->net.shape.kind == LOCKSTEP_GRADIENT_SUM)
        return (double)sum;
    return (double)sum / replicas_of(r);
}

static bool reported_anywhere(const struct rank *rank, uint32_t parameter, reports *reports_of)
{
    for (uint32_t r = 0; r < rank->world_size; r++) {
        const uint64_t mask = (1u << replicas_of(r)) - 1;
        if ((reports_of(r, parameter, atomic_load(&rank->step)) & mask) != 0)
            return true;
    }
    return false;
}

// Checks that all replicas hold the mean. A gradient that no replica of any rank reported must be
// unchanged. The digest has the first replica only, because ranks have different numbers of
// replicas.
static void expect(struct rank *rank, struct replicated *net, reports *reports_of)
{
    const uint64_t step = atomic_load(&rank->step);
    for (uint32_t i = 0; i < net->replicas * COUNT; i++) {
        const uint32_t replica = i / COUNT;
        const uint32_t p = i % COUNT;
        const bool used = reported_anywhere(rank, p, reports_of);
        for (uint64_t e = 0; e < sizes[p]; e++) {
            double sum = 0;
            for (uint32_t r = 0; r < rank->world_size; r++)
                sum += contributed(net, r, step, p, e, reports_of);
            const float mean = (float)sum / (float)rank->world_size;
            const float own = (float)known(net, rank->rank, step, replica, p, e);
            const float wanted = used ? mean : own;
            const float found = place(net, replica, p)[e];
            if (!(found >= wanted && found <= wanted))
                rank_fail(rank, __FILE__, __LINE__,
                          "step %" PRIu64 ": replica %" PRIu32 " parameter %" PRIu32
                          " element %" PRIu64 " is %g, not %g",
                          step, replica, p, e, (double)found, (double)wanted);
        }
        if (used && replica == 0)
            rank_digest(rank, place(net, 0, p), sizes[p] * sizeof(float));
    }
}

// ---- All replicas report -----------------------------------------------------------------------

static void steps(struct rank *rank, struct replicated *net, reports *reports_of)
{
    for (uint64_t i = 0; i < 5; i++) {
        trainer_begin(rank, NULL);
        fill(rank, net);
        backward(rank, net, reports_of, i * (rank->rank + 1));
        trainer_end(rank);
        expect(rank, net, reports_of);
    }
}

// All replicas report all gradients. The context is the kind of gradient.
static void all_body(struct rank *rank)
{
    const lockstep_gradient_kind *kind = rank->context;
    struct replicated net = {.replicas = replicas_of(rank->rank)};
    replicated_make(rank, (struct module_shape){.kind = *kind}, &net);
    steps(rank, &net, all_report);
    trainer_free(&net.net);
}

static void replicas_are_averaged(const struct setting *setting)
{
    lockstep_gradient_kind kind = LOCKSTEP_GRADIENT_MEAN;
    replicated_run(setting, all_body, &kind);
}

static void replicas_are_added_up(const struct setting *setting)
{
    lockstep_gradient_kind kind = LOCKSTEP_GRADIENT_SUM;
    replicated_run(setting, all_body, &kind);
}

// ---- Case 38: all replicas have what was waited for --------------------------------------------

// After a wait all replicas hold the result. If the trainer then changes a gradient, the end of the
// step does not overwrite it.
static void waited_body(struct rank *rank)
{
    struct replicated net = {.replicas = replicas_of(rank->rank)};
    const uint32_t last = net.replicas - 1;
    replicated_make(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_MEAN}, &net);
    for (uint64_t i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        fill(rank, &net);
        backward(rank, &net, all_report, i * (rank->rank + 1));
        RANK_OK(rank, lockstep_call_wait(&net.net.module->calls[0], LOCKSTEP_WAIT_FOREVER));
        expect(rank, &net, all_report);
        place(&net, last, 0)[7] = 1e6f;
        RANK_OK(rank, lockstep_call_wait(&net.net.module->calls[0], LOCKSTEP_WAIT_FOREVER));
        trainer_end(rank);
        RANK_TRUE(rank, place(&net, last, 0)[7] >= 1e6f);
    }
    trainer_free(&net.net);
}

static void case_38_replicas_are_waited_for(const struct setting *setting)
{
    replicated_run(setting, waited_body, NULL);
}

// ---- Some report -------------------------------------------------------------------------------

// Only replica 0 of each rank reports p0, only replica 1 reports p1, no replica reports p2 in even
// steps, and all replicas report p3.
static uint64_t some_report(uint32_t rank, uint32_t parameter, uint64_t step)
{
    (void)rank;
    switch (parameter) {
    case 0:
        return 0x1;
    case 1:
        return 0x2;
    case 2:
        return step % 2 == 0 ? 0 : ALL;
    default:
        return ALL;
    }
}

static void some_body(struct rank *rank)
{
    struct replicated net = {.replicas = replicas_of(rank->rank)};
    replicated_make(rank, (struct module_shape){.unused = LOCKSTEP_UNUSED_ACCEPT}, &net);
    steps(rank, &net, some_report);
    trainer_free(&net.net);
}

static void case_13_some_replicas_report(const struct setting *setting)
{
    replicated_run(setting, some_body, NULL);
}

// A parameter that no replica of a rank reports counts as one unused gradient of the rank.
static uint64_t not_2_on_rank_1(uint32_t rank, uint32_t parameter, uint64_t step)
{
    (void)step;
    return rank == 1 && parameter == 2 ? 0 : ALL;
}

static void strict_body(struct rank *rank)
{
    struct replicated net = {.replicas = replicas_of(rank->rank)};
    replicated_make(rank, (struct module_shape){.unused = LOCKSTEP_UNUSED_ERROR}, &net);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        fill(rank, &net);
        backward(rank, &net, not_2_on_rank_1, 0);
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, ": 1 gradient was not produced by the backward pass:"
                        "\n  module 'net' parameter 'p2' on rank 1");
        expect(rank, &net, not_2_on_rank_1);
    }
    trainer_free(&net.net);
}

static void case_14_unused_in_all_replicas(const struct setting *setting)
{
    replicated_run(setting, strict_body, NULL);
}

// Further replicas pass their gradients with their reports. A replica that does not report a
// gradient has no memory for its mean, which is an error.
static void given_body(struct rank *rank)
{
    struct replicated net = {.replicas = 2, .unregistered = true};
    replicated_make(rank, (struct module_shape){.unused = LOCKSTEP_UNUSED_ACCEPT}, &net);
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        fill(rank, &net);
        backward(rank, &net, i % 2 == 0 ? all_report : some_report, 0);
        RANK_STATUS(rank, i % 2 == 0 ? LOCKSTEP_OK : LOCKSTEP_E_UNUSED,
                    lockstep_step_end(rank->session, NULL));
        if (i % 2 != 0)
            RANK_SAYS(rank, "parameter 'p0' has a mean from other ranks and no memory for it");
        for (uint64_t e = 0; e < sizes[3]; e++)
            RANK_TRUE(rank, place(&net, 0, 3)[e] >= place(&net, 1, 3)[e] &&
                                place(&net, 0, 3)[e] <= place(&net, 1, 3)[e]);
        rank_digest(rank, place(&net, 1, 3), sizes[3] * sizeof(float));
    }
    trainer_free(&net.net);
}

static void case_09_replicas_with_given_memory(const struct setting *setting)
{
    replicated_run(setting, given_body, NULL);
}

// ---- Case 27: the order of reports changes no bits ---------------------------------------------

// Noise, with random orders of reports. The context is the seed of the orders.
static void noise_body(struct rank *rank)
{
    const uint64_t seed = *(const uint64_t *)rank->context;
    struct replicated net = {.replicas = REPLICAS};
    replicated_make(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_MEAN}, &net);
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t state = i * 100 + rank->rank;
        trainer_begin(rank, NULL);
        for (uint32_t at = 0; at < REPLICAS * COUNT; at++) {
            for (uint64_t e = 0; e < sizes[at % COUNT]; e++)
                place(&net, at / COUNT, at % COUNT)[e] =
                    (float)(int64_t)trainer_random(&state) / (float)(1 + trainer_random(&state));
        }
        // Step 1 has the same order in all runs, so that all runs learn the same layout.
        backward(rank, &net, all_report, i == 0 ? 0 : seed + 31 * i + rank->rank);
        trainer_end(rank);
        trainer_digest(rank, &net.net);
    }
    trainer_free(&net.net);
}

static void case_27_replicas_report_in_any_order(const struct setting *setting)
{
    const struct setting ring = setting_on_ring(setting);
    uint64_t seed = 1;
    const uint64_t digest = replicated_run(&ring, noise_body, &seed);
    for (seed = 1000; seed <= 3000; seed += 1000)
        assert_true(replicated_run(&ring, noise_body, &seed) == digest);
}

// ---- Case 19: every replica has a thread -------------------------------------------------------

struct device {
    struct thread thread;
    struct replicated *net;
    uint32_t replica;
    atomic_uint refused;
};

static void device_run(void *argument)
{
    struct device *device = argument;
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t p = (i + device->replica) % COUNT;
        if (lockstep_replica_ready(device->net->net.module, NULL, device->replica, p, NULL, NULL) !=
            0)
            atomic_fetch_add(&device->refused, 1);
    }
}

static void threads_body(struct rank *rank)
{
    struct replicated net = {.replicas = replicas_of(rank->rank)};
    struct device devices[REPLICAS];
    lockstep_call *call;
    replicated_make(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_MEAN}, &net);
    for (int i = 0; i < 10; i++) {
        trainer_begin(rank, NULL);
        fill(rank, &net);
        RANK_OK(rank, lockstep_call_begin(net.net.module, &call));
        for (uint32_t r = 0; r < net.replicas; r++) {
            devices[r] = (struct device){.net = &net, .replica = r};
            RANK_EQUAL(rank, thread_start(&devices[r].thread, "device", device_run, &devices[r]),
                       0);
        }
        for (uint32_t r = 0; r < net.replicas; r++) {
            thread_join(&devices[r].thread);
            RANK_EQUAL(rank, atomic_load(&devices[r].refused), 0);
        }
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        expect(rank, &net, all_report);
    }
    trainer_free(&net.net);
}

static void case_19_replicas_from_threads(const struct setting *setting)
{
    replicated_run(setting, threads_body, NULL);
}

// ---- Given up, windows, declared unused, twice -------------------------------------------------

// Rank 1 aborts its call before its second replica has reported, so its buckets do not count.
static void given_up_body(struct rank *rank)
{
    struct replicated net = {.replicas = 2, .on_abort = LOCKSTEP_ABORT_ACCEPT};
    const uint64_t weights[] = {1, 0, 1};
    lockstep_call *call;
    replicated_make(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_MEAN}, &net);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&net.net, rank->rank, atomic_load(&rank->step));
        for (uint32_t p = 0; p < COUNT; p++)
            memcpy(place(&net, 1, p), place(&net, 0, p), sizes[p] * sizeof(float));
        if (rank->rank == 1) {
            RANK_OK(rank, lockstep_call_begin(net.net.module, &call));
            for (uint32_t p = 0; p < COUNT; p++)
                report(rank, &net, 0, p);
            RANK_OK(rank, lockstep_call_abort(call));
        } else {
            backward(rank, &net, all_report, 0);
        }
        trainer_end(rank);
        trainer_expect_mean(rank, &net.net, atomic_load(&rank->step), weights);
        for (uint32_t p = 0; p < COUNT; p++)
            RANK_EQUAL(rank, memcmp(place(&net, 0, p), place(&net, 1, p), sizes[p] * sizeof(float)),
                       0);
        trainer_digest(rank, &net.net);
    }
    trainer_free(&net.net);
}

static void case_30_replicas_given_up(const struct setting *setting)
{
    replicated_run(setting, given_up_body, NULL);
}

// In a window of two steps, the first replica reports in the first step only, and the other
// replicas report in the second step only.
static uint64_t others_report(uint32_t rank, uint32_t parameter, uint64_t step)
{
    (void)rank, (void)parameter, (void)step;
    return 0xe;
}

static uint64_t first_reports(uint32_t rank, uint32_t parameter, uint64_t step)
{
    (void)rank, (void)parameter, (void)step;
    return 0x1;
}

static void window_body(struct rank *rank)
{
    static const struct lockstep_step_options accumulating = {
        .struct_bytes = sizeof(accumulating), .weight = 1, .accumulate = 1};
    struct replicated net = {.replicas = replicas_of(rank->rank)};
    replicated_make(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_MEAN}, &net);
    for (uint64_t step = 1; step <= 4; step++) {
        atomic_store(&rank->step, step);
        fill(rank, &net);
        RANK_OK(rank, lockstep_step_begin(rank->session, &accumulating, NULL));
        backward(rank, &net, first_reports, 0);
        RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        trainer_begin(rank, NULL);
        backward(rank, &net, others_report, 0);
        trainer_end(rank);
        expect(rank, &net, all_report);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
    }
    trainer_free(&net.net);
}

static void case_21_replicas_in_a_window(const struct setting *setting)
{
    replicated_run(setting, window_body, NULL);
}

// A declaration as unused holds for all replicas. It fails for a parameter that a replica has
// already reported.
static void declared_body(struct rank *rank)
{
    const uint32_t declared[] = {2, 3};
    struct replicated net = {.replicas = 2};
    lockstep_call *call;
    replicated_make(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_MEAN}, &net);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        fill(rank, &net);
        RANK_OK(rank, lockstep_call_begin(net.net.module, &call));
        report(rank, &net, 1, 3);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_unused(call, declared, 2));
        RANK_SAYS(rank, "'p3' is declared unused after it was ready");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_replica_ready(net.net.module, call, 1, 2, NULL, NULL));
        RANK_SAYS(rank, "'p2' is ready after it was declared unused");
        for (uint32_t at = 0; at < 4; at++)
            report(rank, &net, at / 2, at % 2);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_replica_ready(net.net.module, call, 1, 1, NULL, NULL));
        RANK_SAYS(rank, "'p1' is ready twice");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_replica_ready(net.net.module, call, 2, 1, NULL, NULL));
        RANK_SAYS(rank, "module 'net' has replicas 0 to 1; 2 is none of them");
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).unused, rank->world_size);
    }
    trainer_free(&net.net);
}

static void case_18_declared_unused_in_all_replicas(const struct setting *setting)
{
    replicated_run(setting, declared_body, NULL);
}

// ---- Separate calls of replicas ----------------------------------------------------------------

static void separate_body(struct rank *rank)
{
    const uint32_t replicas = replicas_of(rank->rank);
    struct replicated net = {.replicas = replicas, .separate = true, .unregistered = true};
    lockstep_call *call;
    float second[REPLICAS][COUNT][LARGEST];
    replicated_make(rank, (struct module_shape){.calls_per_step = 2}, &net);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        fill(rank, &net);
        for (uint32_t at = 0; at < replicas * COUNT; at++)
            memcpy(second[at / COUNT][at % COUNT], place(&net, at / COUNT, at % COUNT),
                   sizes[at % COUNT] * sizeof(float));
        backward(rank, &net, all_report, 0);
        RANK_OK(rank, lockstep_call_begin(net.net.module, &call));
        for (uint32_t at = 0; at < replicas * COUNT; at++)
            RANK_OK(rank, lockstep_replica_ready(net.net.module, call, at / COUNT, at % COUNT,
                                                 second[at / COUNT][at % COUNT], NULL));
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        expect(rank, &net, all_report);
        for (uint32_t at = 0; at < replicas * COUNT; at++)
            RANK_EQUAL(rank,
                       memcmp(second[at / COUNT][at % COUNT], place(&net, 0, at % COUNT),
                              sizes[at % COUNT] * sizeof(float)),
                       0);
    }
    trainer_free(&net.net);
}

static void replicas_with_separate_calls(const struct setting *setting)
{
    replicated_run(setting, separate_body, NULL);
}

// ---- Values ------------------------------------------------------------------------------------

static void values_body(struct rank *rank)
{
    struct replicated net = {.replicas = replicas_of(rank->rank)};
    struct module_shape shape = {
        .name = "net", .count = COUNT, .elements = sizes, .configure = replicate};
    trainer_make(rank, &shape, 0, &net.net);
    for (uint32_t p = 0; p < COUNT; p++) {
        for (uint64_t e = 0; e < sizes[p]; e++) {
            ((float *)net.net.data[p])[e] = (float)(e + rank->rank);
            for (uint32_t r = 1; r < net.replicas; r++)
                net.data[r][p][e] = 77;
        }
    }
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < net.replicas * COUNT; i++) {
        const float *value = net.parameters[i].data;
        for (uint64_t e = 0; e < sizes[i % COUNT]; e++)
            RANK_EQUAL(rank, value[e], e);
    }
    trainer_free(&net.net);
}

static void replicas_start_from_the_root(const struct setting *setting)
{
    replicated_run(setting, values_body, NULL);
}

// ---- Alone -------------------------------------------------------------------------------------

static void alone_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct replicated net = {.replicas = 3};
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    replicated_make(rank, (struct module_shape){.kind = LOCKSTEP_GRADIENT_SUM}, &net);
    options.weight = 2;
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, &options);
        for (uint32_t r = 0; r < 3; r++)
            place(&net, r, 0)[39] = (float)(r + 1);
        backward(rank, &net, all_report, (uint64_t)i);
        if (i == 1)
            RANK_OK(rank, lockstep_call_wait(&net.net.module->calls[0], LOCKSTEP_WAIT_FOREVER));
        for (uint32_t r = 0; r < 3 && i == 1; r++)
            RANK_EQUAL(rank, place(&net, r, 0)[39], 3);
        trainer_end(rank);
        for (uint32_t r = 0; r < 3; r++)
            RANK_EQUAL(rank, place(&net, r, 0)[39], 3);
    }
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    trainer_free(&net.net);
}

static void replicas_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

// ---- What is refused ---------------------------------------------------------------------------

struct refused {
    const char *part;
    void (*spoil)(struct lockstep_parameter *copy);
};

static void other_name(struct lockstep_parameter *copy)
{
    copy->name = "v";
}

static void other_dtype(struct lockstep_parameter *copy)
{
    copy->dtype = LOCKSTEP_FLOAT64;
}

static void other_shape(struct lockstep_parameter *copy)
{
    static const int64_t five[] = {5};
    copy->shape = five;
}

static void other_flags(struct lockstep_parameter *copy)
{
    copy->flags = LOCKSTEP_PARAMETER_FROZEN;
}

static void other_count(struct lockstep_parameter *copy)
{
    copy->ready_count = 2;
}

static void no_data(struct lockstep_parameter *copy)
{
    copy->data = NULL;
}

static const struct refused refusals[] = {
    {"of replica 1 differs from that of replica 0 in its name", other_name},
    {"parameter 'w' of replica 1 differs from that of replica 0 in its dtype", other_dtype},
    {"in its shape", other_shape},
    {"in its flags", other_flags},
    {"in its ready_count", other_count},
    {"parameter 'w' of replica 1 has data NULL", no_data},
};

static void refused_body(struct rank *rank)
{
    static const int64_t four[] = {4};
    static float values[2][4];
    const struct lockstep_parameter good = {
        .name = "w", .dtype = LOCKSTEP_FLOAT32, .dims = 1, .shape = four, .data = values[0]};
    struct lockstep_parameter parameters[2];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = 1;
    config.replicas = 2;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        parameters[0] = parameters[1] = good;
        parameters[1].data = values[1];
        refusals[i].spoil(&parameters[1]);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_register(rank->session, &config, &module));
        RANK_SAYS(rank, refusals[i].part);
    }
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
}

static void replicas_are_refused_by_name(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = refused_body, .without_session = true};
    ranks_run_test(&test);
}

int main(void)
{
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"replicas_are_averaged", replicas_are_averaged, NULL},
        {"replicas_are_added_up", replicas_are_added_up, NULL},
        {"case_38_replicas_are_waited_for", case_38_replicas_are_waited_for, NULL},
        {"case_13_some_replicas_report", case_13_some_replicas_report, NULL},
        {"case_14_unused_in_all_replicas", case_14_unused_in_all_replicas, NULL},
        {"case_09_replicas_with_given_memory", case_09_replicas_with_given_memory, NULL},
        {"case_27_replicas_report_in_any_order", case_27_replicas_report_in_any_order, NULL},
        {"case_19_replicas_from_threads", case_19_replicas_from_threads, NULL},
        {"case_30_replicas_given_up", case_30_replicas_given_up, NULL},
        {"case_21_replicas_in_a_window", case_21_replicas_in_a_window, NULL},
        {"case_18_declared_unused_in_all_replicas", case_18_declared_unused_in_all_replicas, NULL},
        {"replicas_with_separate_calls", replicas_with_separate_calls, NULL},
        {"replicas_start_from_the_root", replicas_start_from_the_root, NULL},
        {"replicas_alone", replicas_alone, one},
        {"replicas_are_refused_by_name", replicas_are_refused_by_name, one},
    };
    return stamp_run("reducer: replicas", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
