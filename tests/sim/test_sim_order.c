// SPDX-License-Identifier: Apache-2.0
//
// Simulated worlds of real worker cores and the real coordinator core: random programs, random
// timing, and everything that may happen to a world. The invariants are in sim_ledger.h and the
// required outcomes of programs in sim_program.c. This file has the required outcomes of faults.
//
// There are two families of programs. In the first, trainers wait for calls only by step_end
// (sim_program.c). In the second, they wait for single calls, under all policies (sim_calls.h); its
// seeds begin at 1,000,000,000. Each seed runs its program under two timings.
// LOCKSTEP_TEST_SIM_SEEDS=n runs n seeds (1000) of the first family and n / 8 of the second.
// LOCKSTEP_TEST_SIM_SEED=n runs one seed and prints its traces.

#include "tests/sim/sim_engine.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    WORLD_LIMIT_MS = 60000,
    WORLD_TIMINGS = 2
};

struct world {
    struct sim sim;
    struct program program;
    struct ledger ledger;
    struct engine_options options[PROGRAM_WORLD];
    uint32_t victim;
    uint64_t core_crash_ms; // 0: never.
    // True if all was learned before the crash: no later step needs the coordinator.
    bool learned;
};

// ---- Scenarios -------------------------------------------------------------------------------

static uint32_t draw_victim(struct world *world)
{
    world->ledger.faults = true;
    world->victim = (uint32_t)sim_random(&world->sim, world->program.world);
    return world->victim;
}

static void calm(struct world *world)
{
    (void)world;
}

static void crash(struct world *world)
{
    const uint64_t at_ms = sim_random(&world->sim, 900);
    sim_crash_at(world->sim.workers[draw_victim(world)], at_ms);
}

// A rank dies in the middle of an event: only some effects of the event happen.
static void crash_inside(struct world *world)
{
    const uint32_t dies_at = 1 + (uint32_t)sim_random(&world->sim, 80);
    world->options[draw_victim(world)].dies_at = dies_at;
}

static void stream_break(struct world *world)
{
    const uint64_t at_ms = sim_random(&world->sim, 900);
    sim_break_at(world->sim.workers[draw_victim(world)], at_ms);
}

static void no_coordinator(struct world *world)
{
    world->ledger.faults = true;
    world->core_crash_ms = 30 + sim_random(&world->sim, 900);
    sim_core_crash_at(&world->sim, world->core_crash_ms);
}

static void no_coordinator_then_crash(struct world *world)
{
    no_coordinator(world);
    crash(world);
}

// ---- What must come of them ------------------------------------------------------------------

static const struct ledger_rank *rank_of(const struct world *world, uint32_t rank)
{
    return &world->ledger.ranks[rank];
}

static bool names_victim(const struct world *world, const char *text)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %" PRIu32 " ", world->victim);
    return strncmp(text, name, strlen(name)) == 0;
}

// A rank that ends otherwise than well names the rank that died. No rank has finished steps that
// the dead rank had not all but finished.
static void expect_death(struct world *world)
{
    struct sim *sim = &world->sim;
    const bool died = sim->workers[world->victim]->end == SIM_CRASHED;
    for (uint32_t rank = 0; rank < world->program.world; rank++) {
        const struct ledger_rank *here = rank_of(world, rank);
        if (rank == world->victim || sim->workers[rank]->generation.number == 0)
            continue;
        if (here->end == SESSION_LEFT && here->settled == world->program.steps)
            continue;
        if (!died || here->end != SESSION_HALTED || here->verdict != HALT_LOST ||
            !names_victim(world, here->text))
            sim_fail(sim, "rank %" PRIu32 " does not name rank %" PRIu32 " as lost: %d, %s", rank,
                     world->victim, (int)here->verdict, here->text);
    }
}

static void expect_break(struct world *world)
{
    struct sim *sim = &world->sim;
    for (uint32_t rank = 0; rank < world->program.world; rank++) {
        const struct ledger_rank *here = rank_of(world, rank);
        const bool done = here->end == SESSION_LEFT && here->settled == world->program.steps;
        if (rank == world->victim || done || sim->workers[rank]->generation.number == 0)
            continue;
        if (here->verdict != HALT_LOST || !names_victim(world, here->text))
            sim_fail(sim, "rank %" PRIu32 " does not name rank %" PRIu32 " as lost: %s", rank,
                     world->victim, here->text);
    }
}

