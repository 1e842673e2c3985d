// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the set of trained parameters, its changes between steps, and ranks with different
// sets. Case numbers are those of the list of cases for reducers.

#include "base/clock.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h" // For the current layout.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TENSORS 12

static const uint64_t sizes[TENSORS] = {64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64};

// Caps of two tensors for each bucket, so that the number of buckets and the bits of results depend
// on the layout.
static void small_caps(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 512;
}

static void run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {.setting = setting, .configure = small_caps, .body = body};
    ranks_run_test(&test);
}

// ---- A trainer that knows what is frozen -------------------------------------------------------

struct frozen_module {
    struct trained_module trained;
    bool frozen[TENSORS];
};

static void make(struct rank *rank, const char *name, uint32_t index, struct frozen_module *module)
{
    const struct module_shape shape = {.name = name, .count = TENSORS, .elements = sizes};
    memset(module, 0, sizeof(*module));
    trainer_make(rank, &shape, index, &module->trained);
}

static void freeze(struct rank *rank, struct frozen_module *module, uint32_t parameter, bool frozen)
{
    RANK_OK(rank, lockstep_module_freeze(module->trained.module, &parameter, 1, frozen));
    module->frozen[parameter] = frozen;
}

static void call(struct rank *rank, struct frozen_module *module)
{
    lockstep_call *open;
    RANK_OK(rank, lockstep_call_begin(module->trained.module, &open));
    for (uint32_t i = 0; i < TENSORS; i++) {
        const uint32_t parameter = module->trained.order[i];
        if (module->frozen[parameter])
            continue;
        RANK_OK(rank, lockstep_grad_ready(module->trained.module, open, parameter, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(open));
}

// Checks that frozen parameters are unchanged and that the others hold the mean.
static void expect(struct rank *rank, const struct frozen_module *module)
{
    const uint64_t step = atomic_load(&rank->step);
    for (uint32_t p = 0; p < TENSORS; p++) {
        if (!module->frozen[p]) {
            trainer_expect_parameter(rank, &module->trained, step, p, NULL);
            continue;
        }
        for (uint64_t i = 0; i < sizes[p]; i++)
            RANK_TRUE(rank, trainer_value(&module->trained, p, i) ==
                                (double)trainer_known(&module->trained, rank->rank, step, p, i));
    }
}

// Runs a step with known gradients and checks whether it is a learning step.
static void step(struct rank *rank, struct frozen_module *modules, uint32_t count,
                 const char *phase, bool learning)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.phase = phase;
    trainer_begin(rank, &options);
    for (uint32_t m = 0; m < count; m++) {
        trainer_fill_known(&modules[m].trained, rank->rank, atomic_load(&rank->step));
        call(rank, &modules[m]);
    }
    trainer_end(rank);
    for (uint32_t m = 0; m < count; m++)
        expect(rank, &modules[m]);
    RANK_EQUAL(rank, trainer_report(rank).learning, learning);
    if (!learning)
        RANK_EQUAL(rank, trainer_report(rank).control_messages, 0);
}

// Runs a step with noise that does not depend on the step. Returns a hash of the results.
static uint64_t noise(struct rank *rank, struct frozen_module *module)
{
    struct hash64 hash;
    trainer_begin(rank, NULL);
    trainer_fill_noise(&module->trained, rank->rank, 1);
    call(rank, module);
    trainer_end(rank);
    RANK_EQUAL(rank, trainer_report(rank).learning, 0);
    hash64_init(&hash, 0);
    for (uint32_t p = 0; p < TENSORS; p++) {
        if (!module->frozen[p])
            hash64_update(&hash, module->trained.gradients[p], sizes[p] * sizeof(float));
    }
    return hash64_final(&hash);
}

static uint64_t layout(const struct frozen_module *module)
{
    return buckets_hash(&module->trained.module->layout);
}

// ---- Case 7 ------------------------------------------------------------------------------------

// The order of readiness differs in every step, so a layout that is learned again would differ.
static void back_body(struct rank *rank)
{
    struct frozen_module net;
    uint64_t whole, part, whole_bits, part_bits;
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_shuffle(net.trained.order, TENSORS, 1);
    step(rank, &net, 1, NULL, true);
    whole = layout(&net);
    whole_bits = noise(rank, &net);
    RANK_EQUAL(rank, trainer_report(rank).buckets, TENSORS / 2);
    freeze(rank, &net, 1, true);
    freeze(rank, &net, 4, true);
    trainer_shuffle(net.trained.order, TENSORS, 2);
    step(rank, &net, 1, NULL, true);
    step(rank, &net, 1, NULL, false);
    RANK_EQUAL(rank, trainer_report(rank).buckets, TENSORS / 2 - 1);
    part = layout(&net);
    part_bits = noise(rank, &net);
    for (uint64_t i = 0; i < 3; i++) {
        freeze(rank, &net, 4, false);
        freeze(rank, &net, 1, false);
        trainer_shuffle(net.trained.order, TENSORS, 3 + i);
        step(rank, &net, 1, NULL, false);
        RANK_TRUE(rank, layout(&net) == whole);
        RANK_TRUE(rank, noise(rank, &net) == whole_bits);
        freeze(rank, &net, 1, true);
        freeze(rank, &net, 4, true);
        step(rank, &net, 1, NULL, false);
        RANK_TRUE(rank, layout(&net) == part);
        RANK_TRUE(rank, noise(rank, &net) == part_bits);
    }
    trainer_free(&net.trained);
}

static void case_07_set_changes_and_comes_back(const struct setting *setting)
{
    run(setting, back_body);
}

static void others_body(struct rank *rank)
{
    struct frozen_module nets[2];
    uint64_t untouched;
    make(rank, "a", 0, &nets[0]);
    make(rank, "b", 1, &nets[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_shuffle(nets[1].trained.order, TENSORS, 1);
    step(rank, nets, 2, NULL, true);
    untouched = layout(&nets[1]);
    freeze(rank, &nets[0], 3, true);
    trainer_shuffle(nets[0].trained.order, TENSORS, 2);
    trainer_shuffle(nets[1].trained.order, TENSORS, 3);
    step(rank, nets, 2, NULL, true);
    RANK_TRUE(rank, layout(&nets[1]) == untouched);
    step(rank, nets, 2, NULL, false);
    trainer_free(&nets[0].trained);
    trainer_free(&nets[1].trained);
}

static void case_07_other_modules_keep_their_layouts(const struct setting *setting)
{
    run(setting, others_body);
}

// Freezing and unfreezing the same parameters between two steps changes nothing.
static void nothing_body(struct rank *rank)
{
    struct frozen_module net;
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    step(rank, &net, 1, NULL, true);
    freeze(rank, &net, 2, true);
    freeze(rank, &net, 2, false);
    step(rank, &net, 1, NULL, false);
    trainer_free(&net.trained);
}

static void case_07_changed_and_changed_back(const struct setting *setting)
{
    run(setting, nothing_body);
}

// Trains LOCKSTEP_MAX_SETS + 1 sets; in set i parameter i is frozen.
static void sets_body(struct rank *rank)
{
    struct frozen_module net;
    uint64_t layouts[LOCKSTEP_MAX_SETS + 1];
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i <= LOCKSTEP_MAX_SETS; i++) {
        if (i > 0)
            freeze(rank, &net, i - 1, false);
        freeze(rank, &net, i, true);
        trainer_shuffle(net.trained.order, TENSORS, i);
        step(rank, &net, 1, NULL, true);
        step(rank, &net, 1, NULL, false);
        layouts[i] = layout(&net);
    }
    // The last set replaced the first one and removed all plans. The other sets keep their layouts.
    trainer_shuffle(net.trained.order, TENSORS, 100);
    freeze(rank, &net, LOCKSTEP_MAX_SETS, false);
    freeze(rank, &net, LOCKSTEP_MAX_SETS - 1, true);
    step(rank, &net, 1, NULL, true);
    RANK_TRUE(rank, layout(&net) == layouts[LOCKSTEP_MAX_SETS - 1]);
    step(rank, &net, 1, NULL, false);
    freeze(rank, &net, LOCKSTEP_MAX_SETS - 1, false);
    freeze(rank, &net, 0, true);
    step(rank, &net, 1, NULL, true);
    step(rank, &net, 1, NULL, false);
    RANK_TRUE(rank, layout(&net) != layouts[0]);
    trainer_free(&net.trained);
}

static void case_07_more_sets_than_are_remembered(const struct setting *setting)
{
    run(setting, sets_body);
}

static void phases_body(struct rank *rank)
{
    struct frozen_module net;
    char phase[16];
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i <= LOCKSTEP_MAX_PLANS; i++) {
        snprintf(phase, sizeof(phase), "phase %u", (unsigned)i);
        step(rank, &net, 1, phase, true);
    }
    step(rank, &net, 1, "phase 2", false);
    step(rank, &net, 1, "phase 0", true); // Replaces phase 1.
    step(rank, &net, 1, "phase 2", false);
    step(rank, &net, 1, "phase 1", true);
    trainer_free(&net.trained);
}

static void case_07_more_phases_than_plans(const struct setting *setting)
{
    run(setting, phases_body);
}

// ---- A warning about phases and sets that do not fit -------------------------------------------

static atomic_uint warnings[CLUSTER_MAX_WORLD];

static void warned(void *context, lockstep_log_level level, const char *line)
{
    atomic_uint *count = context;
    if (level == LOCKSTEP_LOG_WARN && strstr(line, "event=too_many_phases"))
        atomic_fetch_add(count, 1);
}

static void listen_to_warnings(struct rank *rank, struct lockstep_config *config)
{
    small_caps(rank, config);
    config->log = warned;
    config->log_context = &warnings[rank->rank];
    atomic_store(&warnings[rank->rank], 0);
}

static void run_warned(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {
        .setting = setting, .configure = listen_to_warnings, .body = body};
    ranks_run_test(&test);
}

// Trains `count` sets in turn; the parameter that is frozen moves on by one in each step.
static void train_sets(struct rank *rank, struct frozen_module *net, uint32_t count, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        freeze(rank, net, i % count, true);
        trainer_begin(rank, NULL);
        call(rank, net);
        trainer_end(rank);
        freeze(rank, net, i % count, false);
    }
}

