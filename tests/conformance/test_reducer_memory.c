// SPDX-License-Identifier: Apache-2.0
//
// Conformance: gradient memory that the library allocates, and memory that moves. If the gradients
// lie in the order in which they travel, every bucket is one contiguous run, with the same bits as
// with any other placement. Case numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PARAMETERS 12

// Odd sizes, an empty parameter, and one larger than the cap of a bucket.
static const uint64_t sizes[PARAMETERS] = {5, 130, 1, 77, 301, 3, 64, 0, 13, 1000, 2, 31};
static const lockstep_dtype alternating[PARAMETERS] = {
    LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT32,
    LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32,
    LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32};

static void small_caps(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = 1000;
    config->bucket_last_bytes = 200;
}

static void memory_make(struct rank *rank, bool scattered, struct trained_module *module)
{
    const struct module_shape shape = {.name = "net",
                                       .count = PARAMETERS,
                                       .elements = sizes,
                                       .dtypes = alternating,
                                       .scattered = scattered};
    trainer_make(rank, &shape, 0, module);
    // All ranks make their gradients in the same order, which is not the order of definition.
    trainer_shuffle(module->order, PARAMETERS, 7);
}

static void expect_zeros(struct rank *rank, const struct trained_module *module)
{
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        for (uint64_t i = 0; i < sizes[p]; i++)
            RANK_TRUE(rank, trainer_value(module, p, i) <= 0 && trainer_value(module, p, i) >= 0);
    }
}

static void place(struct rank *rank, struct trained_module *module)
{
    RANK_OK(rank, lockstep_module_gradients(module->module, module->gradients, PARAMETERS));
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        const size_t size = alternating[p] == LOCKSTEP_FLOAT32 ? sizeof(float) : sizeof(double);
        RANK_TRUE(rank, module->gradients[p] != NULL);
        RANK_EQUAL(rank, (uintptr_t)module->gradients[p] % size, 0);
    }
    expect_zeros(rank, module);
}

static struct lockstep_report noise_step(struct rank *rank, struct trained_module *module)
{
    trainer_begin(rank, NULL);
    trainer_fill_noise(module, rank->rank, atomic_load(&rank->step));
    trainer_call(rank, module);
    trainer_end(rank);
    trainer_digest(rank, module);
    RANK_EQUAL(rank, trainer_report(rank).bytes_copied, 0);
    return trainer_report(rank);
}

// ---- Case 8 ------------------------------------------------------------------------------------

static void given_body(struct rank *rank)
{
    struct trained_module module;
    struct lockstep_report report;
    memory_make(rank, false, &module);
    place(rank, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    report = noise_step(rank, &module); // Buckets are in the reverse order of definition.
    RANK_TRUE(rank, report.learning == 1 && report.buckets > 4);
    RANK_EQUAL(rank, report.runs, report.buckets);
    report = noise_step(rank, &module); // Buckets are in the learned order.
    RANK_TRUE(rank, report.runs > report.buckets);
    place(rank, &module);
    for (int i = 0; i < 2; i++) {
        report = noise_step(rank, &module);
        RANK_EQUAL(rank, report.runs, report.buckets);
    }
    trainer_free(&module);
}

static void scattered_body(struct rank *rank)
{
    struct trained_module module;
    memory_make(rank, true, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        const struct lockstep_report report = noise_step(rank, &module);
        RANK_EQUAL(rank, report.runs, PARAMETERS - 1); // One parameter is empty.
    }
    trainer_free(&module);
}

static void case_08_given_memory_is_one_run_a_bucket(const struct setting *setting)
{
    const struct setting ring = setting_on_ring(setting);
    const struct cluster_test given = {
        .setting = &ring, .configure = small_caps, .body = given_body};
    const struct cluster_test scattered = {
        .setting = &ring, .configure = small_caps, .body = scattered_body};
    assert_true(ranks_run_test(&given) == ranks_run_test(&scattered));
}

// A step that does not use some parameters, and passes other memory for one gradient.
static void partly_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    float *const elsewhere = calloc(sizes[0], sizeof(float));
    void *own;
    memory_make(rank, false, &module);
    place(rank, &module);
    own = module.gradients[0];
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_step_known(rank, &module, 1);
        trainer_begin(rank, NULL);
        module.gradients[0] = elsewhere;
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        RANK_OK(rank, lockstep_grad_ready(module.module, call, 0, elsewhere, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        trainer_expect_parameter(rank, &module, atomic_load(&rank->step), 0, NULL);
        module.gradients[0] = own;
    }
    free(elsewhere);
    trainer_free(&module);
}

static void case_08_given_memory_partly_used(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = small_caps, .body = partly_body};
    ranks_run_test(&test);
}

