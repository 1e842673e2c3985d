// SPDX-License-Identifier: Apache-2.0
//
// Conformance: deferred contributions. They count in a later step, because a wait gave up their
// slots (order=zero_defer) or because no plan has them (unplanned=defer). Ranks may make any calls
// and waits: every step ends with the means of all contributions that count in it, all ranks have
// the same bits, and every gradient counts exactly once. Case numbers are those of the list of
// cases for reducers.
//
// All gradients are 0 at the begin of a step, and a call fills in known numbers. So the gradients
// of a module without contributions are 0 on all ranks.

#include "tests/support/trainer.h"
#include "worker/order/plan.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/sets.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODULES 3
#define COUNT 4
#define STEPS 24 // Steps of a random program.
#define PENDING 64 // Maximum number of deferred calls of one module on one rank.

static const uint64_t sizes[COUNT] = {40, 300, 1, 77};

// Small caps, so that each module has several buckets.
static void configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
    config->order = LOCKSTEP_ORDER_ZERO_DEFER;
    config->unplanned = LOCKSTEP_UNPLANNED_DEFER;
}

// ---- Accounts of deferred calls ----------------------------------------------------------------

// The step and the weight of a rank's call.
struct made {
    uint64_t step;
    uint64_t weight;
};

// The calls of one module on one rank.
struct account {
    struct made put_off[PENDING]; // Deferred calls of earlier steps that have not counted yet.
    uint32_t count; // Number of these calls.
    // The open step.
    bool called; // True if the rank has called the module.
    bool counts_later; // True if this call is deferred.
    uint64_t weight; // Weight of the rank.
};

// The calls of all ranks in one step. Each rank writes its own entries; after a barrier all ranks
// read all entries.
struct shared {
    uint64_t seed;
    bool called[CLUSTER_MAX_WORLD][MODULES];
    bool counts_later[CLUSTER_MAX_WORLD][MODULES];
    uint64_t weight[CLUSTER_MAX_WORLD];
};

// The state of one rank.
struct job {
    struct rank *rank;
    struct trained_module modules[MODULES];
    lockstep_call *calls[MODULES]; // Calls of the open step; NULL: not made.
    struct account accounts[CLUSTER_MAX_WORLD][MODULES]; // Accounts of all ranks.
    uint64_t weight; // Weight of the open step.
    uint64_t phases[2]; // The order core's numbers of the phases "all" and "few"; 0: not known yet.
};