static void crowd_of_sets_body(struct rank *rank)
{
    struct frozen_module net;
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    train_sets(rank, &net, LOCKSTEP_MAX_SETS, 4 * LOCKSTEP_MAX_SETS);
    RANK_EQUAL(rank, atomic_load(&warnings[rank->rank]), 0);
    train_sets(rank, &net, LOCKSTEP_MAX_SETS + 1, 6 * LOCKSTEP_MAX_SETS);
    RANK_EQUAL(rank, atomic_load(&warnings[rank->rank]), 1);
    trainer_free(&net.trained);
}

static void more_sets_in_turn_than_are_remembered_warn(const struct setting *setting)
{
    run_warned(setting, crowd_of_sets_body);
}

static void train_phases(struct rank *rank, struct frozen_module *net, uint32_t count,
                         uint32_t steps)
{
    char phase[24];
    for (uint32_t i = 0; i < steps; i++) {
        snprintf(phase, sizeof(phase), "phase %u", (unsigned)(i % count));
        step(rank, net, 1, phase, i < count || count > LOCKSTEP_MAX_PLANS);
    }
}

static void crowd_of_phases_body(struct rank *rank)
{
    struct frozen_module net;
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    train_phases(rank, &net, LOCKSTEP_MAX_PLANS, 2 * LOCKSTEP_MAX_PLANS);
    RANK_EQUAL(rank, atomic_load(&warnings[rank->rank]), 0);
    trainer_free(&net.trained);
}

