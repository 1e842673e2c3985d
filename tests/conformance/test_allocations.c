// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the step path allocates nothing. The test runs several windows of 50 steps and
// expects no allocation on any rank. It replaces malloc, calloc, realloc and the aligned variants
// (interposer.h), and counts allocations on two kinds of threads: trainers, which set `kind`
// themselves, and engines, which have a known thread name. Other threads are not counted: the
// threads of the control stream and of gRPC send a heartbeat every second.
//
// A rank allocates for each connection that it accepts. The coordinator connects to each data port
// when the world has formed, at any time on a busy machine. So the test also replaces setsockopt,
// with which such a thread prepares each connection, and allows as many windows with allocations as
// connections came.
//
// Under a sanitizer, whose allocator cannot be replaced, the test is skipped.

#include "tests/support/interposer.h"
#include "tests/support/trainer.h"

#include <execinfo.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define WARM_STEPS 4 // One or two learning steps, then steps with a plan.
#define COUNTED_STEPS 50 // Steps of a window.
#define WINDOWS 10

#if !INTERPOSER

static void steps_allocate_nothing(void **state)
{
    (void)state;
    print_message("not under a sanitizer: its allocator is in the place of ours\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_allocate_nothing)};
    return cmocka_run_group_tests_name("allocations", tests, NULL, NULL);
}

#else

// ---- Counting ----------------------------------------------------------------------------------

enum thread_kind {
    UNKNOWN = 0,
    TRAINER,
    ENGINE,
    OTHER
};

static atomic_bool counting;
static atomic_uint allocated[OTHER + 1];
static _Thread_local enum thread_kind kind;

// The callers of the first allocation of a window, for the message of a failure.
static void *frames[24];
static atomic_int frame_count;

// Returns the kind of the calling thread; the thread's first counted allocation determines it.
static enum thread_kind thread_kind_of_self(void)
{
    char name[16] = "";
    if (kind != UNKNOWN)
        return kind;
    pthread_getname_np(pthread_self(), name, sizeof(name));
    kind = strcmp(name, "lockstep-engine") == 0 ? ENGINE : OTHER;
    return kind;
}

static bool allocation_fails(const void *caller)
{
    (void)caller;
    if (!atomic_load_explicit(&counting, memory_order_relaxed) || thread_kind_of_self() == OTHER)
        return false;
    if (atomic_fetch_add(&allocated[kind], 1) == 0)
        atomic_store(&frame_count, backtrace(frames, sizeof(frames) / sizeof(*frames)));
    return false;
}

static void count(void)
{
    backtrace(frames, 1); // The first call of a process allocates.
    memset(allocated, 0, sizeof(allocated));
    atomic_store(&counting, true);
}

static atomic_int accepted; // Connections, by all ranks.

INTERPOSED int setsockopt(int fd, int level, int option, const void *value, socklen_t size)
{
    if (level == IPPROTO_TCP && option == TCP_NODELAY && thread_kind_of_self() != OTHER)
        atomic_fetch_add(&accepted, 1);
    return (int)syscall(SYS_setsockopt, fd, level, option, value, size);
}

// ---- Steps -------------------------------------------------------------------------------------

// The largest parameter needs credit. It is left out where single bytes travel.
static const uint64_t sizes[12] = {5, 130, 1, 77, 300, 3, 64, 0, 12, 7, 200, 4500};

// Two more modules: module c with replicas and separate calls, and module d, which shares the first
// parameter of module a. One module cannot have both features.
#define SMALL 6
// The first size is that of the shared parameter.
static const uint64_t small_sizes[SMALL] = {5, 3, 1, 7, 2, 0};

struct small {
    struct trained_module net; // The first member: configure gets this one.
    const struct trained_module *owner;
    struct lockstep_parameter parameters[2 * SMALL];
    float data[SMALL][30];
    float gradients[4][SMALL][30]; // Gradients of each replica in each call.
};

static void replicate(struct trained_module *module, struct lockstep_module_config *config)
{
    struct small *small = (struct small *)module;
    for (uint32_t i = 0; i < 2 * SMALL; i++) {
        small->parameters[i] = module->parameters[i % SMALL];
        if (i < SMALL)
            continue;
        small->parameters[i].data = small->data[i % SMALL];
        small->parameters[i].gradient = NULL;
    }
    config->parameters = small->parameters;
    config->replicas = 2;
    config->separate_calls = 1;
}

static void share(struct trained_module *module, struct lockstep_module_config *config)
{
    const struct small *small = (const struct small *)module;
    (void)config;
    module->parameters[0].data = small->owner->data[0];
    module->parameters[0].gradient = NULL;
    module->parameters[0].flags = LOCKSTEP_PARAMETER_SHARED;
}

static void replicated_calls(struct rank *rank, struct small *small)
{
    lockstep_call *call;
    for (uint32_t c = 0; c < 2; c++) {
        RANK_OK(rank, lockstep_call_begin(small->net.module, &call));
        for (uint32_t i = 0; i < 2 * SMALL; i++)
            RANK_OK(rank, lockstep_replica_ready(small->net.module, call, i % 2, i / 2,
                                                 small->gradients[2 * c + i % 2][i / 2], NULL));
        RANK_OK(rank, lockstep_call_end(call));
    }
}

struct trained {
    struct trained_module modules[2];
    struct small replicated;
    struct small sharing;
};

// Calls a module and waits for the call.
static void waited_call(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < module->shape.count; i++)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
}

