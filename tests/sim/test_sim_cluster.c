// SPDX-License-Identifier: Apache-2.0
//
// Simulated clusters of scripted workers around the real coordinator core. Each seed is a scenario
// with its own faults. sim_check.c has the invariants of all scenarios; this file has the required
// outcome of each.
//
// LOCKSTEP_TEST_SIM_SEEDS=n runs n seeds (1000), LOCKSTEP_TEST_SIM_SEED=n runs one and prints its
// trace.

#include "tests/sim/sim_script.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    CLUSTER_LIMIT_MS = 120000,
    CLUSTER_JOBS = 3
};

struct cluster {
    struct sim sim;
    struct script scripts[CLUSTER_JOBS];
};

// ---- Scenarios -------------------------------------------------------------------------------

static uint32_t draw_world(struct sim *sim)
{
    return 1 + (uint32_t)sim_random(sim, sim_chance(sim, 10) ? 16 : 5);
}

static void spawn_job(struct cluster *cluster, struct script *script, uint32_t count,
                      const struct script_options *options)
{
    struct sim *sim = &cluster->sim;
    for (uint32_t i = 0; i < count; i++)
        script_spawn(sim, script, options, sim_random(sim, 200));
}

static struct script_options draw_options(struct sim *sim)
{
    struct script_options options = {.hosts = 1 + (uint32_t)sim_random(sim, 3)};
    return options;
}

static void calm(struct cluster *cluster)
{
    struct sim *sim = &cluster->sim;
    const struct script_options options = draw_options(sim);
    const uint32_t jobs = 1 + (uint32_t)sim_random(sim, CLUSTER_JOBS);
    for (uint32_t i = 0; i < jobs; i++) {
        const uint32_t world = draw_world(sim);
        script_draw(sim, &cluster->scripts[i], i, world);
        // Waits in one order on all ranks never form a cycle.
        if (sim_chance(sim, 30)) {
            cluster->scripts[i].shuffle_percent = 0;
            cluster->scripts[i].skip_percent = 0;
            cluster->scripts[i].wait_percent = 40;
        }
        spawn_job(cluster, &cluster->scripts[i], world, &options);
    }
}

static void elastic(struct cluster *cluster)
{
    struct sim *sim = &cluster->sim;
    struct script *script = &cluster->scripts[0];
    const struct script_options options = draw_options(sim);
    const uint32_t world = draw_world(sim);
    script_draw(sim, script, 0, world);
    script->world_max += (uint32_t)sim_random(sim, 4);
    script->window_ms = 201; // Nobody comes later than 200 ms.
    spawn_job(cluster, script, world, &options);
}

static void hinted(struct cluster *cluster)
{
    struct sim *sim = &cluster->sim;
    struct script *script = &cluster->scripts[0];
    struct script_options options = draw_options(sim);
    const uint32_t world = draw_world(sim);
    script_draw(sim, script, 0, world);
    for (uint32_t i = 0; i < world; i++) {
        options.has_hint = sim_chance(sim, 70);
        options.hint = i;
        script_spawn(sim, script, &options, sim_random(sim, 200));
    }
}

static void missing(struct cluster *cluster)
{
    struct sim *sim = &cluster->sim;
    const struct script_options options = draw_options(sim);
    const uint32_t world = 2 + draw_world(sim);
    script_draw(sim, &cluster->scripts[0], 0, world);
    spawn_job(cluster, &cluster->scripts[0], world - 1, &options);
}

static void odd_one_out(struct cluster *cluster,
                        void (*spoil)(struct sim *, struct script *, struct script_options *))
{
    struct sim *sim = &cluster->sim;
    struct script *script = &cluster->scripts[0];
    struct script_options options = draw_options(sim);
    const uint32_t world = 1 + draw_world(sim);
    script_draw(sim, script, 0, world);
    if (world > 1)
        spawn_job(cluster, script, world - 1, &options);
    spoil(sim, script, &options);
    script_spawn(sim, script, &options, sim_random(sim, 200));
}

static void spoil_manifest(struct sim *sim, struct script *script, struct script_options *options)
{
    options->wrong_item = 1 + (uint32_t)sim_random(sim, script->modules * 9);
}

static void spoil_phase(struct sim *sim, struct script *script, struct script_options *options)
{
    options->wrong_phase_at = 1 + (uint32_t)sim_random(sim, script->steps);
}

static void spoil_elements(struct sim *sim, struct script *script, struct script_options *options)
{
    // Everybody must make a slot in the first step.
    (void)sim;
    script->skip_percent = 0;
    script->slot_count[script->phase[1]] = 1;
    script->slots[script->phase[1]][0] = (struct slot_id){0, 0, 0};
    options->wrong_elements = 1;
}