// Checks a world whose coordinator has crashed: planned steps go on, and a failure names its cause.
static void expect_no_coordinator(struct world *world)
{
    struct sim *sim = &world->sim;
    for (uint32_t rank = 0; rank < world->program.world; rank++) {
        const struct ledger_rank *here = rank_of(world, rank);
        const bool done = here->end == SESSION_LEFT && here->settled == world->program.steps;
        if (!done && world->learned)
            sim_fail(sim, "rank %" PRIu32 " stops in a planned step without coordinator: %s", rank,
                     here->text);
        if (here->end != SESSION_LEFT && here->text[0] == '\0')
            sim_fail(sim, "rank %" PRIu32 " fails without a word", rank);
    }
}

static void expect_names(struct world *world)
{
    for (uint32_t rank = 0; rank < world->program.world; rank++)
        if (world->sim.workers[rank]->end == SIM_HALTED && rank_of(world, rank)->text[0] == '\0')
            sim_fail(&world->sim, "rank %" PRIu32 " fails without a word", rank);
}

static void expect_abort(struct world *world)
{
    struct sim *sim = &world->sim;
    for (uint32_t rank = 0; rank < world->program.world; rank++) {
        const struct ledger_rank *here = rank_of(world, rank);
        const bool own = world->program.aborts_in[rank] != 0;
        if (own ? here->end != SESSION_ABORTED
                : here->end != SESSION_HALTED || here->verdict != HALT_LOST)
            sim_fail(sim, "rank %" PRIu32 " ends otherwise after an abort: %s", rank, here->text);
    }
}

static void expect_program(struct world *world)
{
    (void)world;
}

// Ranks wait for each other, and some of them not with all their threads; or what they do has a
// verdict, and nobody is there to tell it: the coordinator has died, or the stream of a rank has
// broken before it heard it, while the others did and have left.
static bool may_hang(const struct world *world)
{
    const struct ledger *ledger = &world->ledger;
    const bool ends = ledger->hangs_in == 0 && ledger->outcomes[ledger->expected_to].verdicts == 0;
    bool struck = false;
    bool untold = world->core_crash_ms != 0;
    if (!world->program.has_calls || ends)
        return false;
    for (uint32_t i = 0; i < world->program.world; i++) {
        const struct sim_worker *worker = world->sim.workers[i];
        struck |= worker->end == SIM_CRASHED || worker->broken;
        untold |= worker->broken && worker->end == SIM_RUNNING;
    }
    for (uint32_t i = 0; untold && world->core_crash_ms == 0 && i < world->program.world; i++)
        untold = world->sim.workers[i]->end != SIM_RUNNING || world->sim.workers[i]->broken;
    // A death ends every wait.
    return untold || (ledger->hangs_in != 0 && !struck);
}

// A rank that ends otherwise than well has the verdict that its program requires, or names the rank
// that died.
static void expect_death_in_calls(struct world *world)
{
    struct sim *sim = &world->sim;
    for (uint32_t rank = 0; rank < world->program.world && !may_hang(world); rank++) {
        const struct ledger_rank *here = rank_of(world, rank);
        const bool done = here->end == SESSION_LEFT && here->settled == world->program.steps;
        if (rank == world->victim || done || sim->workers[rank]->generation.number == 0)
            continue;
        const uint32_t verdicts = world->ledger.outcomes[here->settled + 1].verdicts;
        if (here->end == SESSION_HALTED && (verdicts & 1u << here->verdict) != 0)
            continue;
        if (here->verdict != HALT_LOST || !names_victim(world, here->text))
            sim_fail(sim, "rank %" PRIu32 " does not name rank %" PRIu32 " as lost: %s", rank,
                     world->victim, here->text);
    }
}

struct scenario {
    const char *name;
    struct program_faults faults;
    void (*prepare)(struct world *world);
    void (*expect)(struct world *world);
};

