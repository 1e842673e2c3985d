// SPDX-License-Identifier: Apache-2.0
//
// Ranks that die at every event, and survivors that go on (crash.h): for each seed the world runs
// once without a death, which counts its events, and then once for each event and each victim. A
// failure prints the setting of LOCKSTEP_TEST_CRASH that runs its world alone and prints all that
// happens in it.

#include "tests/sim/crash.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    SEEDS =
        3, // Of each kind, one less with waits. LOCKSTEP_TEST_SIM_SEEDS / SEEDS_SHARE replaces it.
    SEEDS_SHARE = 250, // One seed is some hundreds of worlds.
    KINDS = 8,
};

static struct crash_world world;

struct tally {
    uint64_t worlds;
    uint64_t events;
    uint64_t recoveries;
    uint64_t repeated;
    uint64_t waits;
    uint64_t put_off;
    uint64_t carried;
    uint64_t words;
};

static uint32_t seed_count(uint32_t kind)
{
    const char *text = getenv("LOCKSTEP_TEST_SIM_SEEDS");
    return text       ? (uint32_t)strtoul(text, NULL, 10) / SEEDS_SHARE + 1
           : kind < 4 ? SEEDS
                      : SEEDS - 1;
}

// Kinds: steps that begin at once or with an open wave; ranks that are suspected and live; trainers
// that wait for calls; waits that give up calls.
static struct crash_config configure(uint64_t seed, uint32_t kind)
{
    return (struct crash_config){.seed = seed * KINDS + kind,
                                 .ranks = 2 + (uint32_t)(seed % 3),
                                 .uneven = kind < 4 && (kind & 1) != 0,
                                 .suspicions = kind < 4 ? (kind & 2) != 0 : (kind & 1) != 0,
                                 .restarts = seed % 2 != 0,
                                 .waits = kind >= 4,
                                 .defers = kind >= 6,
                                 .unplanned_defers = kind == 7,
                                 .kill_at = {UINT32_MAX, UINT32_MAX},
                                 .kill_action = UINT32_MAX};
}

static void run(const struct crash_config *config, struct tally *tally)
{
    if (!crash_run(&world, config)) {
        printf("seed %" PRIu64 ", %" PRIu32 " ranks, rank %" PRIu32 " dies at event %" PRIu32
               ", rank %" PRIu32 " at event %" PRIu32 ", action %" PRIu32 ": %s\n",
               config->seed, config->ranks, config->victim[0], config->kill_at[0],
               config->victim[1], config->kill_at[1], config->kill_action, world.fault);
        printf("LOCKSTEP_TEST_CRASH=\"%" PRIu64 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32
               " %" PRIu32 "\" runs it alone\n",
               config->seed, config->kill_at[0], config->victim[0], config->kill_at[1],
               config->victim[1], config->kill_action);
        fail();
    }
    tally->worlds++;
    tally->events += world.events;
    tally->recoveries += world.recoveries;
    tally->repeated += world.repeated;
    tally->waits += world.waits;
    tally->put_off += world.put_off;
    tally->carried += world.carried;
    tally->words += world.words;
}

// The second death comes some events after the first one, mostly within its recovery.
static void kill_everywhere(struct crash_config config, uint32_t events, struct tally *tally)
{
    for (uint32_t at = 0; at < events; at++) {
        for (uint32_t victim = 0; victim < config.ranks; victim++) {
            config.kill_at[0] = at;
            config.victim[0] = victim;
            config.kill_at[1] = UINT32_MAX;
            run(&config, tally);
            config.kill_at[1] = at + 1 + (at * 7 + victim * 5) % 40;
            config.victim[1] = (victim + 1) % config.ranks;
            run(&config, tally);
        }
    }
}

static void kill_within(struct crash_config config, uint32_t actions, struct tally *tally)
{
    for (uint32_t action = 0; action < actions; action++) {
        config.kill_action = action;
        run(&config, tally);
    }
}

static void report(const char *what, const struct tally *tally)
{
    printf("%s: %" PRIu64 " worlds, %" PRIu64 " events, %" PRIu64 " recoveries, %" PRIu64
           " slots repeated, %" PRIu64 " waits, %" PRIu64 " buckets deferred, %" PRIu64
           " with deferred gradients, %" PRIu64 " decisions by the word of a leaver\n",
           what, tally->worlds, tally->events, tally->recoveries, tally->repeated, tally->waits,
           tally->put_off, tally->carried, tally->words);
}

static void run_alone(const char *text)
{
    struct crash_config config = {.kill_action = UINT32_MAX};
    struct tally tally = {0};
    uint64_t seed = 0;
    if (sscanf(text, "%" SCNu64 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32, &seed,
               &config.kill_at[0], &config.victim[0], &config.kill_at[1], &config.victim[1],
               &config.kill_action) != 6)
        fail_msg("LOCKSTEP_TEST_CRASH has six numbers");
    const struct crash_config drawn = configure(seed / KINDS, (uint32_t)(seed % KINDS));
    config.seed = drawn.seed;
    config.ranks = drawn.ranks;
    config.uneven = drawn.uneven;
    config.suspicions = drawn.suspicions;
    config.restarts = drawn.restarts;
    config.waits = drawn.waits;
    config.defers = drawn.defers;
    config.unplanned_defers = drawn.unplanned_defers;
    world.prints = true;
    run(&config, &tally);
}

static void survivors_settle_every_step(void **state)
{
    const char *alone = getenv("LOCKSTEP_TEST_CRASH");
    static const char *const kinds[KINDS] = {"deaths",
                                             "deaths, open waves",
                                             "deaths and suspicions",
                                             "deaths and suspicions, open waves",
                                             "deaths, waits",
                                             "deaths and suspicions, waits",
                                             "deaths, waits that give up calls",
                                             "deaths and suspicions, calls that count later"};
    (void)state;
    if (alone) {
        run_alone(alone);
        return;
    }
    uint64_t leavers = 0;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        struct tally tally = {0};
        for (uint64_t seed = 0; seed < seed_count(kind); seed++) {
            const struct crash_config config = configure(seed, kind);
            run(&config, &tally);
            const uint32_t events = world.events;
            const uint32_t actions = world.actions;
            kill_everywhere(config, events, &tally);
            kill_within(config, actions, &tally);
        }
        report(kinds[kind], &tally);
        assert_true(tally.recoveries > 0 && tally.repeated > 0);
        leavers += tally.words;
        assert_true((tally.waits > 0) == (kind >= 4));
        assert_true((tally.put_off > 0) == (kind >= 6) && (tally.carried > 0) == (kind >= 6));
    }
    assert_true(leavers > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_settle_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