// A step without the checks of trainer_step_known.
static void plain_step(struct rank *rank, struct trained *trained)
{
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_counter_add(rank->session, "samples", 3));
    for (uint32_t m = 0; m < 2; m++)
        trainer_call(rank, &trained->modules[(m + rank->rank) % 2]);
    replicated_calls(rank, &trained->replicated);
    trainer_call(rank, &trained->sharing.net);
    trainer_end(rank);
}

// Parameter 3 of the second module is frozen in every other step. The step moves this parameter to
// the end of the order and reduces shape.count, so that trainer_call does not report it.
static void changing_step(struct rank *rank, struct trained *trained)
{
    struct trained_module *changing = &trained->modules[1];
    const uint32_t parameter = 3;
    const bool frozen = atomic_load(&rank->step) % 2 == 0;
    const uint32_t count = changing->shape.count;
    changing->order[count - 1 - parameter] = changing->order[count - 1];
    changing->order[count - 1] = parameter;
    RANK_OK(rank, lockstep_module_freeze(changing->module, &parameter, 1, frozen));
    changing->shape.count -= frozen;
    plain_step(rank, trained);
    changing->shape.count = count;
    changing->order[count - 1] = changing->order[count - 1 - parameter];
    changing->order[count - 1 - parameter] = parameter;
}

// In every other step the last rank waits for the second module first, which defers the rest.
static void deferred_step(struct rank *rank, struct trained *trained)
{
    const bool waits = rank->rank + 1 == rank->world_size && atomic_load(&rank->step) % 2 == 1;
    trainer_begin(rank, NULL);
    if (waits)
        waited_call(rank, &trained->modules[1]);
    trainer_call(rank, &trained->modules[0]);
    if (!waits)
        trainer_call(rank, &trained->modules[1]);
    replicated_calls(rank, &trained->replicated);
    trainer_call(rank, &trained->sharing.net);
    trainer_end(rank);
    RANK_EQUAL(rank, trainer_report(rank).deferred > 0, waits);
}

// The context of tests that run only a few windows, and what their steps do. NULL: plain steps.
enum few {
    FEW,
    FEW_AND_CHANGING,
    FEW_AND_DEFERRED,
};

static void one_step(struct rank *rank, struct trained *trained)
{
    const enum few *few = rank->context;
    if (few && *few == FEW_AND_CHANGING)
        changing_step(rank, trained);
    else if (few && *few == FEW_AND_DEFERRED)
        deferred_step(rank, trained);
    else
        plain_step(rank, trained);
}

// Runs a window. Returns true if neither trainers nor engines allocated.
static bool counted_window(struct rank *rank, struct trained *trained)
{
    bool none;
    rank_meet(rank);
    if (rank->rank == 0)
        count();
    rank_meet(rank);
    for (int i = 0; i < COUNTED_STEPS; i++)
        one_step(rank, trained);
    rank_meet(rank);
    atomic_store(&counting, false);
    none = atomic_load(&allocated[TRAINER]) == 0 && atomic_load(&allocated[ENGINE]) == 0;
    if (!none && rank->rank == 0) {
        fprintf(stderr, "trainers allocated %u times, engines %u times:\n",
                atomic_load(&allocated[TRAINER]), atomic_load(&allocated[ENGINE]));
        backtrace_symbols_fd(frames, atomic_load(&frame_count), STDERR_FILENO);
    }
    rank_meet(rank);
    return none;
}

// Buffers of three policies; the buffer with policy sum travels only in every other step.
static void register_buffers(struct rank *rank, float (*data)[8])
{
    static const int64_t eight[] = {8};
    static const char *const names[] = {"a", "b", "c", "d"};
    static const lockstep_buffer_policy policies[] = {
        LOCKSTEP_BUFFER_MEAN, LOCKSTEP_BUFFER_MEAN, LOCKSTEP_BUFFER_SUM, LOCKSTEP_BUFFER_BROADCAST};
    struct lockstep_buffer buffers[4];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    for (uint64_t b = 0; b < 4; b++)
        buffers[b] = (struct lockstep_buffer){.name = names[b],
                                              .dtype = LOCKSTEP_FLOAT32,
                                              .dims = 1,
                                              .shape = eight,
                                              .data = data[b],
                                              .policy = policies[b],
                                              .every = b == 2 ? 2 : 0};
    config.name = "buffers";
    config.buffers = buffers;
    config.buffer_count = 4;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
}