// Frozen and ignored parameters get no gradient memory.
static void without_places_body(struct rank *rank)
{
    float data[4][8] = {{0}};
    static const int64_t eight[] = {8};
    static const char *const ignore[] = {"replay*"};
    struct lockstep_parameter parameters[4];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    static const char *const names[] = {"a", "frozen", "replay.buffer", "b"};
    lockstep_module *module;
    void *gradients[4];
    for (int p = 0; p < 4; p++)
        parameters[p] =
            (struct lockstep_parameter){.name = names[p],
                                        .dtype = LOCKSTEP_FLOAT32,
                                        .dims = 1,
                                        .shape = eight,
                                        .data = data[p],
                                        .flags = p == 1 ? LOCKSTEP_PARAMETER_FROZEN : 0};
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = 4;
    config.ignore = ignore;
    config.ignore_count = 1;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_module_gradients(module, gradients, 4));
    RANK_TRUE(rank, gradients[0] && !gradients[1] && !gradients[2]);
    RANK_TRUE(rank, gradients[0] == (char *)gradients[3] + sizeof(data[0])); // In reverse order.
    RANK_EQUAL(rank, (uintptr_t)gradients[3] % 64, 0);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void places_only_for_what_is_trained(const struct setting *setting)
{
    ranks_run(setting, without_places_body, NULL);
}

// A parameter that was unfrozen, and one that only another phase trains, have places at once.
static void later_body(struct rank *rank)
{
    static const uint64_t elements[] = {5, 8, 3, 7};
    static const uint32_t frozen = 1, other = 2;
    const struct module_shape shape = {.name = "net", .count = 4, .elements = elements};
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    options.phase = "first";
    RANK_OK(rank, lockstep_module_freeze(module.module, &frozen, 1, 1));
    RANK_OK(rank, lockstep_phase_unused(module.module, "first", &other, 1));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, &options);
    trainer_call_used(rank, &module, 1 | 1 << 3);
    trainer_end(rank);
    RANK_OK(rank, lockstep_module_gradients(module.module, module.gradients, 4));
    RANK_TRUE(rank, module.gradients[0] && !module.gradients[frozen] && module.gradients[other]);
    RANK_OK(rank, lockstep_module_freeze(module.module, &frozen, 1, 0));
    RANK_OK(rank, lockstep_module_gradients(module.module, module.gradients, 4));
    RANK_TRUE(rank, module.gradients[frozen] != NULL && module.gradients[other] != NULL);
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void places_for_what_is_trained_later(const struct setting *setting)
{
    ranks_run(setting, later_body, NULL);
}

// ---- Case 9 ------------------------------------------------------------------------------------