// A counter in the label, as in "epoch 7".
static void counted_phases_body(struct rank *rank)
{
    struct frozen_module net;
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    train_phases(rank, &net, UINT32_MAX, 2 * LOCKSTEP_MAX_PLANS);
    RANK_EQUAL(rank, atomic_load(&warnings[rank->rank]), 1);
    trainer_free(&net.trained);
}

static void as_many_phases_as_plans_do_not_warn(const struct setting *setting)
{
    run_warned(setting, crowd_of_phases_body);
}

static void phases_with_a_counter_warn(const struct setting *setting)
{
    run_warned(setting, counted_phases_body);
}

// ---- Case 34 -----------------------------------------------------------------------------------

struct head {
    float data[3][8];
    float gradient[3][8];
};

// "body" is trained, "head" is frozen and has gradient memory, "tail" is frozen and has none.
static lockstep_module *register_frozen(struct rank *rank, struct head *head)
{
    static const int64_t shape[1] = {8};
    static const char *const names[3] = {"body", "head", "tail"};
    struct lockstep_parameter parameters[3];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    memset(parameters, 0, sizeof(parameters));
    for (uint32_t p = 0; p < 3; p++)
        parameters[p] = (struct lockstep_parameter){.name = names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = shape,
                                                    .data = head->data[p],
                                                    .gradient = p < 2 ? head->gradient[p] : NULL,
                                                    .flags = p > 0 ? LOCKSTEP_PARAMETER_FROZEN : 0};
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = 3;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    return module;
}