static const struct scenario scenarios[] = {
    {"calm", {.extra = false}, calm, expect_program},
    {"calls outside the plan", {.extra = true}, calm, expect_program},
    {"calm", {.extra = false}, calm, expect_program},
    {"phases differ", {.phase = true}, calm, expect_program},
    {"a rank leaves early", {.leave = true}, calm, expect_program},
    {"some start again", {.start = true}, calm, expect_program},
    {"everything is wrong",
     {.extra = true, .phase = true, .leave = true, .start = true},
     calm,
     expect_program},
    {"a rank aborts", {.abort = true}, calm, expect_abort},
    {"a rank dies", {.extra = false}, crash, expect_death},
    {"a rank dies inside an event", {.extra = false}, crash_inside, expect_death},
    {"a stream breaks", {.extra = false}, stream_break, expect_break},
    {"data runs out", {.uneven = true}, calm, expect_program},
    {"data runs out, and everything is wrong",
     {.extra = true, .phase = true, .leave = true, .uneven = true},
     calm,
     expect_program},
    {"data runs out, and a rank dies", {.uneven = true}, crash, expect_death},
    {"data runs out, and a rank dies inside an event",
     {.uneven = true},
     crash_inside,
     expect_death},
    {"the coordinator dies", {.extra = false}, no_coordinator, expect_no_coordinator},
    {"coordinator and rank die", {.extra = false}, no_coordinator_then_crash, expect_names},
    {"wrong programs, and a rank dies",
     {.extra = true, .phase = true, .leave = true, .start = true},
     crash,
     expect_names},
};

static const struct scenario call_scenarios[] = {
    {"calls", {.extra = false}, calm, expect_program},
    {"calls, and a rank dies", {.extra = false}, crash, expect_death_in_calls},
    {"calls again", {.extra = false}, calm, expect_program},
    {"calls, and a rank dies inside an event",
     {.extra = false},
     crash_inside,
     expect_death_in_calls},
    {"more calls", {.extra = false}, calm, expect_program},
    {"calls, and a stream breaks", {.extra = false}, stream_break, expect_death_in_calls},
    {"still more calls", {.extra = false}, calm, expect_program},
    {"calls, and the coordinator dies", {.extra = false}, no_coordinator, expect_names},
};

enum {
    SCENARIOS = sizeof(scenarios) / sizeof(scenarios[0]),
    CALL_SCENARIOS = sizeof(call_scenarios) / sizeof(call_scenarios[0]),
    CALL_SEEDS = 1000000000, // Seeds of the second family begin here.
    CALL_PART = 8, // Number of seeds of the first family for each seed of the second.
};

static const struct scenario *scenario_of(uint64_t seed)
{
    return seed < CALL_SEEDS ? &scenarios[seed % SCENARIOS]
                             : &call_scenarios[seed % CALL_SCENARIOS];
}

// ---- Running ---------------------------------------------------------------------------------

struct tally {
    uint64_t events;
    uint64_t settled;
    uint64_t planned; // Number of settled steps that were planned.
    uint64_t ends[SESSION_ABORTED + 1];
    uint64_t verdicts[HALT_LAYOUT + 1];
    uint64_t put_off; // Number of buckets that were deferred at the end.
    uint64_t replaced; // Number of steps on a plan that has replaced a learned one.
    uint64_t hung; // Runs that only a stall verdict can explain.
};

static void count(const struct world *world, struct tally *tally)
{
    tally->events += world->sim.steps;
    tally->hung += may_hang(world);
    tally->replaced += world->ledger.replaced;
    for (uint32_t rank = 0; rank < world->program.world; rank++) {
        const struct ledger_rank *here = &world->ledger.ranks[rank];
        tally->ends[here->end]++;
        tally->verdicts[here->verdict]++;
        tally->settled += here->settled;
        for (uint64_t step = 1; step <= here->settled; step++)
            tally->planned += !world->ledger.outcomes[step].learning;
        for (uint32_t i = 0; here->run && i < CALLS_MODULES * CALLS_BUCKETS; i++)
            tally->put_off += !parts_equal(&here->run->stash[i / CALLS_BUCKETS][i % CALLS_BUCKETS],
                                           &(struct parts){{0}});
    }
}