// The value and the gradient of a parameter move between steps; their former memory is freed.
static void move_body(struct rank *rank)
{
    const size_t bytes = sizes[1] * sizeof(double);
    struct trained_module module;
    void *registered;
    uint64_t hash[2];
    memory_make(rank, false, &module);
    registered = module.gradients[1];
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 5; i++) {
        void *value = calloc(1, bytes);
        void *gradient = i == 4 ? registered : malloc(bytes);
        ((double *)value)[3] = i;
        RANK_OK(rank, lockstep_parameter_move(module.module, 1, value, gradient));
        free(module.data[1]);
        if (module.gradients[1] != registered)
            free(module.gradients[1]);
        module.data[1] = value;
        module.gradients[1] = gradient;
        trainer_step_known(rank, &module, 1);
        RANK_OK(rank, lockstep_state_hash(rank->session, &hash[i % 2]));
        RANK_TRUE(rank, i == 0 || hash[0] != hash[1]);
        RANK_OK(rank, lockstep_state_check(rank->session));
    }
    trainer_free(&module);
}

static void case_09_registered_memory_moves(const struct setting *setting)
{
    ranks_run(setting, move_body, NULL);
}

// After a move to NULL the parameter has no registered memory, so each report has to pass a
// gradient.
static void nowhere_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    memory_make(rank, false, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_parameter_move(module.module, 1, NULL, NULL));
    trainer_begin(rank, NULL);
    trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_grad_ready(module.module, call, 1, NULL, NULL));
    RANK_SAYS(rank, "without memory");
    for (uint32_t p = 0; p < PARAMETERS; p++)
        RANK_OK(rank, lockstep_grad_ready(module.module, call, p, module.gradients[p], NULL));
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
    trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    trainer_free(&module);
}

static void case_09_moved_to_nowhere(const struct setting *setting)
{
    ranks_run(setting, nowhere_body, NULL);
}

// ---- lockstep_alloc ----------------------------------------------------------------------------

// The memory of values and gradients is from lockstep_alloc. The close of the session frees the
// memory that the trainer has not freed.
static void alloc_body(struct rank *rank)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct trained_module module;
    void *kept;
    memory_make(rank, false, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        void *memory[2];
        for (int i = 0; i < 2; i++) {
            RANK_OK(rank, lockstep_alloc(rank->session, sizes[p] * 8, &memory[i]));
            RANK_TRUE(rank, memory[i] && (uintptr_t)memory[i] % page == 0);
        }
        RANK_TRUE(rank, sizes[p] == 0 || ((const char *)memory[0])[sizes[p] * 8 - 1] == 0);
        RANK_OK(rank, lockstep_parameter_move(module.module, p, memory[0], memory[1]));
        module.gradients[p] = memory[1];
    }
    for (int i = 0; i < 3; i++) {
        trainer_step_known(rank, &module, 1);
        RANK_OK(rank, lockstep_alloc(rank->session, 10 * page, &kept));
        memset(kept, 1, 10 * page);
        if (i > 0)
            RANK_OK(rank, lockstep_free(rank->session, kept));
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_free(rank->session, module.gradients[1]));
    RANK_SAYS(rank, "'p1' of module 'net' lies in this memory");
    RANK_OK(rank, lockstep_parameter_move(module.module, 1, NULL, NULL));
    RANK_OK(rank, lockstep_free(rank->session, module.gradients[1]));
    trainer_free(&module);
}

static void memory_from_alloc(const struct setting *setting)
{
    ranks_run(setting, alloc_body, NULL);
}

#define LENT_ELEMENTS 1000

// Memory that a collective has borrowed is not freed before the trainer has waited for it.
static void lent_body(struct rank *rank)
{
    const uint32_t world = rank->world_size;
    lockstep_work *work;
    void *memory;
    RANK_OK(rank, lockstep_alloc(rank->session, LENT_ELEMENTS * sizeof(float), &memory));
    float *values = memory;
    for (int i = 0; i < LENT_ELEMENTS; i++)
        values[i] = (float)(rank->rank + 1);
    RANK_OK(rank, lockstep_allreduce_async(rank->session, "sum", values + 1, LENT_ELEMENTS - 1,
                                           LOCKSTEP_FLOAT32, LOCKSTEP_SUM, &work));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_free(rank->session, memory));
    RANK_SAYS(rank, "collective 'sum' (use 1), which was not waited for, has borrowed this memory");
    RANK_OK(rank, lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER));
    for (int i = 1; i < LENT_ELEMENTS; i++)
        RANK_TRUE(rank, values[i] == (float)(world * (world + 1)) / 2);
    RANK_OK(rank, lockstep_free(rank->session, memory));
}