static void spoil_length(struct sim *sim, struct script *script, struct script_options *options)
{
    script->steps = 2 + (uint32_t)sim_random(sim, SCRIPT_STEPS - 1);
    for (uint32_t step = 1; step <= script->steps; step++)
        script->phase[step] = (uint32_t)sim_random(sim, SCRIPT_PHASES);
    options->leaves_after = 1 + (uint32_t)sim_random(sim, script->steps - 1);
}

static void manifests(struct cluster *cluster)
{
    odd_one_out(cluster, spoil_manifest);
}

static void phases(struct cluster *cluster)
{
    odd_one_out(cluster, spoil_phase);
}

static void elements(struct cluster *cluster)
{
    odd_one_out(cluster, spoil_elements);
}

static void lengths(struct cluster *cluster)
{
    odd_one_out(cluster, spoil_length);
}

static void cycles(struct cluster *cluster)
{
    struct sim *sim = &cluster->sim;
    struct script *script = &cluster->scripts[0];
    const struct script_options options = draw_options(sim);
    const uint32_t world = draw_world(sim);
    script_draw(sim, script, 0, world);
    script->shuffle_percent = 60;
    script->wait_percent = 20;
    spawn_job(cluster, script, world, &options);
}

// One worker dies or loses its stream, and a replacement comes. The others may join again, too.
static void faults(struct cluster *cluster, bool breaks)
{
    struct sim *sim = &cluster->sim;
    struct script *script = &cluster->scripts[0];
    struct script_options options = draw_options(sim);
    const uint32_t world = draw_world(sim);
    script_draw(sim, script, 0, world);
    script->restart_percent = sim_chance(sim, 70) ? 100 : 0;
    script->deaf = sim_chance(sim, 40);
    options.tries = 4;
    spawn_job(cluster, script, world, &options);
    struct sim_worker *victim = sim->workers[sim_random(sim, world)];
    const uint64_t at_ms = sim_random(sim, 700);
    if (breaks)
        sim_break_at(victim, at_ms);
    else
        sim_crash_at(victim, at_ms);
    if (script->restart_percent != 0)
        script_spawn(sim, script, &options, at_ms + sim_random(sim, 400));
}

static void crash(struct cluster *cluster)
{
    faults(cluster, false);
}

static void stream_break(struct cluster *cluster)
{
    faults(cluster, true);
}

// Everything at once.
static void storm(struct cluster *cluster)
{
    struct sim *sim = &cluster->sim;
    for (uint32_t job = 0; job < CLUSTER_JOBS; job++) {
        struct script *script = &cluster->scripts[job];
        const uint32_t world = draw_world(sim);
        script_draw(sim, script, job, world);
        script->wait_percent = (uint32_t)sim_random(sim, 3) * 10;
        script->restart_percent = (uint32_t)sim_random(sim, 101);
        for (uint32_t i = 0; i < world + (uint32_t)sim_random(sim, 2); i++) {
            struct script_options options = draw_options(sim);
            options.tries = 1 + (uint32_t)sim_random(sim, 5);
            if (sim_chance(sim, 3))
                spoil_manifest(sim, script, &options);
            if (sim_chance(sim, 3))
                spoil_phase(sim, script, &options);
            if (sim_chance(sim, 3))
                options.leaves_after = 1 + (uint32_t)sim_random(sim, script->steps);
            struct sim_worker *worker = script_spawn(sim, script, &options, sim_random(sim, 300));
            if (sim_chance(sim, 15))
                sim_crash_at(worker, sim_random(sim, 900));
            if (sim_chance(sim, 10))
                sim_break_at(worker, sim_random(sim, 900));
        }
    }
    if (sim_chance(sim, 10))
        sim_drain_at(sim, sim_random(sim, 900));
}

struct scenario {
    const char *name;
    void (*prepare)(struct cluster *cluster);
    // The required end of every worker; -1: any end that the invariants allow.
    int end;
    int verdict; // The required verdict; -1: any.
};

static const struct scenario scenarios[] = {
    {"calm", calm, SIM_DONE, -1},
    {"elastic", elastic, SIM_DONE, -1},
    {"hinted", hinted, SIM_DONE, -1},
    {"missing", missing, SIM_REFUSED, -1},
    {"manifests", manifests, SIM_HALTED, HALT_MANIFEST},
    {"phases", phases, SIM_HALTED, HALT_PHASE},
    {"elements", elements, SIM_HALTED, HALT_LAYOUT},
    {"lengths", lengths, -1, -1},
    {"cycles", cycles, -1, -1},
    {"crash", crash, -1, -1},
    {"break", stream_break, -1, -1},
    {"storm", storm, -1, -1},
};