static void trace_calls(struct sim *sim, const struct calls *calls)
{
    static const char *const unplanned[] = {"extend", "fail", "defer"};
    const struct order_options *options = &calls->options;
    sim_trace(sim,
              "W = %" PRIu32 ", order %s, unplanned %s, %" PRIu32 " threads, strict ranks %" PRIx32,
              options->window, options->zero_defer ? "zero_defer" : "error",
              unplanned[options->unplanned], calls->threads, calls->strict);
}

static void world_begin(struct world *world, const struct scenario *scenario, uint64_t seed,
                        uint32_t timing)
{
    struct sim *sim = &world->sim;
    sim_begin(sim, seed);
    sim->random += timing * UINT64_C(0x2545f4914f6cdd1d);
    sim->lossy = true;
    sim->delay_ms = 1 + (uint32_t)sim_random(sim, 20);
    sim_trace(sim, "seed %" PRIu64 ", timing %" PRIu32 ", %s", seed, timing, scenario->name);
    if (seed >= CALL_SEEDS) {
        program_draw_calls(&world->program, seed);
        trace_calls(sim, &world->program.calls);
    } else {
        program_draw(&world->program, seed, &scenario->faults);
    }
    sim->forces = world->program.calls.options.zero_defer;
    ledger_begin(&world->ledger, sim, &world->program);
    memset(world->options, 0, sizeof(world->options));
    world->core_crash_ms = 0;
    world->learned = false;
}

static void world_spawn(struct world *world, const struct scenario *scenario)
{
    struct sim *sim = &world->sim;
    for (uint32_t rank = 0; rank < world->program.world; rank++) {
        world->options[rank].rank = rank;
        world->options[rank].think_ms = 1 + (uint32_t)sim_random(sim, sim_chance(sim, 15) ? 60 : 8);
        engine_spawn(sim, &world->program, &world->ledger, &world->options[rank],
                     sim_random(sim, 30));
    }
    world->ledger.faults = scenario->faults.abort;
    scenario->prepare(world);
}

// True if every rank has settled the last step that the programs learn.
static bool all_learned(const struct world *world)
{
    for (uint32_t rank = 0; rank < world->program.world; rank++)
        for (uint64_t step = world->ledger.ranks[rank].settled + 1; step <= world->program.steps;
             step++)
            if (world->ledger.outcomes[step].learning)
                return false;
    return true;
}

static void world_run(struct world *world)
{
    struct sim *sim = &world->sim;
    if (world->core_crash_ms != 0) {
        sim_run(sim, world->core_crash_ms - 1);
        world->learned = all_learned(world);
    }
    if (!sim_run(sim, WORLD_LIMIT_MS))
        sim_fail(sim, "the run has not come to an end");
    if (!may_hang(world))
        check_finished(sim);
    ledger_finished(&world->ledger);
}

// Checks that two timings have the same outcome: each rank settles the same steps, and each step
// has the same commit payload.
static void same_outcome(struct world *world, const struct ledger *before)
{
    for (uint32_t rank = 0; rank < world->program.world; rank++)
        if (before->ranks[rank].settled != world->ledger.ranks[rank].settled)
            sim_fail(&world->sim, "rank %" PRIu32 " settles other steps under another timing",
                     rank);
    for (uint32_t step = 1; step <= world->program.steps; step++) {
        const uint32_t phase = world->program.at[0][step].phase;
        const struct ledger_step *here = &world->ledger.steps[step][phase];
        if (here->committed &&
            memcmp(&here->commit, &before->steps[step][phase].commit, sizeof(here->commit)) != 0)
            sim_fail(&world->sim, "step %" PRIu32 " ends differently under another timing", step);
    }
}

static void print_trace(const struct sim *sim)
{
    const uint64_t lines = sim->trace_count;
    for (uint64_t i = lines > SIM_TRACE_LINES ? lines - SIM_TRACE_LINES : 0; i < lines; i++)
        puts(sim->trace[i % SIM_TRACE_LINES]);
}