static void job_make(struct rank *rank, struct job *job)
{
    static const char *const names[MODULES] = {"a", "b", "c"};
    memset(job, 0, sizeof(*job));
    job->rank = rank;
    for (uint32_t m = 0; m < MODULES; m++) {
        const struct module_shape shape = {.name = names[m],
                                           .count = COUNT,
                                           .elements = sizes,
                                           .scattered = m == 1,
                                           .kind = m == 2 ? LOCKSTEP_GRADIENT_SUM
                                                          : LOCKSTEP_GRADIENT_MEAN};
        trainer_make(rank, &shape, m, &job->modules[m]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
}

static void job_free(struct job *job)
{
    for (uint32_t m = 0; m < MODULES; m++)
        trainer_free(&job->modules[m]);
}

static void job_begin(struct job *job, const char *phase, uint64_t weight)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.phase = phase;
    options.weight = job->weight = weight;
    for (uint32_t m = 0; m < MODULES; m++) {
        const struct trained_module *module = &job->modules[m];
        for (uint32_t p = 0; p < COUNT; p++)
            memset(module->gradients[p], 0, sizes[p] * sizeof(float));
        job->calls[m] = NULL;
    }
    trainer_begin(job->rank, &options);
}

static void job_call(struct job *job, uint32_t m)
{
    struct trained_module *module = &job->modules[m];
    trainer_fill_known(module, job->rank->rank, atomic_load(&job->rank->step));
    RANK_OK(job->rank, lockstep_call_begin(module->module, &job->calls[m]));
    for (uint32_t i = 0; i < COUNT; i++)
        RANK_OK(job->rank,
                lockstep_grad_ready(module->module, job->calls[m], module->order[i], NULL, NULL));
    RANK_OK(job->rank, lockstep_call_end(job->calls[m]));
}

static bool job_put_off(const struct job *job, uint32_t m)
{
    return job->modules[m].module->contributions[0].runs[0].put_off;
}

// ---- Expected gradients ------------------------------------------------------------------------

// Adds the known gradient of one call to a sum.
static void job_add(const struct job *job, uint32_t m, uint32_t r, struct made made, uint32_t p,
                    uint64_t element, int64_t *sum)
{
    const struct trained_module *module = &job->modules[m];
    const int64_t factor = module->shape.kind == LOCKSTEP_GRADIENT_SUM ? 1 : (int64_t)made.weight;
    *sum += factor * trainer_known(module, r, made.step, p, element);
}

static double job_expected(const struct job *job, uint32_t m, uint32_t p, uint64_t element)
{
    const uint64_t step = atomic_load(&job->rank->step);
    int64_t sum = 0;
    uint64_t total = 0;
    for (uint32_t r = 0; r < job->rank->world_size; r++) {
        const struct account *account = &job->accounts[r][m];
        if (!account->called || account->counts_later)
            continue;
        const struct made own = {step, account->weight};
        job_add(job, m, r, own, p, element, &sum);
        total += own.weight;
        for (uint32_t i = 0; i < account->count; i++) {
            job_add(job, m, r, account->put_off[i], p, element, &sum);
            total += account->put_off[i].weight;
        }
    }
    return total == 0 ? 0 : (double)((float)sum / (float)total);
}

static void job_check(const struct job *job, uint32_t m)
{
    for (uint32_t p = 0; p < COUNT; p++) {
        for (uint64_t i = 0; i < sizes[p]; i++) {
            const double expected = job_expected(job, m, p, i);
            const double found = trainer_value(&job->modules[m], p, i);
            if (!(found >= expected && found <= expected))
                rank_fail(job->rank, __FILE__, __LINE__,
                          "step %" PRIu64 ": module '%s' parameter %" PRIu32 " element %" PRIu64
                          " is %.17g, not %.17g",
                          atomic_load(&job->rank->step), job->modules[m].shape.name, p, i, found,
                          expected);
        }
    }
}

// Updates an account at the end of a step: a deferred call is added, and a call that is not
// deferred carries all deferred ones.
static void account_settle(struct account *account, uint64_t step)
{
    if (!account->called)
        return;
    if (account->counts_later)
        account->put_off[account->count++] = (struct made){step, account->weight};
    else
        account->count = 0;
}

// Exchanges the calls of this step with all ranks.
static void job_share(struct job *job)
{
    struct rank *rank = job->rank;
    struct shared *shared = rank->context;
    shared->weight[rank->rank] = job->weight;
    for (uint32_t m = 0; m < MODULES; m++) {
        shared->called[rank->rank][m] = job->calls[m] != NULL;
        shared->counts_later[rank->rank][m] = job->calls[m] && job_put_off(job, m);
    }
    rank_meet(rank);
    for (uint32_t r = 0; r < rank->world_size; r++) {
        for (uint32_t m = 0; m < MODULES; m++) {
            struct account *account = &job->accounts[r][m];
            account->called = shared->called[r][m];
            account->counts_later = shared->counts_later[r][m];
            account->weight = shared->weight[r];
            RANK_TRUE(rank, account->count < PENDING);
        }
    }
    rank_meet(rank);
}

// Ends the step, and checks every gradient on every rank.
static void job_end(struct job *job)
{
    struct rank *rank = job->rank;
    bool put_off = false;
    trainer_end(rank);
    for (uint32_t m = 0; m < MODULES; m++)
        put_off = put_off || (job->calls[m] && job_put_off(job, m));
    RANK_EQUAL(rank, trainer_report(rank).deferred > 0, put_off);
    job_share(job);
    for (uint32_t m = 0; m < MODULES; m++) {
        job_check(job, m);
        trainer_digest(rank, &job->modules[m]);
        for (uint32_t r = 0; r < rank->world_size; r++)
            account_settle(&job->accounts[r][m], atomic_load(&rank->step));
    }
}

// Runs a step in which all ranks call all modules in one order, and checks that no contribution is
// deferred afterwards.
static void job_flush(struct job *job, const char *phase)
{
    job_begin(job, phase, 1);
    for (uint32_t m = 0; m < MODULES; m++)
        job_call(job, m);
    job_end(job);
    for (uint32_t m = 0; m < MODULES; m++)
        RANK_TRUE(job->rank, !deferral_waits(job->modules[m].module));
}

static void run(const struct setting *setting, void (*body)(struct rank *rank), uint64_t seed)
{
    struct shared shared = {.seed = seed};
    const struct cluster_test test = {
        .setting = setting, .configure = configure, .body = body, .context = &shared};
    ranks_run_test(&test);
}

// ---- Case 38: opposite orders with waits complete ----------------------------------------------

static void swap_body(struct rank *rank)
{
    struct job *job = malloc(sizeof(*job));
    job_make(rank, job);
    job_flush(job, "all"); // The plan is a, b, c.
    for (int i = 0; i < 3; i++) {
        const uint32_t first = rank->rank == 0 ? 0 : 1;
        job_begin(job, "all", 1 + rank->rank);
        job_call(job, first);
        RANK_OK(rank, lockstep_call_wait(job->calls[first], LOCKSTEP_WAIT_FOREVER));
        job_call(job, 1 - first);
        // On all ranks except rank 0 the wait for b has given up the call of a.
        RANK_STATUS(rank, rank->rank == 0 ? LOCKSTEP_OK : LOCKSTEP_DEFERRED,
                    lockstep_call_wait(job->calls[1 - first], LOCKSTEP_WAIT_FOREVER));
        job_end(job);
        RANK_EQUAL(rank, job_put_off(job, 0), rank->rank > 0);
        RANK_TRUE(rank, !job_put_off(job, 1));
    }
    for (uint32_t r = 0; r < rank->world_size; r++)
        RANK_EQUAL(rank, job->accounts[r][0].count, r == 0 ? 0 : 3);
    job_flush(job, "all");
    job_free(job);
    free(job);
}

static void case_38_zero_defer_completes(const struct setting *setting)
{
    run(setting, swap_body, 0);
}

// The calls that a wait gives up must not depend on whether its own call was averaged before the
// wait began.
static void final_body(struct rank *rank)
{
    struct job *job = malloc(sizeof(*job));
    job_make(rank, job);
    job_flush(job, "all");
    job_begin(job, "all", 1);
    if (rank->rank == 0)
        job_call(job, 0);
    job_call(job, 1);
    while (lockstep_call_wait(job->calls[1], 0) == LOCKSTEP_E_TIMEOUT)
        sched_yield();
    RANK_OK(rank, lockstep_call_wait(job->calls[1], LOCKSTEP_WAIT_FOREVER));
    if (rank->rank > 0)
        job_call(job, 0);
    job_end(job);
    RANK_EQUAL(rank, job_put_off(job, 0), rank->rank > 0);
    job_flush(job, "all");
    job_free(job);
    free(job);
}

static void case_38_given_up_when_it_is_final(const struct setting *setting)
{
    run(setting, final_body, 0);
}

// The same while the order is learned. The coordinator decides which rank gives up which call.
static void swap_learning_body(struct rank *rank)
{
    struct job *job = malloc(sizeof(*job));
    job_make(rank, job);
    const uint32_t first = rank->rank == 0 ? 0 : 1;
    job_begin(job, "all", 1);
    job_call(job, first);
    RANK_OK(rank, lockstep_call_wait(job->calls[first], LOCKSTEP_WAIT_FOREVER));
    job_call(job, 1 - first);
    const int status = RANK_CALL(rank, lockstep_call_wait(job->calls[1 - first], 10000));
    RANK_EQUAL(rank, status, job_put_off(job, 1 - first) ? LOCKSTEP_DEFERRED : LOCKSTEP_OK);
    job_call(job, 2);
    job_end(job);
    job_flush(job, "all");
    job_free(job);
    free(job);
}

static void case_38_zero_defer_while_learning(const struct setting *setting)
{
    run(setting, swap_learning_body, 0);
}

// ---- Calls that the plan does not have ---------------------------------------------------------

// Calls that the plan of a phase does not have are deferred in each step of this phase. All of them
// count in a phase whose plan has the module.
static void unplanned_body(struct rank *rank)
{
    struct job *job = malloc(sizeof(*job));
    job_make(rank, job);
    for (int i = 0; i < 5; i++) {
        job_begin(job, "few", 2);
        job_call(job, 0);
        if (i > 0) {
            job_call(job, 1);
            RANK_STATUS(rank, LOCKSTEP_DEFERRED,
                        lockstep_call_wait(job->calls[1], LOCKSTEP_WAIT_FOREVER));
        }
        job_end(job);
        RANK_EQUAL(rank, job_put_off(job, 1), i > 0);
    }
    job_flush(job, "all");
    job_free(job);
    free(job);
}

static void case_40_unplanned_counts_later(const struct setting *setting)
{
    run(setting, unplanned_body, 0);
}

// A rank has a deferred contribution and never calls the module again. Its close logs that, and no
// rank waits.
static void left_body(struct rank *rank)
{
    struct job *job = malloc(sizeof(*job));
    job_make(rank, job);
    job_flush(job, "all");
    job_begin(job, "all", 1);
    job_call(job, 1);
    RANK_OK(rank, lockstep_call_wait(job->calls[1], LOCKSTEP_WAIT_FOREVER));
    if (rank->rank == 0)
        job_call(job, 0);
    job_end(job);
    RANK_EQUAL(rank, deferral_waits(job->modules[0].module), rank->rank == 0);
    job_free(job);
    free(job);
}

static void case_40_what_is_left(const struct setting *setting)
{
    run(setting, left_body, 0);
}

// ---- Random programs ---------------------------------------------------------------------------

#define ACTIONS (2 * MODULES)

struct action {
    bool waits;
    uint32_t module;
};

struct program {
    struct action actions[ACTIONS];
    uint32_t count;
};

// Draws a program: calls in any order, some left out, and waits for some of them, at once or later.
static struct program draw_program(uint64_t *state)
{
    struct program program = {.count = 0};
    uint32_t order[MODULES];
    bool waited[MODULES] = {false};
    for (uint32_t m = 0; m < MODULES; m++)
        order[m] = m;
    trainer_shuffle(order, MODULES, trainer_random(state));
    for (uint32_t i = 0; i < MODULES; i++) {
        if (trainer_random(state) % 6 == 0)
            continue;
        program.actions[program.count++] = (struct action){false, order[i]};
        waited[order[i]] = trainer_random(state) % 4 == 0; // True: the program never waits for it.
        for (uint32_t j = 0; j <= i; j++) {
            bool called = false;
            for (uint32_t a = 0; a < program.count; a++)
                called = called || program.actions[a].module == order[j];
            if (!called || waited[order[j]] || trainer_random(state) % 2 == 0)
                continue;
            waited[order[j]] = true;
            program.actions[program.count++] = (struct action){true, order[j]};
        }
    }
    return program;
}

// The place of a module in the plan of a phase; MODULES: the plan does not have the module.
static uint32_t plan_place(const struct order_plan *plan, uint32_t m)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->slots[i].module == m)
            return place;
        place += i + 1 == plan->count || plan->slots[i + 1].module != plan->slots[i].module;
    }
    return MODULES;
}