static void memory_that_a_collective_has(const struct setting *setting)
{
    ranks_run(setting, lent_body, NULL);
}

// The same for memory that was given for a gradient, until the end of its step.
static void kept_body(struct rank *rank)
{
    static const uint64_t elements[] = {LENT_ELEMENTS};
    const struct module_shape shape = {.name = "net", .count = 1, .elements = elements};
    struct trained_module module;
    lockstep_call *call;
    void *memory;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_alloc(rank->session, LENT_ELEMENTS * sizeof(float), &memory));
    memset(memory, 0, LENT_ELEMENTS * sizeof(float));
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    RANK_OK(rank, lockstep_grad_ready(module.module, call, 0, memory, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_free(rank->session, memory));
    RANK_SAYS(rank, "this memory was given for the gradient of parameter 'p0' of module 'net'");
    RANK_OK(rank, lockstep_call_end(call));
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    RANK_OK(rank, lockstep_free(rank->session, memory));
    trainer_free(&module);
}

static void memory_that_a_gradient_has(const struct setting *setting)
{
    ranks_run(setting, kept_body, NULL);
}

// ---- Memory that ranks of one host share -------------------------------------------------------

// True if the memory lies in a shared region. NULL: true if this process has any shared region.
static bool is_region(const void *memory)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    bool found = false;
    assert_non_null(maps);
    while (!found && fgets(line, sizeof(line), maps)) {
        uintptr_t begin, end;
        found = strstr(line, "memfd:lockstep-region") &&
                sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) == 2 &&
                (!memory || ((uintptr_t)memory >= begin && (uintptr_t)memory < end));
    }
    fclose(maps);
    return found;
}

#define REGION_ELEMENTS 100000

static void region_body(struct rank *rank)
{
    const bool shares = *(const lockstep_transport_kind *)rank->context == LOCKSTEP_TRANSPORT_AUTO;
    static const uint64_t elements[] = {REGION_ELEMENTS, 7};
    const struct module_shape shape = {.name = "net", .count = 2, .elements = elements};
    struct trained_module module;
    void *kept, *small, *freed;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_module_gradients(module.module, module.gradients, 2));
    RANK_OK(rank, lockstep_alloc(rank->session, REGION_ELEMENTS, &kept));
    RANK_OK(rank, lockstep_alloc(rank->session, 100, &small));
    RANK_OK(rank, lockstep_alloc(rank->session, REGION_ELEMENTS, &freed));
    RANK_EQUAL(rank, is_region(module.gradients[0]), shares);
    RANK_EQUAL(rank, is_region(kept), shares);
    RANK_EQUAL(rank, is_region(small), shares);
    RANK_TRUE(rank, *(const char *)small == 0);
    for (int i = 0; i < 2; i++)
        trainer_step_known(rank, &module, 1);
    RANK_OK(rank, lockstep_free(rank->session, freed));
    RANK_TRUE(rank, ((const char *)kept)[REGION_ELEMENTS - 1] == 0);
    RANK_OK(rank, lockstep_module_gradients(module.module, module.gradients, 2));
    RANK_EQUAL(rank, is_region(module.gradients[0]), shares);
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void memory_is_shared_unless_told(const struct setting *setting)
{
    struct setting automatic = *setting;
    if (setting->torn_bytes != 0)
        return; // Too slow with this much data, and not different from other loopbacks.
    ranks_run(setting, region_body, &automatic.transport);
    assert_false(is_region(NULL));
    if (setting->transport != LOCKSTEP_TRANSPORT_TCP)
        return;
    automatic.transport = LOCKSTEP_TRANSPORT_AUTO;
    ranks_run(&automatic, region_body, &automatic.transport);
    assert_false(is_region(NULL));
}

