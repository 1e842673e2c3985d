// SPDX-License-Identifier: Apache-2.0
//
// Random trainer programs and their expected outcomes; see sim_program.h.

#include "tests/sim/sim_program.h"

#include "tests/support/choice.h"

#include <stdlib.h>
#include <string.h>

// ---- Drawing ---------------------------------------------------------------------------------

static uint32_t draw(uint64_t *random, uint32_t bound)
{
    return (uint32_t)(choice_random(random) % bound);
}

static bool chance(uint64_t *random, uint32_t percent)
{
    return draw(random, 100) < percent;
}

uint64_t program_phase(uint32_t phase)
{
    return UINT64_C(0xabc0000000000000) + phase;
}

// Buckets of both layouts are drawn, for it depends on the step which one is in force. Most ranks
// finish the modules one after the other, some mix them.
static void draw_ready(const struct program *program, uint64_t *random, struct program_step *step,
                       bool shuffled)
{
    for (uint32_t m = 0; m < program->modules; m++) {
        const uint32_t set = program->set_of[step->phase][m];
        const uint32_t most = program->first_buckets[m][set] > program->buckets[m][set]
                                  ? program->first_buckets[m][set]
                                  : program->buckets[m][set];
        for (uint32_t b = 0; (step->called >> m & 1) != 0 && b < most; b++)
            step->ready[step->ready_count++] = (struct slot_id){m, 0, b};
    }
    for (uint32_t i = step->ready_count; shuffled && i > 1; i--) {
        const uint32_t other = draw(random, i);
        const struct slot_id kept = step->ready[i - 1];
        step->ready[i - 1] = step->ready[other];
        step->ready[other] = kept;
    }
}

static void draw_said(uint64_t *random, struct program_step *step, uint32_t rank)
{
    struct commit_wave *said = &step->said;
    uint64_t name = 0;
    const uint32_t unused = chance(random, 30) ? draw(random, 12) : 0;
    const uint32_t counters = chance(random, 50) ? draw(random, LOCKSTEP_MAX_COUNTERS) : 0;
    for (uint32_t i = 0; i < unused; i++)
        said->unused[said->unused_named++] =
            (struct unused_parameter){i / 4, i % 4, rank, i / 8, 0};
    said->unused_total = said->unused_named;
    said->unused_errors = unused < 8 ? unused : 8;
    said->unused_warnings = unused - said->unused_errors;
    for (uint32_t i = 0; i < counters; i++) {
        name += 1 + draw(random, 3);
        const struct counter_delta delta = {name, (int64_t)draw(random, 100) - 50};
        said->counters[said->counter_count++] = delta;
    }
}

static void draw_layouts(struct program *program, uint64_t *random)
{
    program->plan_room = chance(random, 40) ? 1 + draw(random, 3) : LOCKSTEP_MAX_PLANS;
    program->one_set = chance(random, 20);
    for (uint32_t m = 0; m < program->modules; m++) {
        for (uint32_t set = 0; set < PROGRAM_SETS; set++) {
            program->first_buckets[m][set] = 1 + draw(random, PROGRAM_BUCKETS);
            program->buckets[m][set] = 1 + draw(random, PROGRAM_BUCKETS);
        }
        for (uint32_t phase = 0; phase < PROGRAM_PHASES; phase++)
            program->set_of[phase][m] = chance(random, 25);
    }
}

// The modules that a phase is about, the same on all ranks.
static void draw_phases(const struct program *program, uint64_t *random, uint32_t *modules)
{
    for (uint32_t phase = 0; phase < PROGRAM_PHASES; phase++) {
        modules[phase] = draw(random, 1u << program->modules);
        if (chance(random, 10))
            modules[phase] = 0;
    }
}

// One of those that have data for the step, if there are any.
static uint32_t draw_rank_with_data(const struct program *program, uint64_t *random, uint32_t step)
{
    const uint32_t drawn = draw(random, program->world);
    uint32_t rank = drawn;
    while (program->uneven != 0 && program->data_of[rank] < step) {
        rank = (rank + 1) % program->world;
        if (rank == drawn)
            break;
    }
    return rank;
}