// Returns a hash of what happened.
static uint64_t run_seed(struct world *world, uint64_t seed, struct tally *tally, bool prints)
{
    static struct ledger before;
    uint64_t hash = 0;
    const struct scenario *scenario = scenario_of(seed);
    for (uint32_t timing = 0; timing < WORLD_TIMINGS; timing++) {
        world_begin(world, scenario, seed, timing);
        world_spawn(world, scenario);
        world_run(world);
        scenario->expect(world);
        // The plans that calls learn depend on timing, and the outcome of calls depends on these
        // plans.
        if (timing > 0 && !world->ledger.faults && seed < CALL_SEEDS)
            same_outcome(world, &before);
        before = world->ledger;
        count(world, tally);
        if (prints)
            print_trace(&world->sim);
        hash = hash * 31 + world->sim.trace_hash;
        sim_end(&world->sim);
    }
    return hash;
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return !text || text[0] == '\0' ? otherwise : strtoull(text, NULL, 10);
}

static void print_tally(const struct tally *tally)
{
    printf("%" PRIu64 " events, %" PRIu64 " steps settled (%" PRIu64 " planned); left %" PRIu64
           ", halted %" PRIu64 ", without coordinator %" PRIu64 ", aborted %" PRIu64 "\n",
           tally->events, tally->settled, tally->planned, tally->ends[SESSION_LEFT],
           tally->ends[SESSION_HALTED], tally->ends[SESSION_UNREACHABLE],
           tally->ends[SESSION_ABORTED]);
    printf("phase %" PRIu64 ", unplanned %" PRIu64 ", order %" PRIu64 ", lost %" PRIu64
           ", left %" PRIu64 ", parted %" PRIu64 "; buckets put off %" PRIu64
           ", on new plans %" PRIu64 ", hung %" PRIu64 "\n",
           tally->verdicts[HALT_PHASE], tally->verdicts[HALT_UNPLANNED],
           tally->verdicts[HALT_ORDER], tally->verdicts[HALT_LOST], tally->verdicts[HALT_LEFT],
           tally->verdicts[HALT_MANIFEST], tally->put_off, tally->replaced, tally->hung);
}

static void test_seeds(void **state)
{
    static struct world world;
    struct tally tally = {0};
    const uint64_t only = number_from("LOCKSTEP_TEST_SIM_SEED", UINT64_MAX);
    const uint64_t seeds = number_from("LOCKSTEP_TEST_SIM_SEEDS", 1000);
    (void)state;
    if (only != UINT64_MAX) {
        run_seed(&world, only, &tally, true);
        return;
    }
    for (uint64_t seed = 0; seed < seeds; seed++)
        run_seed(&world, seed, &tally, false);
    print_tally(&tally);
    if (seeds < 1000)
        return;
    assert_true(tally.planned > 0 && tally.ends[SESSION_ABORTED] > 0);
    assert_true(tally.verdicts[HALT_PHASE] > 0 && tally.verdicts[HALT_UNPLANNED] > 0);
    assert_true(tally.verdicts[HALT_LOST] > 0 && tally.verdicts[HALT_LEFT] > 0);
    assert_true(tally.verdicts[HALT_MANIFEST] > 0);
}

static void test_calls(void **state)
{
    static struct world world;
    struct tally tally = {0};
    const uint64_t only = number_from("LOCKSTEP_TEST_SIM_SEED", UINT64_MAX);
    const uint64_t seeds = number_from("LOCKSTEP_TEST_SIM_SEEDS", 1000) / CALL_PART;
    (void)state;
    for (uint64_t seed = 0; seed < seeds && only == UINT64_MAX; seed++)
        run_seed(&world, CALL_SEEDS + seed, &tally, false);
    print_tally(&tally);
    if (seeds < 500 || only != UINT64_MAX)
        return;
    assert_true(tally.planned > 0 && tally.put_off > 0 && tally.replaced > 0);
    assert_true(tally.verdicts[HALT_ORDER] > 0 && tally.verdicts[HALT_UNPLANNED] > 0);
    assert_true(tally.verdicts[HALT_PHASE] > 0 && tally.verdicts[HALT_LOST] > 0);
}

static void test_a_seed_is_the_same_every_time(void **state)
{
    static struct world world;
    struct tally tally = {0};
    (void)state;
    for (uint64_t seed = 0; seed < 4 * SCENARIOS; seed++)
        assert_int_equal(run_seed(&world, seed, &tally, false),
                         run_seed(&world, seed, &tally, false));
    for (uint64_t seed = CALL_SEEDS; seed < CALL_SEEDS + 4 * CALL_SCENARIOS; seed++)
        assert_int_equal(run_seed(&world, seed, &tally, false),
                         run_seed(&world, seed, &tally, false));
}