#define GRADIENTS 8

// Every gradient has a block of its own, and each rank allocates the blocks in an order of its own.
// Once mates have mapped all blocks, steps copy no gradients.
static void each_by_itself_body(struct rank *rank)
{
    static const uint64_t elements[GRADIENTS] = {5000, 8192, 300, 4097, 1, 40000, 9999, 12};
    const struct module_shape shape = {.name = "net", .count = GRADIENTS, .elements = elements};
    struct trained_module module;
    uint32_t order[GRADIENTS];
    bool in_place = false;
    trainer_make(rank, &shape, 0, &module);
    for (uint32_t p = 0; p < GRADIENTS; p++)
        order[p] = p;
    trainer_shuffle(order, GRADIENTS, rank->rank);
    for (uint32_t i = 0; i < GRADIENTS; i++) {
        void **gradient = &module.gradients[order[i]];
        RANK_OK(rank, lockstep_alloc(rank->session, elements[order[i]] * sizeof(float), gradient));
        RANK_OK(rank, lockstep_parameter_move(module.module, order[i], NULL, *gradient));
    }
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 1000 && !in_place; i++) {
        trainer_step_known(rank, &module, 1);
        in_place = trainer_report(rank).bytes_copied == 0;
    }
    RANK_TRUE(rank, in_place);
    for (int i = 0; i < 100; i++) {
        trainer_step_known(rank, &module, 1);
        RANK_EQUAL(rank, trainer_report(rank).bytes_copied, 0);
    }
    RANK_TRUE(rank, trainer_report(rank).buckets > 2);
    trainer_free(&module);
}

// Caps with which several buckets are in flight, each with several gradients.
static void caps_of_some(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = 60000;
}

static void gradients_each_by_itself(const struct setting *setting)
{
    struct setting automatic = *setting;
    if (setting->transport != LOCKSTEP_TRANSPORT_TCP)
        return;
    automatic.transport = LOCKSTEP_TRANSPORT_AUTO;
    ranks_run_test(&(struct cluster_test){
        .setting = &automatic, .configure = caps_of_some, .body = each_by_itself_body});
}

// ---- Misuse, in a world of one -----------------------------------------------------------------

#define FAILS(status, part, call) \
    do { \
        assert_int_equal((status), (call)); \
        assert_non_null(strstr(lockstep_error_text(), (part))); \
    } while (0)

static void alloc_misuse(lockstep_session *session)
{
    lockstep_session *other;
    void *blocks[3];
    void *memory = &memory;
    char own[8];
    FAILS(LOCKSTEP_E_INVALID, "nowhere", lockstep_alloc(session, 8, NULL));
    FAILS(LOCKSTEP_E_SYSTEM, "bytes", lockstep_alloc(session, SIZE_MAX, &memory));
    assert_null(memory);
    FAILS(LOCKSTEP_E_SYSTEM, "bytes", lockstep_alloc(session, SIZE_MAX / 2, &memory));
    for (int i = 0; i < 3; i++)
        assert_int_equal(lockstep_alloc(session, 0, &blocks[i]), 0);
    assert_true(blocks[0] != blocks[1] && blocks[1] != blocks[2] && blocks[0] != blocks[2]);
    FAILS(LOCKSTEP_E_INVALID, "the memory is NULL", lockstep_free(session, NULL));
    FAILS(LOCKSTEP_E_INVALID, "not from lockstep_alloc", lockstep_free(session, own));
    FAILS(LOCKSTEP_E_INVALID, "not from lockstep_alloc",
          lockstep_free(session, (char *)blocks[0] + 1));
    assert_int_equal(lockstep_open(NULL, &other), 0);
    FAILS(LOCKSTEP_E_INVALID, "of this session", lockstep_free(other, blocks[1]));
    assert_int_equal(lockstep_close(other), 0);
    assert_int_equal(lockstep_free(session, blocks[1]), 0);
    FAILS(LOCKSTEP_E_INVALID, "freed", lockstep_free(session, blocks[1]));
}