// How long the data of each rank lasts, and so how many steps there are.
static void draw_data(struct program *program, uint64_t *random)
{
    uint32_t least = program->steps;
    uint32_t most = 0;
    program->uneven = 1 + draw(random, 2);
    for (uint32_t rank = 0; rank < program->world; rank++) {
        const uint32_t steps = draw(random, program->steps + 1);
        program->data_of[rank] = steps;
        least = steps < least ? steps : least;
        most = steps > most ? steps : most;
    }
    program->steps = program->uneven == LOCKSTEP_UNEVEN_ALL ? most : least;
}

// A rank without data runs the phase of the lowest rank that has data.
static void draw_followers(struct program *program, uint32_t step)
{
    uint32_t first = 0;
    while (first < program->world && program->data_of[first] < step)
        first++;
    for (uint32_t rank = 0; first < program->world && rank < program->world; rank++) {
        if (program->data_of[rank] < step)
            program->at[rank][step].phase = program->at[first][step].phase;
    }
}

// Draws the actions of all ranks in a step, and the deviations of some of them. wrong: this is the
// step in which the faults happen.
static void draw_step(struct program *program, uint64_t *random, uint32_t step,
                      const struct program_faults *faults, const uint32_t *modules, bool wrong)
{
    // Most steps are of one phase, so that most are planned, above all those with other calls.
    const bool usual = (wrong && faults->extra) || chance(random, 60);
    const uint32_t phase = usual ? 0 : draw(random, PROGRAM_PHASES);
    const bool missing = chance(random, 40);
    const bool shuffled = chance(random, 70);
    // Calls that nobody makes are not learned, and would be outside the plan later.
    const uint32_t complete = draw_rank_with_data(program, random, step);
    for (uint32_t rank = 0; rank < program->world; rank++) {
        struct program_step *at = &program->at[rank][step];
        at->phase = phase;
        if (wrong && faults->phase && chance(random, 40))
            at->phase = draw(random, PROGRAM_PHASES);
        at->called = modules[at->phase];
        if (missing && rank != complete)
            at->called &= draw(random, UINT32_MAX);
        if (wrong && faults->extra && chance(random, 40))
            at->called |= 1u << draw(random, program->modules);
        if (program->uneven != 0 && step > program->data_of[rank])
            at->called = 0;
        draw_ready(program, random, at, shuffled);
        draw_said(random, at, rank);
    }
    if (program->uneven != 0)
        draw_followers(program, step);
}

static void draw_ends(struct program *program, uint64_t *random,
                      const struct program_faults *faults)
{
    const uint32_t victim = draw(random, program->world);
    for (uint32_t rank = 0; rank < program->world; rank++)
        program->steps_of[rank] = program->steps;
    if (program->steps == 0)
        return;
    if (faults->leave) {
        program->steps_of[victim] = draw(random, program->steps);
        program->midway[victim] = chance(random, 30);
    }
    if (faults->abort)
        program->aborts_in[victim] = 1 + draw(random, program->steps);
}

static void draw_start(struct program *program, uint64_t *random,
                       const struct program_faults *faults)
{
    const bool again = program->steps > 1 && (faults->start || chance(random, 30));
    const uint32_t after = again ? 1 + draw(random, program->steps - 1) : 0;
    for (uint32_t rank = 0; rank < program->world; rank++)
        program->starts_after[rank] = faults->start && chance(random, 40) ? 0 : after;
}

void program_draw(struct program *program, uint64_t seed, const struct program_faults *faults)
{
    uint64_t random = seed;
    uint32_t modules[PROGRAM_PHASES];
    memset(program, 0, sizeof(*program));
    program->world = 1 + draw(&random, chance(&random, 10) ? 12 : 5);
    program->steps = chance(&random, 15) ? 1 : 2 + draw(&random, PROGRAM_STEPS - 1);
    program->modules = 1 + draw(&random, chance(&random, 15) ? PROGRAM_MODULES : 4);
    draw_layouts(program, &random);
    draw_phases(program, &random, modules);
    if (faults->uneven)
        draw_data(program, &random);
    const uint32_t wrong = program->steps > 0 ? 1 + draw(&random, program->steps) : 0;
    for (uint32_t step = 1; step <= program->steps; step++)
        draw_step(program, &random, step, faults, modules, step == wrong);
    draw_start(program, &random, faults);
    draw_ends(program, &random, faults);
}