// Runs a step. The gradients of the parameters marked in `trained` are 1 + rank.
static void head_step(struct rank *rank, lockstep_module *module, struct head *head,
                      const bool trained[3])
{
    const float mean = (float)(rank->world_size + 1) / 2;
    lockstep_call *open;
    for (uint32_t i = 0; i < 24; i++)
        head->gradient[i / 8][i % 8] = (float)(1 + rank->rank);
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module, &open));
    for (uint32_t p = 3; p-- > 0;) {
        if (trained[p]) {
            RANK_OK(rank,
                    lockstep_grad_ready(module, open, p, p == 2 ? head->gradient[2] : NULL, NULL));
        } else {
            RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                       lockstep_grad_ready(module, open, p, head->gradient[p], NULL));
            RANK_SAYS(rank, "frozen");
        }
    }
    RANK_OK(rank, lockstep_call_end(open));
    trainer_end(rank);
    for (uint32_t i = 0; i < 24; i++)
        RANK_TRUE(rank, head->gradient[i / 8][i % 8] ==
                            (trained[i / 8] ? mean : (float)(1 + rank->rank)));
}

static void unfreeze_body(struct rank *rank)
{
    static const bool body[3] = {true, false, false};
    static const bool all[3] = {true, true, true};
    static const bool none[3] = {false, false, false};
    static const uint32_t frozen[2] = {1, 2};
    static const uint32_t first = 0;
    struct head head = {0};
    lockstep_module *module = register_frozen(rank, &head);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++)
        head_step(rank, module, &head, body);
    RANK_OK(rank, lockstep_module_freeze(module, frozen, 2, 0));
    for (int i = 0; i < 3; i++) {
        head_step(rank, module, &head, all);
        RANK_EQUAL(rank, trainer_report(rank).learning, i == 0);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
    }
    RANK_OK(rank, lockstep_module_freeze(module, frozen, 2, 1));
    RANK_OK(rank, lockstep_module_freeze(module, &first, 1, 1));
    for (int i = 0; i < 2; i++) {
        head_step(rank, module, &head, none);
        RANK_EQUAL(rank, trainer_report(rank).buckets, 0);
    }
    RANK_OK(rank, lockstep_module_freeze(module, &first, 1, 0));
    head_step(rank, module, &head, body);
    RANK_EQUAL(rank, trainer_report(rank).learning, 0);
}

static void case_34_frozen_at_start_and_unfrozen_later(const struct setting *setting)
{
    ranks_run(setting, unfreeze_body, NULL);
}

// Runs a step and returns the first failure, which may come from any call of the step.
static int try_step(struct rank *rank, struct frozen_module *module, const char *phase)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_call *open;
    options.phase = phase;
    int status = RANK_CALL(rank, lockstep_step_begin(rank->session, &options, NULL));
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_begin(module->trained.module, &open));
    for (uint32_t p = TENSORS; p-- > 0 && status == 0;) {
        if (!module->frozen[p])
            status =
                RANK_CALL(rank, lockstep_grad_ready(module->trained.module, open, p, NULL, NULL));
    }
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_end(open));
    return status < 0 ? status : RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
}