// Trains four modules and counts allocations. A context (enum few) reduces the number of windows.
static void counted_body(struct rank *rank)
{
    const bool torn = rank->setting->torn_bytes > 0 && rank->setting->torn_bytes < 100;
    const struct module_shape a = {.name = "a", .count = torn ? 11 : 12, .elements = sizes};
    const struct module_shape b = {.name = "b",
                                   .count = 6,
                                   .elements = sizes,
                                   .scattered = true,
                                   .wire = LOCKSTEP_WIRE_BFLOAT16};
    const struct module_shape c = {.name = "c",
                                   .count = SMALL,
                                   .elements = small_sizes,
                                   .calls_per_step = 2,
                                   .configure = replicate};
    const struct module_shape d = {
        .name = "d", .count = SMALL, .elements = small_sizes, .configure = share};
    struct trained trained = {.sharing.owner = &trained.modules[0]};
    float buffers[4][8] = {{0}};
    int with_allocations = 0;
    int accepted_at_start;
    kind = TRAINER;
    trainer_make(rank, &a, 0, &trained.modules[0]);
    trainer_make(rank, &b, 1, &trained.modules[1]);
    trainer_make(rank, &c, 2, &trained.replicated.net);
    trainer_make(rank, &d, 3, &trained.sharing.net);
    register_buffers(rank, buffers);
    RANK_OK(rank, lockstep_start(rank->session));
    accepted_at_start = atomic_load(&accepted);
    for (int i = 0; i < WARM_STEPS; i++)
        one_step(rank, &trained);
    for (int window = 0; window < (torn ? 1 : rank->context ? 2 : WINDOWS); window++) {
        if (!counted_window(rank, &trained))
            RANK_TRUE(rank, ++with_allocations <= atomic_load(&accepted) - accepted_at_start);
    }
    trainer_free(&trained.modules[0]);
    trainer_free(&trained.modules[1]);
    trainer_free(&trained.replicated.net);
    trainer_free(&trained.sharing.net);
}

static void small_caps(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = 2000;
    config->bucket_last_bytes = 500;
}

static void steps_allocate_nothing(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = small_caps, .body = counted_body};
    ranks_run_test(&test);
}

static void uneven_too(struct rank *rank, struct lockstep_config *config)
{
    small_caps(rank, config);
    config->uneven = LOCKSTEP_UNEVEN_ALL;
}

static void uneven_steps_allocate_nothing(const struct setting *setting)
{
    enum few few = FEW;
    const struct cluster_test test = {
        .setting = setting, .configure = uneven_too, .body = counted_body, .context = &few};
    ranks_run_test(&test);
}

// A change between known sets of trained parameters allocates nothing.
static void known_sets_allocate_nothing(const struct setting *setting)
{
    enum few few = FEW_AND_CHANGING;
    const struct cluster_test test = {
        .setting = setting, .configure = small_caps, .body = counted_body, .context = &few};
    ranks_run_test(&test);
}

static void zero_defer(struct rank *rank, struct lockstep_config *config)
{
    small_caps(rank, config);
    config->order = LOCKSTEP_ORDER_ZERO_DEFER;
}

// Deferring contributions and carrying them to the next step allocates nothing.
static void deferred_steps_allocate_nothing(const struct setting *setting)
{
    enum few few = FEW_AND_DEFERRED;
    const struct cluster_test test = {
        .setting = setting, .configure = zero_defer, .body = counted_body, .context = &few};
    ranks_run_test(&test);
}

// Checks the counting itself.
static void counting_counts(const struct setting *setting)
{
    void *volatile memory;
    (void)setting;
    kind = TRAINER;
    count();
    memory = malloc(100);
    memory = realloc(memory, 10000);
    atomic_store(&counting, false);
    free(memory);
    kind = UNKNOWN;
    assert_int_equal(atomic_load(&allocated[TRAINER]), 2);
}

int main(void)
{
    static const uint32_t one[] = {1, 0};
    static const uint32_t two[] = {2, 0};
    static const struct stamp stamps[] = {
        {"counting_counts", counting_counts, one},
        {"steps_allocate_nothing", steps_allocate_nothing, NULL},
        {"uneven_steps_allocate_nothing", uneven_steps_allocate_nothing, NULL},
        {"known_sets_allocate_nothing", known_sets_allocate_nothing, two},
        {"deferred_steps_allocate_nothing", deferred_steps_allocate_nothing, two},
    };
    return stamp_run("allocations", stamps, sizeof(stamps) / sizeof(stamps[0]));
}

#endif