void program_draw_calls(struct program *program, uint64_t seed)
{
    struct calls *calls = &program->calls;
    memset(program, 0, sizeof(*program));
    calls_draw(calls, seed);
    program->has_calls = true;
    program->world = calls->world;
    program->steps = calls->steps;
    program->modules = calls->modules;
    program->plan_room = LOCKSTEP_MAX_PLANS;
    for (uint32_t m = 0; m < calls->modules; m++)
        program->first_buckets[m][0] = program->buckets[m][0] = calls->buckets[m];
    for (uint32_t rank = 0; rank < calls->world; rank++) {
        program->steps_of[rank] = calls->steps;
        for (uint32_t step = 1; step <= calls->steps; step++)
            program->at[rank][step].phase = calls->at[rank][step].phase;
    }
}

// ---- Sets ------------------------------------------------------------------------------------

bool program_enter(const struct program *program, struct program_sets *sets, uint32_t phase)
{
    bool forgotten = false;
    for (uint32_t m = 0; m < program->modules; m++) {
        const uint32_t set = program->set_of[phase][m];
        bool *other = &sets->learned[m][1 - set];
        if (program->one_set && *other) {
            *other = false;
            forgotten = true;
        }
        sets->in_force[m] = set;
    }
    return forgotten;
}

uint32_t program_buckets(const struct program *program, const struct program_sets *sets,
                         uint32_t module)
{
    const uint32_t set = sets->in_force[module];
    return sets->learned[module][set] ? program->buckets[module][set]
                                      : program->first_buckets[module][set];
}

// ---- What must come of it --------------------------------------------------------------------

bool program_finished(const struct program *program, uint32_t exhausted)
{
    return exhausted == program->world ||
           (exhausted > 0 && program->uneven == LOCKSTEP_UNEVEN_FIRST);
}

static struct parts called_by(const struct program *program, uint32_t step, uint32_t module)
{
    struct parts ranks = {{0}};
    for (uint32_t rank = 0; rank < program->world; rank++)
        ranks.words[0] |= (uint64_t)(program->at[rank][step].called >> module & 1) << rank;
    return ranks;
}

static uint32_t called_by_any(const struct program *program, uint32_t step)
{
    uint32_t modules = 0;
    for (uint32_t rank = 0; rank < program->world; rank++)
        modules |= program->at[rank][step].called;
    return modules;
}

static int unused_order(const void *a, const void *b)
{
    const struct unused_parameter *x = a;
    const struct unused_parameter *y = b;
    const uint64_t left = ((uint64_t)x->severity << 48) + ((uint64_t)x->module << 32) +
                          (x->parameter << 16) + x->rank;
    const uint64_t right = ((uint64_t)y->severity << 48) + ((uint64_t)y->module << 32) +
                           (y->parameter << 16) + y->rank;
    return (left > right) - (left < right);
}

static void expect_unused(const struct program *program, uint32_t step, struct commit_wave *commit)
{
    struct unused_parameter all[PROGRAM_WORLD * ORDER_UNUSED_NAMED];
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < program->world; rank++) {
        const struct commit_wave *said = &program->at[rank][step].said;
        for (uint32_t i = 0; i < said->unused_named; i++)
            all[count++] = said->unused[i];
        commit->unused_errors += said->unused_errors;
        commit->unused_warnings += said->unused_warnings;
    }
    qsort(all, count, sizeof(all[0]), unused_order);
    commit->unused_total = count;
    commit->unused_named = count < ORDER_UNUSED_NAMED ? count : ORDER_UNUSED_NAMED;
    memcpy(commit->unused, all, commit->unused_named * sizeof(all[0]));
}

// Sums by name, in the order of names; names are small numbers here.
static void expect_counters(const struct program *program, uint32_t step,
                            struct commit_wave *commit)
{
    for (uint64_t name = 1; name < 4 * LOCKSTEP_MAX_COUNTERS; name++) {
        struct counter_delta sum = {.name = name};
        bool used = false;
        for (uint32_t rank = 0; rank < program->world; rank++) {
            const struct commit_wave *said = &program->at[rank][step].said;
            for (uint32_t i = 0; i < said->counter_count; i++) {
                used |= said->counters[i].name == name;
                sum.delta += said->counters[i].name == name ? said->counters[i].delta : 0;
            }
        }
        if (used && commit->counter_count == LOCKSTEP_MAX_COUNTERS)
            commit->counter_overflow = 1;
        else if (used)
            commit->counters[commit->counter_count++] = sum;
    }
}