// A simple implementation of the rules: computes which calls of a program are deferred in a planned
// step.
static void foresee(const struct order_plan *plan, const struct program *program,
                    bool counts_later[MODULES])
{
    bool called[MODULES] = {false};
    bool given_up[MODULES] = {false};
    memset(counts_later, 0, MODULES * sizeof(*counts_later));
    for (uint32_t a = 0; a < program->count; a++) {
        const uint32_t m = program->actions[a].module;
        const uint32_t place = plan_place(plan, m);
        if (!program->actions[a].waits) {
            called[m] = true;
            counts_later[m] = given_up[m] || place == MODULES;
            continue;
        }
        for (uint32_t other = 0; other < MODULES && !counts_later[m]; other++)
            given_up[other] =
                given_up[other] || (!called[other] && plan_place(plan, other) < place);
    }
}

static void follow(struct job *job, const struct program *program, uint32_t phase)
{
    struct rank *rank = job->rank;
    const struct order_plan *plan =
        job->phases[phase] == 0 ? NULL
                                : order_plan_of(rank->session->engine.order, job->phases[phase]);
    bool counts_later[MODULES];
    const bool foreseen = plan != NULL;
    if (foreseen)
        foresee(plan, program, counts_later);
    job_begin(job, phase == 0 ? "all" : "few",
              1 + (atomic_load(&rank->step) * 5 + rank->rank * 3) % 4);
    for (uint32_t a = 0; a < program->count; a++) {
        const uint32_t m = program->actions[a].module;
        if (!program->actions[a].waits) {
            job_call(job, m);
            continue;
        }
        const int status =
            RANK_CALL(rank, lockstep_call_wait(job->calls[m], LOCKSTEP_WAIT_FOREVER));
        RANK_EQUAL(rank, status, job_put_off(job, m) ? LOCKSTEP_DEFERRED : LOCKSTEP_OK);
    }
    job_end(job);
    for (uint32_t m = 0; m < MODULES && foreseen; m++) {
        if (job->calls[m])
            RANK_EQUAL(rank, job_put_off(job, m), counts_later[m]);
    }
    job->phases[phase] = sets_phase(rank->session);
}