// Checks that the step fails at once on every rank, with one text that contains these pieces and no
// hash.
static void expect_mismatch(struct rank *rank, struct frozen_module *module, const char *phase,
                            const char *const *pieces)
{
    uint64_t begun_ms;
    rank_meet(rank);
    begun_ms = clock_now_ms();
    RANK_EQUAL(rank, try_step(rank, module, phase), LOCKSTEP_E_MISMATCH);
    RANK_TRUE(rank, clock_now_ms() - begun_ms < test_bound_ms(3000));
    for (; *pieces; pieces++)
        RANK_SAYS(rank, *pieces);
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_begin(rank->session, NULL, NULL));
    trainer_free(&module->trained);
}

static void begin_net(struct rank *rank, struct frozen_module *net)
{
    make(rank, "net", 0, net);
    RANK_OK(rank, lockstep_start(rank->session));
    step(rank, net, 1, NULL, true);
    step(rank, net, 1, NULL, false);
}

// Rank 1 freezes a parameter and would learn, while the other ranks run their plan.
static void one_freezes_body(struct rank *rank)
{
    static const char *const pieces[] = {"'p5'",   "module 'net'", "step 3",
                                         "rank 1", "(host ",       NULL};
    struct frozen_module net;
    begin_net(rank, &net);
    if (rank->rank == 1)
        freeze(rank, &net, 5, true);
    expect_mismatch(rank, &net, NULL, pieces);
}

static void case_34_one_rank_freezes(const struct setting *setting)
{
    run(setting, one_freezes_body);
}

// All ranks would learn, each with another set.
static void different_body(struct rank *rank)
{
    static const char *const pieces[] = {"module 'net'", "parameters differ", "step 3", NULL};
    struct frozen_module net;
    begin_net(rank, &net);
    freeze(rank, &net, 2 + 2 * rank->rank, true);
    expect_mismatch(rank, &net, NULL, pieces);
}

static void case_34_ranks_freeze_differently(const struct setting *setting)
{
    run(setting, different_body);
}

// The ranks use different sets, and all ranks know both sets.
static void known_body(struct rank *rank)
{
    static const char *const pieces[] = {"'p7'", "module 'net'", "step 5", NULL};
    struct frozen_module net;
    begin_net(rank, &net);
    freeze(rank, &net, 7, true);
    step(rank, &net, 1, NULL, true);
    step(rank, &net, 1, NULL, false);
    if (rank->rank == 0)
        freeze(rank, &net, 7, false);
    expect_mismatch(rank, &net, NULL, pieces);
}

static void case_34_ranks_in_different_known_sets(const struct setting *setting)
{
    run(setting, known_body);
}

// The sets differ in the first step.
static void first_body(struct rank *rank)
{
    static const char *const pieces[] = {"'p0'", "module 'net'", "step 1", NULL};
    struct frozen_module net;
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    if (rank->rank == 0)
        freeze(rank, &net, 0, true);
    expect_mismatch(rank, &net, NULL, pieces);
}

static void case_34_ranks_differ_in_the_first_step(const struct setting *setting)
{
    run(setting, first_body);
}