// Two ranks, one module of one bucket, two steps of one phase, every delay one millisecond: the
// first step is learned, the second needs no coordinator. Rank 1 does not call its module then.
static const char story_without_coordinator[] =
    "[   13] the coordinator crashes\n"
    "[   13] rank 1 of j begins step 2 in phase 0\n"
    "[   13] rank 1 of j -> rank 0: header of step 2\n"
    "[   13] rank 0 of j begins step 2 in phase 0\n"
    "[   13] rank 0 of j -> rank 1: header of step 2\n"
    "[   14] rank 0 of j sees the end of its control stream\n"
    "[   14] rank 1 of j sees the end of its control stream\n"
    "[   14] rank 0 of j: slot 0#0.0 is ready\n"
    "[   14] rank 0 of j launches position 0 of step 2: slot 0#0.0\n"
    "[   14] rank 1 of j ends step 2\n"
    "[   14] rank 1 of j launches position 0 of step 2: slot 0#0.0, zeros\n"
    "[   14] rank 1 of j joins the close wave of step 2\n"
    "[   14] rank 1 of j -> rank 0: close wave of step 2, round 1\n"
    "[   15] rank 0 of j ends step 2\n"
    "[   15] rank 0 of j joins the close wave of step 2\n"
    "[   15] rank 0 of j -> rank 1: close wave of step 2, round 1\n"
    "[   15] rank 0 of j: position 0 of step 2 is final\n"
    "[   15] rank 1 of j: position 0 of step 2 is final\n"
    "[   15] rank 0 of j joins the commit wave of step 2\n"
    "[   15] rank 0 of j -> rank 1: commit wave of step 2, round 1\n"
    "[   16] rank 1 of j joins the commit wave of step 2\n"
    "[   16] rank 1 of j -> rank 0: commit wave of step 2, round 1\n"
    "[   16] rank 1 of j has settled step 2\n"
    "[   17] rank 0 of j has settled step 2\n"
    "[   17] rank 1 of j says goodbye to its peers\n"
    "[   18] rank 0 of j says goodbye to its peers\n"
    "[   18] rank 1 of j is done\n"
    "[   19] rank 0 of j is done\n";

static void story_program(struct program *program)
{
    memset(program, 0, sizeof(*program));
    program->world = program->steps = 2;
    program->modules = program->first_buckets[0][0] = program->buckets[0][0] = 1;
    program->plan_room = 1;
    program->steps_of[0] = program->steps_of[1] = 2;
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t step = 1; step + rank <= 2; step++)
            program->at[rank][step].called = program->at[rank][step].ready_count = 1;
}

// The trace from the first line that has a piece of text.
static void story_text(const struct sim *sim, const char *piece, char *text, size_t bytes)
{
    size_t used = 0;
    uint64_t line = 0;
    while (line < sim->trace_count && !strstr(sim->trace[line], piece))
        line++;
    for (; line < sim->trace_count; line++)
        used += (size_t)snprintf(text + used, bytes - used, "%s\n", sim->trace[line]);
}

static void test_the_story_of_a_step_without_coordinator(void **state)
{
    static struct world world;
    const struct scenario scenario = {.name = "a story"};
    struct sim *sim = &world.sim;
    char text[4096] = "";
    (void)state;
    world_begin(&world, &scenario, 0, 0);
    story_program(&world.program);
    ledger_begin(&world.ledger, sim, &world.program);
    sim->delay_ms = 1;
    for (uint32_t rank = 0; rank < 2; rank++) {
        world.options[rank] = (struct engine_options){.rank = rank, .think_ms = 1};
        engine_spawn(sim, &world.program, &world.ledger, &world.options[rank], rank);
    }
    sim_core_crash_at(sim, 13);
    world_run(&world);
    story_text(sim, "crashes", text, sizeof(text));
    sim_end(sim);
    if (strcmp(text, story_without_coordinator) != 0)
        puts(text);
    assert_string_equal(text, story_without_coordinator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_story_of_a_step_without_coordinator),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_a_seed_is_the_same_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