static void still_misuse(lockstep_module *module)
{
    void *gradients[2];
    float other[8];
    FAILS(LOCKSTEP_E_INVALID, "outside a step", lockstep_module_gradients(module, gradients, 2));
    FAILS(LOCKSTEP_E_INVALID, "outside a step", lockstep_parameter_move(module, 0, other, other));
}

static void memory_misuse(const struct setting *setting)
{
    static float data[2][8];
    static const int64_t eight[] = {8};
    static const char *const ignore[] = {"?kipped"};
    struct lockstep_parameter parameters[2];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_session *session;
    lockstep_module *module;
    void *gradients[2];
    (void)setting;
    for (int p = 0; p < 2; p++)
        parameters[p] = (struct lockstep_parameter){.name = p == 0 ? "weight" : "skipped",
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = eight,
                                                    .data = data[p]};
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = 2;
    config.ignore = ignore;
    config.ignore_count = 1;
    assert_int_equal(lockstep_open(NULL, &session), 0);
    alloc_misuse(session);
    assert_int_equal(lockstep_module_register(session, &config, &module), 0);
    FAILS(LOCKSTEP_E_INVALID, "count is 1", lockstep_module_gradients(module, gradients, 1));
    FAILS(LOCKSTEP_E_INVALID, "count is 3", lockstep_module_gradients(module, gradients, 3));
    FAILS(LOCKSTEP_E_INVALID, "nowhere", lockstep_module_gradients(module, NULL, 2));
    FAILS(LOCKSTEP_E_INVALID, "no number 2", lockstep_parameter_move(module, 2, data, data));
    FAILS(LOCKSTEP_E_INVALID, "'skipped' is ignored",
          lockstep_parameter_move(module, 1, NULL, data));
    assert_int_equal(lockstep_parameter_move(module, 1, data[1], NULL), 0);
    assert_int_equal(lockstep_start(session), 0);
    options.accumulate = 1;
    assert_int_equal(lockstep_step_begin(session, &options, NULL), 0);
    still_misuse(module);
    assert_int_equal(lockstep_step_end(session, NULL), 0);
    still_misuse(module); // A window is open.
    assert_int_equal(lockstep_step_begin(session, NULL, NULL), 0);
    still_misuse(module);
    assert_int_equal(lockstep_step_end(session, NULL), 0);
    assert_int_equal(lockstep_module_gradients(module, gradients, 2), 0);
    assert_int_equal(lockstep_close(session), 0);
}

int main(void)
{
    static const uint32_t one[] = {1, 0}, two[] = {2, 0}, several[] = {2, 3, 0};
    static const struct stamp stamps[] = {
        {"case_08_given_memory_is_one_run_a_bucket", case_08_given_memory_is_one_run_a_bucket,
         NULL},
        {"case_08_given_memory_partly_used", case_08_given_memory_partly_used, NULL},
        {"places_only_for_what_is_trained", places_only_for_what_is_trained, NULL},
        {"places_for_what_is_trained_later", places_for_what_is_trained_later, NULL},
        {"case_09_registered_memory_moves", case_09_registered_memory_moves, NULL},
        {"case_09_moved_to_nowhere", case_09_moved_to_nowhere, NULL},
        {"memory_from_alloc", memory_from_alloc, NULL},
        {"memory_that_a_collective_has", memory_that_a_collective_has, NULL},
        {"memory_that_a_gradient_has", memory_that_a_gradient_has, NULL},
        {"memory_is_shared_unless_told", memory_is_shared_unless_told, two},
        {"gradients_each_by_itself", gradients_each_by_itself, several},
        {"memory_misuse", memory_misuse, one},
    };
    return stamp_run("reducer: memory", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