// Runs a step of phase "aux", in which a report of parameter 3 fails.
static void expect_unreported(struct rank *rank, struct frozen_module *module)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_call *open;
    options.phase = "aux";
    trainer_begin(rank, &options);
    RANK_OK(rank, lockstep_call_begin(module->trained.module, &open));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(module->trained.module, open, 3, NULL, NULL));
    RANK_SAYS(rank, "parameter 'p3' is declared unused in this phase");
    for (uint32_t p = TENSORS; p-- > 0;) {
        if (!module->frozen[p])
            RANK_OK(rank, lockstep_grad_ready(module->trained.module, open, p, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(open));
    trainer_end(rank);
}

// A parameter declared unused in a phase is not in the plan of that phase, and is trained in other
// phases.
static void unused_body(struct rank *rank)
{
    static const char *const pieces[] = {"'p6'", "module 'net'", "step 10", NULL};
    static const uint32_t unused[2] = {3, 4};
    static const uint32_t later = 6;
    struct frozen_module net;
    begin_net(rank, &net);
    RANK_OK(rank, lockstep_phase_unused(net.trained.module, "aux", unused, 2));
    for (int i = 0; i < 3; i++) {
        net.frozen[3] = net.frozen[4] = true;
        step(rank, &net, 1, "aux", i == 0);
        RANK_EQUAL(rank, trainer_report(rank).buckets, TENSORS / 2 - 1);
        RANK_EQUAL(rank, trainer_report(rank).unused, 0);
        net.frozen[3] = net.frozen[4] = false;
        step(rank, &net, 1, NULL, false);
    }
    net.frozen[3] = net.frozen[4] = true;
    expect_unreported(rank, &net);
    if (rank->rank == 1) {
        RANK_OK(rank, lockstep_phase_unused(net.trained.module, "aux", &later, 1));
        net.frozen[6] = true;
    }
    expect_mismatch(rank, &net, "aux", pieces);
}

static void case_34_unused_in_one_phase(const struct setting *setting)
{
    run(setting, unused_body);
}

// A rank without data does not name the phase. It takes the phase of the other ranks and receives
// their means.
static void exhausted_body(struct rank *rank)
{
    static const uint32_t unused[2] = {3, 4};
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const uint64_t weights[CLUSTER_MAX_WORLD] = {1, 0, 1, 1};
    struct frozen_module net;
    make(rank, "net", 0, &net);
    RANK_OK(rank, lockstep_phase_unused(net.trained.module, "aux", unused, 2));
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        options.exhausted = rank->rank == 1;
        options.phase = options.exhausted || i % 2 == 0 ? NULL : "aux";
        net.frozen[3] = net.frozen[4] = i % 2 != 0;
        trainer_begin(rank, &options);
        trainer_fill_known(&net.trained, rank->rank, atomic_load(&rank->step));
        if (!options.exhausted)
            call(rank, &net);
        trainer_end(rank);
        for (uint32_t p = 0; p < TENSORS; p++) {
            if (!net.frozen[p])
                trainer_expect_parameter(rank, &net.trained, atomic_load(&rank->step), p, weights);
        }
        RANK_EQUAL(rank, trainer_report(rank).learning, i < 2);
    }
    trainer_free(&net.trained);
}

static void uneven_caps(struct rank *rank, struct lockstep_config *config)
{
    small_caps(rank, config);
    config->uneven = LOCKSTEP_UNEVEN_ALL;
}

static void case_34_ranks_without_data_follow(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = uneven_caps, .body = exhausted_body};
    ranks_run_test(&test);
}

// A set may change between windows, but not inside a window.
static void window_body(struct rank *rank)
{
    static const uint32_t parameter = 3;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct frozen_module net;
    begin_net(rank, &net);
    freeze(rank, &net, 3, true);
    options.accumulate = 1;
    trainer_begin(rank, &options);
    call(rank, &net);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_module_freeze(net.trained.module, &parameter, 1, 0));
    RANK_SAYS(rank, "inside a step");
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_module_freeze(net.trained.module, &parameter, 1, 0));
    RANK_SAYS(rank, "window");
    step(rank, &net, 1, NULL, true);
    freeze(rank, &net, 3, false);
    step(rank, &net, 1, NULL, false);
    trainer_free(&net.trained);
}

static void case_34_not_inside_a_window(const struct setting *setting)
{
    run(setting, window_body);
}

// ---- Misuse ------------------------------------------------------------------------------------

static void refuse(struct rank *rank, lockstep_module *module, uint32_t parameter, uint32_t frozen,
                   const char *piece)
{
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_freeze(module, &parameter, 1, frozen));
    RANK_SAYS(rank, piece);
}