static struct program only(uint32_t count)
{
    struct program program = {.count = count};
    for (uint32_t m = 0; m < count; m++)
        program.actions[m] = (struct action){false, m};
    return program;
}

static void random_body(struct rank *rank)
{
    const struct shared *shared = rank->context;
    struct job *job = malloc(sizeof(*job));
    uint64_t common = shared->seed * 1000;
    uint64_t own = shared->seed * 1000 + 1 + rank->rank;
    struct program program = only(MODULES);
    job_make(rank, job);
    if (shared->seed % 2 == 0)
        follow(job, &program, 0);
    program = only(1);
    follow(job, &program, 1);
    for (int i = 0; i < STEPS; i++) {
        program = draw_program(&own);
        follow(job, &program, trainer_random(&common) % 3 == 0);
    }
    job_flush(job, "new"); // This step learns an order with all modules.
    job_flush(job, "new");
    job_free(job);
    free(job);
}

static void case_38_random_programs(const struct setting *setting)
{
    const char *seed = getenv("LOCKSTEP_TEST_SEED");
    const uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    const uint64_t count = seed || test_slow() > 1 ? 1 : 4;
    for (uint64_t s = first; s < first + count; s++)
        run(setting, random_body, s);
}

// ---- A rank aborts in a step with deferred calls -----------------------------------------------