enum {
    SCENARIOS = sizeof(scenarios) / sizeof(scenarios[0])
};

static void expect(struct sim *sim, const struct scenario *scenario)
{
    for (uint32_t i = 0; i < sim->worker_count; i++) {
        const struct sim_worker *worker = sim->workers[i];
        if (scenario->end >= 0 && (int)worker->end != scenario->end)
            sim_fail(sim, "%s is %s", sim_name(worker), sim_end_name(worker->end));
        if (scenario->verdict >= 0 && (int)script_verdict(worker) != scenario->verdict)
            sim_fail(sim, "%s got verdict %d", sim_name(worker), (int)script_verdict(worker));
    }
}

// Ends of the workers of all seeds, to see that the scenarios are not all of one kind.
struct tally {
    uint64_t ends[SIM_CRASHED + 1];
    uint64_t verdicts[HALT_LAYOUT + 1];
    uint64_t events;
};

static uint64_t run_seed(struct cluster *cluster, uint64_t seed, struct tally *tally)
{
    struct sim *sim = &cluster->sim;
    const struct scenario *scenario = &scenarios[seed % SCENARIOS];
    sim_begin(sim, seed);
    sim_trace(sim, "seed %" PRIu64 ", %s", seed, scenario->name);
    sim->delay_ms = 1 + (uint32_t)sim_random(sim, 20);
    scenario->prepare(cluster);
    if (!sim_run(sim, CLUSTER_LIMIT_MS))
        sim_fail(sim, "the run has not come to an end");
    check_finished(sim);
    expect(sim, scenario);
    for (uint32_t i = 0; i < sim->worker_count && tally; i++) {
        tally->ends[sim->workers[i]->end]++;
        tally->verdicts[script_verdict(sim->workers[i])]++;
    }
    if (tally)
        tally->events += sim->steps;
    const uint64_t hash = sim->trace_hash;
    sim_end(sim);
    return hash;
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return !text || text[0] == '\0' ? otherwise : strtoull(text, NULL, 10);
}

static void print_trace(const struct sim *sim)
{
    const uint64_t count = sim->trace_count;
    for (uint64_t i = count > SIM_TRACE_LINES ? count - SIM_TRACE_LINES : 0; i < count; i++)
        puts(sim->trace[i % SIM_TRACE_LINES]);
}

static void test_seeds(void **state)
{
    static struct cluster cluster;
    struct tally tally = {0};
    const uint64_t only = number_from("LOCKSTEP_TEST_SIM_SEED", UINT64_MAX);
    const uint64_t count = number_from("LOCKSTEP_TEST_SIM_SEEDS", 1000);
    (void)state;
    if (only != UINT64_MAX) {
        run_seed(&cluster, only, &tally);
        print_trace(&cluster.sim);
        return;
    }
    for (uint64_t seed = 0; seed < count; seed++)
        run_seed(&cluster, seed, &tally);
    printf("%" PRIu64 " events; done %" PRIu64 ", refused %" PRIu64 ", halted %" PRIu64
           ", crashed %" PRIu64 "\n",
           tally.events, tally.ends[SIM_DONE], tally.ends[SIM_REFUSED], tally.ends[SIM_HALTED],
           tally.ends[SIM_CRASHED]);
    for (int kind = HALT_MANIFEST; kind <= HALT_LAYOUT; kind++)
        printf("verdict %d: %" PRIu64 "\n", kind, tally.verdicts[kind]);
    for (int kind = HALT_MANIFEST; kind <= HALT_LAYOUT && count >= 1000; kind++)
        if (kind != HALT_UNPLANNED && kind != HALT_COLLECTIVE && kind != HALT_PROTOCOL)
            assert_true(tally.verdicts[kind] > 0);
}

static void test_a_seed_is_the_same_every_time(void **state)
{
    static struct cluster cluster;
    (void)state;
    for (uint64_t seed = 0; seed < 2 * SCENARIOS; seed++)
        assert_int_equal(run_seed(&cluster, seed, NULL), run_seed(&cluster, seed, NULL));
}

static void test_a_large_world(void **state)
{
    static struct cluster cluster;
    struct sim *sim = &cluster.sim;
    struct script *script = &cluster.scripts[0];
    const struct script_options options = {.hosts = 40};
    (void)state;
    sim_begin(sim, 1);
    script_draw(sim, script, 0, 300);
    script->steps = 3;
    spawn_job(&cluster, script, 300, &options);
    sim->trace_off = true;
    assert_true(sim_run(sim, CLUSTER_LIMIT_MS));
    check_finished(sim);
    for (uint32_t i = 0; i < sim->worker_count; i++)
        assert_int_equal(sim->workers[i]->end, SIM_DONE);
    sim_end(sim);
}