// Misuse is refused, and a list with one wrong entry changes nothing.
static void misuse_body(struct rank *rank)
{
    static const uint64_t elements[2] = {4, 4};
    static const lockstep_dtype dtypes[2] = {LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT32};
    static const struct module_shape shape = {
        .name = "net", .count = 2, .elements = elements, .dtypes = dtypes};
    static const uint32_t list[3] = {0, 1, 2};
    char phase[300];
    struct trained_module net;
    trainer_make(rank, &shape, 0, &net);
    refuse(rank, net.module, 2, 1, "module 'net' has parameters 0 to 1; 2 is none of them");
    refuse(rank, net.module, 0, 2, "frozen is 0 or 1");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_freeze(net.module, NULL, 1, 1));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_freeze(net.module, list, 3, 1));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_phase_unused(net.module, "x", list, 3));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_phase_unused(net.module, "\xff", list, 1));
    memset(phase, 'x', sizeof(phase));
    phase[sizeof(phase) - 1] = '\0';
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_phase_unused(net.module, phase, list, 1));
    for (int i = 0; i < LOCKSTEP_MAX_PHASES; i++) {
        snprintf(phase, sizeof(phase), "phase %d", i);
        RANK_OK(rank, lockstep_phase_unused(net.module, phase, list, 1));
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_phase_unused(net.module, "more", list, 1));
    RANK_SAYS(rank, "'more' is one more");
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &net, 1);
    trainer_free(&net);
}

static void case_34_misuse(const struct setting *setting)
{
    ranks_run(setting, misuse_body, NULL);
}

// Integer parameters are never trained, and cannot be unfrozen.
static void integers_body(struct rank *rank)
{
    static const int64_t shape[1] = {2};
    int32_t data[2] = {0, 0};
    const struct lockstep_parameter parameter = {.name = "table",
                                                 .dtype = LOCKSTEP_INT32,
                                                 .dims = 1,
                                                 .shape = shape,
                                                 .data = data,
                                                 .flags = LOCKSTEP_PARAMETER_FROZEN};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = "net";
    config.parameters = &parameter;
    config.parameter_count = 1;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    refuse(rank, module, 0, 0, "parameter 'table' is int32 and is never trained");
}

static void case_34_integers_are_never_trained(const struct setting *setting)
{
    ranks_run(setting, integers_body, NULL);
}

int main(void)
{
    static const uint32_t two[] = {2, 0};
    static const struct stamp stamps[] = {
        {"case_07_set_changes_and_comes_back", case_07_set_changes_and_comes_back, NULL},
        {"case_07_other_modules_keep_their_layouts", case_07_other_modules_keep_their_layouts,
         NULL},
        {"case_07_changed_and_changed_back", case_07_changed_and_changed_back, NULL},
        {"case_07_more_sets_than_are_remembered", case_07_more_sets_than_are_remembered, NULL},
        {"case_07_more_phases_than_plans", case_07_more_phases_than_plans, two},
        {"more_sets_in_turn_than_are_remembered_warn", more_sets_in_turn_than_are_remembered_warn,
         two},
        {"as_many_phases_as_plans_do_not_warn", as_many_phases_as_plans_do_not_warn, two},
        {"phases_with_a_counter_warn", phases_with_a_counter_warn, two},
        {"case_34_frozen_at_start_and_unfrozen_later", case_34_frozen_at_start_and_unfrozen_later,
         NULL},
        {"case_34_one_rank_freezes", case_34_one_rank_freezes, NULL},
        {"case_34_ranks_freeze_differently", case_34_ranks_freeze_differently, NULL},
        {"case_34_ranks_in_different_known_sets", case_34_ranks_in_different_known_sets, NULL},
        {"case_34_ranks_differ_in_the_first_step", case_34_ranks_differ_in_the_first_step, NULL},
        {"case_34_unused_in_one_phase", case_34_unused_in_one_phase, NULL},
        {"case_34_ranks_without_data_follow", case_34_ranks_without_data_follow, NULL},
        {"case_34_not_inside_a_window", case_34_not_inside_a_window, NULL},
        {"case_34_misuse", case_34_misuse, two},
        {"case_34_integers_are_never_trained", case_34_integers_are_never_trained, two},
    };
    return stamp_run("reducer: sets", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