// Checks that every element is this rank's own gradient, 0, or the final mean.
static void check_intact(struct job *job, const struct program *program, uint32_t m)
{
    struct rank *rank = job->rank;
    bool called = false;
    for (uint32_t a = 0; a < program->count; a++)
        called = called || program->actions[a].module == m;
    for (uint32_t p = 0; p < COUNT; p++) {
        for (uint64_t i = 0; i < sizes[p]; i++) {
            const double found = trainer_value(&job->modules[m], p, i);
            const double final = job_expected(job, m, p, i);
            const double own =
                (double)trainer_known(&job->modules[m], rank->rank, atomic_load(&rank->step), p, i);
            const bool intact = (found >= 0 && found <= 0) ||
                                (called && found >= own && found <= own) ||
                                (found >= final && found <= final);
            RANK_TRUE(rank, intact);
        }
    }
}

// Runs a program until a call fails because another rank is gone. Returns true if the step ends
// without a failure.
static bool survive(struct job *job, const struct program *program)
{
    struct rank *rank = job->rank;
    struct trained_module *module;
    for (uint32_t a = 0; a < program->count; a++) {
        const uint32_t m = program->actions[a].module;
        module = &job->modules[m];
        if (program->actions[a].waits) {
            if (lockstep_call_wait(job->calls[m], LOCKSTEP_WAIT_FOREVER) < 0)
                return false;
            continue;
        }
        if (lockstep_call_begin(module->module, &job->calls[m]) < 0)
            return false;
        trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
        for (uint32_t i = 0; i < COUNT; i++)
            (void)lockstep_grad_ready(module->module, job->calls[m], module->order[i], NULL, NULL);
        if (lockstep_call_end(job->calls[m]) < 0)
            return false;
    }
    return lockstep_step_end(rank->session, NULL) >= 0;
}