static const char story_of_a_death[] =
    "[    1] worker 0 -> coordinator: hello job j world 2 host h0\n"
    "[    1] coordinator -> worker 0: welcome\n"
    "[    2] worker 1 -> coordinator: hello job j world 2 host h1\n"
    "[    2] coordinator -> worker 1: welcome\n"
    "[    2] coordinator -> worker 0: generation 1: rank 0 of 2, local 0 of 1, peers "
    "1@sim:1\n"
    "[    2] coordinator -> worker 1: generation 1: rank 1 of 2, local 0 of 1, peers "
    "0@sim:0\n"
    "[    2] coordinator logs world_formed job=j generation=1 world=2 hosts=2 memory_groups=2\n"
    "[    5] rank 0 of j -> coordinator: start hash 4d items 10 root 0\n"
    "[    5] rank 1 of j -> coordinator: start hash 4d items 10 root 0\n"
    "[    5] coordinator -> rank 0 of j: verified\n"
    "[    5] coordinator -> rank 1 of j: verified\n"
    "[    5] coordinator logs manifests_verified job=j generation=1 world=2\n"
    "[    9] rank 0 of j -> coordinator: ready step 1 slot 0#0.0\n"
    "[    9] rank 1 of j -> coordinator: ready step 1 slot 0#0.0\n"
    "[    9] coordinator -> rank 0 of j: grant step 1 slot 0#0.0\n"
    "[    9] coordinator -> rank 1 of j: grant step 1 slot 0#0.0\n"
    "[   10] rank 0 of j -> coordinator: layout of module 0, words 0 to 4 of 4\n"
    "[   10] rank 0 of j -> coordinator: end step 1\n"
    "[   10] rank 1 of j -> coordinator: end step 1\n"
    "[   10] coordinator -> rank 0 of j: layout of module 0, words 0 to 4 of 4\n"
    "[   10] coordinator -> rank 0 of j: plan 1 closes step 1, slots 0 to 1 of 1, last: "
    "0#0.0\n"
    "[   10] coordinator -> rank 1 of j: layout of module 0, words 0 to 4 of 4\n"
    "[   10] coordinator -> rank 1 of j: plan 1 closes step 1, slots 0 to 1 of 1, last: "
    "0#0.0\n"
    "[   10] coordinator logs plan_published job=j generation=1 plan=1 step=1 slots=1 "
    "hash=e244099df0d6f335\n"
    "[   14] rank 1 of j is crashed\n"
    "[   15] rank 0 of j sees that rank 1 is gone\n"
    "[   15] coordinator -> rank 0 of j: halt lost step 0: rank 1 on host h1 was lost: its "
    "control stream ended without a goodbye (connection reset by peer); see why pid 1001 "
    "there ended or called exec, then start the job again\n"
    "[   15] coordinator logs generation_halted job=j generation=1 kind=lost "
    "text=\"rank 1 on host h1 was lost: its control stream ended without a goodbye "
    "(connection reset by peer); see why pid 1001 there ended or called exec, then start the jo\n"
    "[   16] rank 0 of j -> coordinator: lost rank 1 step 2: connection reset by peer\n"
    "[   16] rank 0 of j is halted\n"
    "[   17] rank 0 of j -> coordinator: leave settled 1\n"
    "[   17] coordinator closes the stream of rank 0 of j\n";

// Two workers, every delay one millisecond: the whole story, from hello to verdict.
static void test_the_story_of_a_death(void **state)
{
    static struct cluster cluster;
    static char trace[SIM_TRACE_LINES * SIM_TRACE_BYTES];
    struct sim *sim = &cluster.sim;
    const struct script_options options = {.hosts = 2};
    const struct script script = {
        .job = "j",
        .world_min = 2,
        .world_max = 2,
        .open_timeout_ms = 1000,
        .modules = 1,
        .buckets = {1},
        .steps = 3,
        .slot_count = {1},
        .think_ms = 1,
    };
    size_t used = 0;
    (void)state;
    sim_begin(sim, 0);
    sim->delay_ms = 1;
    script_spawn(sim, &script, &options, 0);
    sim_crash_at(script_spawn(sim, &script, &options, 1), 14);
    assert_true(sim_run(sim, CLUSTER_LIMIT_MS));
    check_finished(sim);
    for (uint64_t i = 0; i < sim->trace_count; i++)
        used += (size_t)snprintf(trace + used, sizeof(trace) - used, "%s\n", sim->trace[i]);
    sim_end(sim);
    if (strcmp(trace, story_of_a_death) != 0)
        puts(trace);
    assert_string_equal(trace, story_of_a_death);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_story_of_a_death),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_a_seed_is_the_same_every_time),
        cmocka_unit_test(test_a_large_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