static void expect_slots(const struct program *program, uint32_t step,
                         const struct program_sets *sets, uint32_t modules,
                         struct program_outcome *outcome)
{
    for (uint32_t m = 0; m < program->modules; m++)
        for (uint32_t b = 0; (modules >> m & 1) != 0 && b < program_buckets(program, sets, m); b++)
            outcome->slots[outcome->slot_count++] =
                (struct program_slot){{m, 0, b}, called_by(program, step, m)};
}

static bool starts_before(const struct program *program, uint32_t rank, uint32_t step)
{
    return step == 1 || program->starts_after[rank] == step - 1;
}

// Lists every fault of this step that a verdict may name.
static uint32_t expect_verdicts(const struct program *program, uint32_t step, uint32_t plan)
{
    uint32_t verdicts = 0;
    const bool planned = plan != UINT32_MAX;
    bool leaves = false;
    for (uint32_t rank = 0; rank < program->world; rank++) {
        leaves |= program->steps_of[rank] < step;
        if (program->at[rank][step].phase != program->at[0][step].phase)
            verdicts |= 1u << HALT_PHASE;
        if (program->aborts_in[rank] == step)
            verdicts |= 1u << HALT_LOST;
        if (starts_before(program, rank, step) != starts_before(program, 0, step))
            verdicts |= 1u << HALT_MANIFEST;
    }
    if (leaves && program->world > 1)
        verdicts |= 1u << HALT_LEFT;
    // The calls are compared only by ranks that agree on the phase and are all there.
    if (verdicts == 0 && planned && (called_by_any(program, step) & ~plan) != 0)
        verdicts |= 1u << HALT_UNPLANNED;
    return verdicts;
}

// Memory of a phase.
struct memory {
    uint32_t plan; // Set of modules; UINT32_MAX: none.
    uint32_t used; // Last step.
};

static void memory_clear(struct memory *memories)
{
    for (uint32_t phase = 0; phase < PROGRAM_PHASES; phase++)
        memories[phase].plan = UINT32_MAX;
}

// Makes room for one more plan.
static void memory_forget(const struct program *program, struct memory *memories)
{
    struct memory *oldest = NULL;
    uint32_t held = 0;
    for (uint32_t phase = 0; phase < PROGRAM_PHASES; phase++) {
        struct memory *memory = &memories[phase];
        held += memory->plan != UINT32_MAX;
        if (memory->plan != UINT32_MAX && (!oldest || memory->used < oldest->used))
            oldest = memory;
    }
    if (held == program->plan_room)
        oldest->plan = UINT32_MAX;
}

static void expect_learned(const struct program *program, uint32_t step, struct memory *memories,
                           struct memory *memory, struct program_sets *sets)
{
    memory_forget(program, memories);
    memory->plan = called_by_any(program, step);
    for (uint32_t m = 0; m < program->modules; m++)
        sets->learned[m][sets->in_force[m]] = true;
}

void program_expect(const struct program *program, struct program_outcome *outcomes)
{
    struct memory memories[PROGRAM_PHASES];
    struct program_sets sets;
    memset(outcomes, 0, (PROGRAM_STEPS + 1) * sizeof(*outcomes));
    for (uint32_t step = 1; step <= program->steps; step++) {
        struct program_outcome *outcome = &outcomes[step];
        struct memory *memory = &memories[program->at[0][step].phase];
        const bool first = starts_before(program, 0, step);
        if (first)
            memset(&sets, 0, sizeof(sets));
        if (program_enter(program, &sets, program->at[0][step].phase) || first)
            memory_clear(memories);
        outcome->verdicts = expect_verdicts(program, step, memory->plan);
        if ((outcome->verdicts & ~(1u << HALT_UNPLANNED)) != 0)
            return;
        outcome->learning = memory->plan == UINT32_MAX;
        expect_slots(program, step, &sets,
                     outcome->learning ? called_by_any(program, step) : memory->plan, outcome);
        expect_unused(program, step, &outcome->commit);
        expect_counters(program, step, &outcome->commit);
        if (outcome->verdicts != 0)
            return;
        if (outcome->learning)
            expect_learned(program, step, memories, memory, &sets);
        memory->used = step;
    }
}