// The last rank aborts after a random part of its program, while other ranks have given up slots.
// So some slots of the step are final, and the others are not.
static void death_body(struct rank *rank)
{
    const struct shared *shared = rank->context;
    struct program programs[CLUSTER_MAX_WORLD];
    struct job *job = malloc(sizeof(*job));
    job_make(rank, job);
    job_flush(job, "all");
    const struct order_plan *plan =
        order_plan_of(rank->session->engine.order, sets_phase(rank->session));
    uint64_t state = shared->seed * 77;
    for (uint32_t r = 0; r < rank->world_size; r++)
        programs[r] = draw_program(&state);
    for (uint32_t r = 0; r < rank->world_size; r++) {
        bool counts_later[MODULES];
        foresee(plan, &programs[r], counts_later);
        for (uint32_t m = 0; m < MODULES; m++)
            job->accounts[r][m] = (struct account){.counts_later = counts_later[m], .weight = 1};
        for (uint32_t a = 0; a < programs[r].count; a++)
            job->accounts[r][programs[r].actions[a].module].called = true;
    }
    job_begin(job, "all", 1);
    rank_meet(rank);
    if (rank->rank + 1 == rank->world_size) {
        struct program part = programs[rank->rank];
        part.count = (uint32_t)(trainer_random(&state) % (part.count + 1));
        for (uint32_t a = 0; a < part.count && !part.actions[a].waits; a++)
            job_call(job, part.actions[a].module);
        lockstep_abort(rank->session, "it gives up");
    } else if (!survive(job, &programs[rank->rank])) {
        for (uint32_t m = 0; m < MODULES; m++)
            check_intact(job, &programs[rank->rank], m);
    }
    // The gradients may be freed only after the session is closed.
    lockstep_close(rank->session);
    rank->session = NULL;
    job_free(job);
    free(job);
}

static void case_43_nothing_is_torn(const struct setting *setting)
{
    const uint64_t count = test_slow() > 1 ? 2 : 6;
    for (uint64_t s = 1; s <= count; s++)
        run(setting, death_body, s);
}

// Rank 0 gives up module 0 and makes its call later. All other ranks have weight 0, so that module
// 0 has no mean in this step: its gradients are zeros on all ranks.
static void no_weight_body(struct rank *rank)
{
    static const uint8_t wanted[2] = {0, 1};
    struct job *job = malloc(sizeof(*job));
    const bool defers = rank->rank == 0;
    job_make(rank, job);
    for (uint32_t s = 0; s < 3; s++) {
        job_begin(job, "few", s == 1 && !defers ? 0 : 1);
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t m = s == 1 && defers ? 1 - i : i;
            job_call(job, m);
            if (s == 1 && defers && i == 0)
                RANK_OK(rank, lockstep_call_wait(job->calls[m], LOCKSTEP_WAIT_FOREVER));
        }
        trainer_end(rank);
        for (uint32_t m = 0; m < 2; m++) {
            const struct trained_module *module = &job->modules[m];
            uint8_t used[COUNT];
            RANK_OK(rank, lockstep_module_used(module->module, used, COUNT));
            for (uint32_t p = 0; p < COUNT; p++) {
                RANK_EQUAL(rank, used[p], s == 1 ? wanted[m] : 1);
                rank_digest(rank, module->gradients[p], sizes[p] * sizeof(float));
                if (s == 1 && m == 0)
                    RANK_TRUE(rank, !(fabs(trainer_value(module, p, sizes[p] - 1)) > 0));
            }
        }
    }
    job_free(job);
    free(job);
}

static void case_40_only_the_deferred_call_has_a_weight(const struct setting *setting)
{
    run(setting, no_weight_body, 0);
}

int main(void)
{
    static const uint32_t more[] = {2, 3, 4, 0};
    static const struct stamp stamps[] = {
        {"case_38_zero_defer_completes", case_38_zero_defer_completes, more},
        {"case_38_given_up_when_it_is_final", case_38_given_up_when_it_is_final, NULL},
        {"case_38_zero_defer_while_learning", case_38_zero_defer_while_learning, NULL},
        {"case_40_unplanned_counts_later", case_40_unplanned_counts_later, NULL},
        {"case_40_what_is_left", case_40_what_is_left, NULL},
        {"case_40_only_the_deferred_call_has_a_weight", case_40_only_the_deferred_call_has_a_weight,
         NULL},
        {"case_38_random_programs", case_38_random_programs, more},
        {"case_43_nothing_is_torn", case_43_nothing_is_torn, more},
    };
    return stamp_run_whole("reducer: deferred", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
