// SPDX-License-Identifier: Apache-2.0
//
// Every interleaving of small worlds of the real cores (explore.h): families of configurations, of
// which a seeded sample is explored here, and all by `make explore` (LOCKSTEP_TEST_EXPLORE=all).
// Any fault is printed as the shortest list of events that leads to it.
//
// In a family a configuration has a number, from which everything about it is drawn: see draw().

#include "tests/sim/explore.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum {
    STEP_TEXT = 32, // Text of what a rank does in one step.
    TEXT = 3 * STEP_TEXT, // A program.
    LIMIT = 4000000 // States of one configuration.
};

static struct world world;

// ---- Configurations by number ------------------------------------------------------------------

struct drawn {
    uint64_t number; // The part of the number that is not used yet.
    struct world_config config;
    enum explore_rule rule;
    char text[WORLD_RANKS][TEXT];
};

static uint32_t draw(struct drawn *drawn, uint32_t choices)
{
    const uint32_t choice = (uint32_t)(drawn->number % choices);
    drawn->number /= choices;
    return choice;
}

// All numbers below the product of all choices are drawn once.
static bool drawn_all(const struct drawn *drawn)
{
    return drawn->number == 0;
}

static const char *draw_text(struct drawn *drawn, const char *const *texts, uint32_t count)
{
    return texts[draw(drawn, count)];
}

#define DRAW_TEXT(drawn, texts) draw_text(drawn, texts, sizeof(texts) / sizeof((texts)[0]))

// Draws two numbers whose order makes no difference: the second is at least the first.
static void draw_pair(struct drawn *drawn, uint32_t choices, uint32_t pair[2])
{
    uint32_t left = draw(drawn, choices * (choices + 1) / 2);
    pair[0] = 0;
    while (left >= choices - pair[0])
        left -= choices - pair[0]++;
    pair[1] = pair[0] + left;
}

// All programs of up to two calls of two modules, with and without waits.
enum {
    SHORT_PROGRAMS = 1 + 4 + 16
};

static void short_program(uint32_t number, char text[STEP_TEXT])
{
    static const char *const words[] = {"A", "A!", "B", "B!"};
    if (number == 0)
        text[0] = '\0';
    else if (number <= 4)
        snprintf(text, STEP_TEXT, "%s", words[number - 1]);
    else
        snprintf(text, STEP_TEXT, "%s %s", words[(number - 5) / 4], words[(number - 5) % 4]);
}

// Draws the data planes: all ranks windowed, all strict, or one rank of each kind.
static void draw_backend(struct drawn *drawn)
{
    static const uint32_t strict[] = {0, 15, 1};
    drawn->config.window = 2;
    drawn->config.strict = strict[draw(drawn, 3)];
}

// Draws one of the first `count` pairs of policies.
static void draw_policies(struct drawn *drawn, uint32_t count)
{
    static const struct {
        bool zero_defer;
        enum order_unplanned unplanned;
    } policies[] = {
        {false, UNPLANNED_EXTEND},
        {true, UNPLANNED_DEFER},
        {true, UNPLANNED_EXTEND},
        {false, UNPLANNED_FAIL},
    };
    const uint32_t choice = draw(drawn, count);
    drawn->config.zero_defer = policies[choice].zero_defer;
    drawn->config.unplanned = policies[choice].unplanned;
}

// Makes the texts the programs of the ranks, and appends `behind` to each.
static void set_programs(struct drawn *drawn, uint32_t ranks, const char *behind)
{
    drawn->config.ranks = ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        const size_t used = strlen(drawn->text[r]);
        snprintf(drawn->text[r] + used, TEXT - used, "%s", behind);
        drawn->config.programs[r] = drawn->text[r];
    }
}

// The same of up to three calls without waits.
enum {
    QUIET_PROGRAMS = 1 + 2 + 4 + 8
};

static void quiet_program(uint32_t number, char text[STEP_TEXT])
{
    uint32_t calls = 0;
    uint32_t first = 1;
    while (number >= first) {
        number -= first;
        first *= 2;
        calls++;
    }
    for (uint32_t i = 0; i < calls; i++)
        snprintf(text + 2 * i, STEP_TEXT - 2 * i, "%c ", (number >> i & 1) != 0 ? 'B' : 'A');
    text[calls == 0 ? 0 : 2 * calls - 1] = '\0';
}

// ---- Families ----------------------------------------------------------------------------------

// No rank waits, so no rank sends a message, whatever calls are missing, extra or swapped.
static void family_quiet(struct drawn *drawn)
{
    static const char *const plans[] = {"A B A", "A B"};
    uint32_t pair[2];
    drawn->config.window = 1 + draw(drawn, 2);
    draw_pair(drawn, QUIET_PROGRAMS, pair);
    drawn->config.plans[0] = DRAW_TEXT(drawn, plans);
    quiet_program(pair[0], drawn->text[0]);
    quiet_program(pair[1], drawn->text[1]);
    set_programs(drawn, 2, " / B");
}

// One step against a plan, then one as planned: it has the deferred parts.
static void family_planned(struct drawn *drawn)
{
    static const char *const plans[] = {"A B", "A", "B A A"};
    static const char *const behind[] = {" / A B", " / A", " / B A A"};
    uint32_t pair[2];
    draw_backend(drawn);
    draw_policies(drawn, 4);
    draw_pair(drawn, SHORT_PROGRAMS, pair);
    const uint32_t plan = draw(drawn, 3);
    drawn->config.plans[0] = plans[plan];
    short_program(pair[0], drawn->text[0]);
    short_program(pair[1], drawn->text[1]);
    set_programs(drawn, 2, behind[plan]);
}

// A step that is learned, then the same again on what was learned.
static void family_learned(struct drawn *drawn)
{
    char again[STEP_TEXT];
    uint32_t pair[2];
    draw_backend(drawn);
    draw_policies(drawn, 4);
    draw_pair(drawn, SHORT_PROGRAMS, pair);
    drawn->rule = EXPLORE_RESULTS;
    drawn->config.prompt = true;
    for (uint32_t r = 0; r < 2; r++) {
        short_program(pair[r], again);
        snprintf(drawn->text[r], TEXT, "%s / %s", again, again);
    }
    set_programs(drawn, 2, "");
}

static const char *const bucket_programs[] = {"A B", "B A", "A! B!", "B! A!", "A B!", "B! A"};

// Several buckets in a call, which ranks make in opposite orders.
static void family_buckets(struct drawn *drawn)
{
    static const char *const plans[] = {"A B", NULL};
    uint32_t pair[2];
    draw_backend(drawn);
    draw_policies(drawn, 2);
    draw_pair(drawn, 6, pair);
    drawn->config.window = 1 + draw(drawn, 2);
    drawn->config.buckets[0] = 2;
    drawn->config.reversed = 2 * draw(drawn, 2);
    drawn->config.prompt = true;
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s", bucket_programs[pair[r]]);
    drawn->config.plans[0] = DRAW_TEXT(drawn, plans);
    if (!drawn->config.plans[0])
        drawn->rule = EXPLORE_RESULTS;
    set_programs(drawn, 2, "");
}

// Trainers with two threads, each of which waits.
static void family_threads(struct drawn *drawn)
{
    static const char *const programs[] = {"A! & B!",    "A! B!",      "B! A!",     "A! & B",
                                           "B! C! & A!", "C! & B! A!", "A! C! & B", "C! A! B!"};
    static const char *const plans[] = {"A B C", NULL};
    draw_backend(drawn);
    draw_policies(drawn, 4);
    drawn->config.threads = 2;
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s", DRAW_TEXT(drawn, programs));
    drawn->config.plans[0] = DRAW_TEXT(drawn, plans);
    drawn->rule = EXPLORE_RESULTS;
    set_programs(drawn, 2, "");
}

// Calls that are open while another one is waited for.
static void family_open(struct drawn *drawn)
{
    static const char *const programs[] = {"A( B A)",    "A( B! A)",       "B( A! B)", "A! B!",
                                           "B! A!",      "A( B( A) B) B?", "A B",      "B( A B) A?",
                                           "A( B! & A)", "A( & B! A)"};
    static const char *const behind[] = {"", " / A B"};
    draw_backend(drawn);
    draw_policies(drawn, 4);
    drawn->config.plans[0] = "A B";
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s", programs[draw(drawn, 8)]);
    set_programs(drawn, 2, behind[draw(drawn, 2)]);
}

// Waits whose time may be over at any moment.
static void family_timed(struct drawn *drawn)
{
    static const char *const programs[] = {"A A% B B%", "B B% A A%", "A! B!",      "B! A!",
                                           "A A% B",    "B B% A",    "A A% A? B!", "B B% B? A!"};
    static const char *const plans[] = {"A B", NULL};
    uint32_t pair[2];
    draw_backend(drawn);
    draw_policies(drawn, 4);
    draw_pair(drawn, 8, pair);
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s", programs[pair[r]]);
    drawn->config.plans[0] = DRAW_TEXT(drawn, plans);
    drawn->rule = EXPLORE_ANY;
    drawn->config.prompt = true;
    set_programs(drawn, 2, "");
}

// Windows of one to three slots over plans of three modules.
static void family_windows(struct drawn *drawn)
{
    static const char *const programs[] = {"A! B! C!", "C! B! A!", "B! A! C!", "C A! B",
                                           "B! A",     "C! A! B!", "A B C",    "C!"};
    draw_policies(drawn, 4);
    drawn->config.window = 1 + draw(drawn, 3);
    drawn->config.plans[0] = "A B C";
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s", DRAW_TEXT(drawn, programs));
    set_programs(drawn, 2, "");
}

// Labels that agree and that do not, known and new; steps of two of them are planned to be empty.
static void family_phases(struct drawn *drawn)
{
    static const char *const steps[] = {"A", ":x B A!", ":y", ":y B", ":z A", ":z"};
    char first[STEP_TEXT];
    draw_backend(drawn);
    drawn->config.plans[0] = "A";
    drawn->config.plans[1] = ":y";
    drawn->config.plans[2] = ":z";
    drawn->config.plans[3] = ":x B";
    for (uint32_t r = 0; r < 2; r++) {
        snprintf(first, sizeof(first), "%s", DRAW_TEXT(drawn, steps));
        snprintf(drawn->text[r], TEXT, "%s / %s", first, DRAW_TEXT(drawn, steps));
    }
    set_programs(drawn, 2, "");
}

// The second step fails, when some of three ranks do not know yet that the first one has settled.
static void family_later(struct drawn *drawn)
{
    static const char *const steps[] = {"A", ":x B", ":y B", "B!", "A! B!"};
    uint32_t pair[2];
    drawn->config.window = 2;
    drawn->config.strict = 15 * draw(drawn, 2);
    drawn->config.plans[0] = "A";
    drawn->config.plans[1] = ":x B";
    drawn->config.prompt = true;
    draw_pair(drawn, 5, pair);
    snprintf(drawn->text[0], TEXT, "A / %s", steps[pair[0]]);
    snprintf(drawn->text[1], TEXT, "A / %s", steps[pair[1]]);
    snprintf(drawn->text[2], TEXT, "A / %s", DRAW_TEXT(drawn, steps));
    set_programs(drawn, 3, "");
}

// A plan is published at any moment.
static void family_switched(struct drawn *drawn)
{
    static const char *const programs[] = {"A B", "B A", "A", "A A B", "A! B!", "A B!"};
    static const char *const plans[] = {"B A", "A B A", "B"};
    char first[STEP_TEXT];
    draw_backend(drawn);
    draw_policies(drawn, 4);
    drawn->config.plans[0] = "A B";
    drawn->config.publish = DRAW_TEXT(drawn, plans);
    drawn->rule = EXPLORE_ANY;
    drawn->config.prompt = true;
    for (uint32_t r = 0; r < 2; r++) {
        snprintf(first, sizeof(first), "%s", DRAW_TEXT(drawn, programs));
        snprintf(drawn->text[r], TEXT, "%s / %s", first, first);
    }
    set_programs(drawn, 2, "");
}

// Three ranks, one step.
static void family_three(struct drawn *drawn)
{
    static const char *const programs[] = {"A B", "B A", "A! B!", "B! A!", "A", "B!"};
    static const char *const plans[] = {"A B", NULL};
    uint32_t pair[2];
    draw_backend(drawn);
    draw_policies(drawn, 2);
    draw_pair(drawn, 6, pair);
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s", programs[pair[r]]);
    snprintf(drawn->text[2], TEXT, "%s", DRAW_TEXT(drawn, programs));
    drawn->config.plans[0] = DRAW_TEXT(drawn, plans);
    drawn->config.prompt = true;
    if (!drawn->config.plans[0])
        drawn->rule = EXPLORE_RESULTS;
    set_programs(drawn, 3, "");
}

// Steps that differ from their plan alike, until the coordinator publishes one that fits.
static void family_replanned(struct drawn *drawn)
{
    static const char *const given_up[] = {"B! A", "B A!", "A B A!"};
    static const char *const extended[] = {"A B A", "A A B", "B A A"};
    const char *step;
    draw_backend(drawn);
    drawn->config.plans[0] = "A B";
    drawn->config.prompt = true;
    drawn->config.zero_defer = draw(drawn, 2) == 0;
    step = drawn->config.zero_defer ? DRAW_TEXT(drawn, given_up) : DRAW_TEXT(drawn, extended);
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s / %s / %s / %s / %s", step, step, step, step, step);
    drawn->rule = EXPLORE_RESULTS;
    set_programs(drawn, 2, "");
}

static void draw_disaster(struct drawn *drawn)
{
    static const char *const plans[] = {"A B", NULL};
    drawn->config.plans[0] = DRAW_TEXT(drawn, plans);
    drawn->config.disaster = draw(drawn, 2) == 0 ? DISASTER_DEATH : DISASTER_BREAK;
    drawn->config.prompt = true;
    drawn->rule = EXPLORE_ANY;
}

// One of two ranks dies or loses its stream.
static void family_disaster(struct drawn *drawn)
{
    uint32_t pair[2];
    drawn->config.window = 2;
    drawn->config.strict = 15 * draw(drawn, 2);
    draw_policies(drawn, 2);
    draw_pair(drawn, 6, pair);
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s", bucket_programs[pair[r]]);
    draw_disaster(drawn);
    drawn->config.victim = 1;
    set_programs(drawn, 2, "");
}

// One of three ranks dies or loses its stream.
static void family_survivors(struct drawn *drawn)
{
    static const char *const programs[] = {"A!", "B"};
    drawn->config.window = 2;
    drawn->config.strict = 15 * draw(drawn, 2);
    for (uint32_t r = 0; r < 3; r++)
        snprintf(drawn->text[r], TEXT, "%s", DRAW_TEXT(drawn, programs));
    draw_disaster(drawn);
    drawn->config.victim = 2;
    set_programs(drawn, 3, "");
}

// Two steps are learned, and a coordinator that knows nothing takes the place of the first one:
// nothing else comes of them than without it.
static void family_restarted(struct drawn *drawn)
{
    static const char *const programs[] = {"A", "A B", "B A", "A! B", "B! A", ""};
    uint32_t pair[2];
    drawn->config.window = 2;
    drawn->config.strict = 15 * draw(drawn, 2);
    draw_policies(drawn, 2);
    draw_pair(drawn, 6, pair);
    for (uint32_t r = 0; r < 2; r++)
        snprintf(drawn->text[r], TEXT, "%s / :x%s", programs[pair[r]], r == 0 ? "" : " A");
    drawn->config.disaster = DISASTER_RESTART;
    drawn->config.prompt = true;
    drawn->rule = EXPLORE_RESULTS;
    set_programs(drawn, 2, "");
}

struct family {
    const char *name;
    void (*draw)(struct drawn *drawn);
    uint32_t sample; // Configurations explored by `make test`.
};

static const struct family families[] = {
    {"quiet", family_quiet, 20},        {"planned", family_planned, 40},
    {"learned", family_learned, 6},     {"buckets", family_buckets, 3},
    {"threads", family_threads, 10},    {"open", family_open, 20},
    {"timed", family_timed, 5},         {"windows", family_windows, 10},
    {"phases", family_phases, 40},      {"later", family_later, 2},
    {"switched", family_switched, 4},   {"replanned", family_replanned, 1},
    {"three", family_three, 2},         {"disaster", family_disaster, 3},
    {"survivors", family_survivors, 1}, {"restarted", family_restarted, 1},
};

enum {
    FAMILIES = sizeof(families) / sizeof(families[0])
};

// False: the family has no such number.
static bool family_config(const struct family *family, uint64_t number, struct drawn *drawn)
{
    memset(drawn, 0, sizeof(*drawn));
    drawn->number = number;
    family->draw(drawn);
    return drawn_all(drawn);
}

static uint64_t family_size(const struct family *family)
{
    struct drawn drawn;
    uint64_t low = 0;
    uint64_t high = 1;
    while (family_config(family, high, &drawn))
        high *= 2;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (family_config(family, middle, &drawn))
            low = middle;
        else
            high = middle;
    }
    return high;
}

// ---- The explorer itself -----------------------------------------------------------------------

static bool same_hash(const struct world_snapshot *a, const struct world_snapshot *b)
{
    const struct world_hash left = world_hash(a);
    const struct world_hash right = world_hash(b);
    return memcmp(&left, &right, sizeof(left)) == 0;
}

// At each state of a random run another event happens first, and is taken back.
static void walk_back_and_forth(const struct world_config *config, uint64_t seed)
{
    struct world_snapshot here = {0};
    struct world_snapshot again = {0};
    struct world_event events[WORLD_EVENTS];
    char text[EXPLORE_OUTCOME_BYTES];
    uint32_t count;
    assert_true(world_begin(&world, config));
    while ((count = world_events(&world, events)) > 0) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        world_save(&world, &here);
        world_do(&world, &events[(seed >> 20) % count]);
        world_save(&world, &again);
        assert_false(same_hash(&here, &again));
        world_restore(&world, &here);
        world_save(&world, &again);
        assert_true(same_hash(&here, &again));
        world_do(&world, &events[(seed >> 40) % count]);
        if (world.fault[0] != '\0')
            fail_msg("%s", world.fault);
    }
    assert_true(world_outcome(&world, text, sizeof(text)));
    assert_string_equal(text, "ok 0A0={0:0A0,1:0A0} 0A1={0:0A1} 0B0={0:0B0} 1A0={} "
                              "1B0={0:1B0,1:1B0} stash={}");
    world_snapshot_free(&here);
    world_snapshot_free(&again);
}

static void test_what_has_happened_can_be_taken_back(void **state)
{
    const struct world_config config = {
        .ranks = 2, .programs = {"A B A / B", "A / B"}, .plans = {"A B"}, .window = 2};
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++)
        walk_back_and_forth(&config, seed);
}

// ---- Exploring ---------------------------------------------------------------------------------

struct tally {
    uint64_t configurations;
    uint64_t states;
    uint64_t largest;
    uint64_t succeed;
    uint64_t fail;
    uint64_t cut;
};

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return !text || text[0] == '\0' ? otherwise : strtoull(text, NULL, 10);
}

static void explore_one(const struct family *family, uint64_t number, struct tally *tally)
{
    static struct explore_found found;
    struct drawn drawn;
    family_config(family, number, &drawn);
    if (!explore(&world, &drawn.config, drawn.rule, LIMIT, &found)) {
        printf("%s %" PRIu64 "\n", family->name, number);
        explore_shorten(&world, &drawn.config, LIMIT, &found);
        explore_print(&world, &drawn.config, &found);
        fail_msg("an interleaving breaks the protocol: %s", found.fault);
    }
    tally->configurations++;
    tally->states += found.states;
    tally->cut += !found.complete;
    if (found.states > tally->largest)
        tally->largest = found.states;
    bool succeeds = false;
    bool fails = false;
    for (uint32_t i = 0; i < found.outcomes && i < EXPLORE_OUTCOMES; i++) {
        succeeds = succeeds || strncmp(found.outcome[i], "ok", 2) == 0;
        fails = fails || strncmp(found.outcome[i], "ok", 2) != 0;
    }
    tally->succeed += succeeds;
    tally->fail += fails;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void explore_family(const struct family *family, bool all)
{
    struct tally tally = {0};
    const uint64_t size = family_size(family);
    // A sanitizer is slow, and finds in a few worlds what it can find in many.
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    const bool slow = sanitizer && sanitizer[0] != '\0';
    const uint64_t sample = all ? size : (family->sample + (slow ? 4 : 0)) / (slow ? 5 : 1);
    const double began = seconds_now();
    uint64_t random = 7;
    for (uint64_t i = 0; i < sample; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        explore_one(family, all ? i : (random >> 20) % size, &tally);
    }
    printf("%-9s %6" PRIu64 " of %6" PRIu64 " configurations, %9" PRIu64 " states, largest %" PRIu64
           ", %" PRIu64 " cut, %" PRIu64 " can succeed, %" PRIu64 " can fail, %.1f s\n",
           family->name, tally.configurations, size, tally.states, tally.largest, tally.cut,
           tally.succeed, tally.fail, seconds_now() - began);
    fflush(stdout);
    assert_int_equal(tally.cut, 0);
}

static void test_families(void **state)
{
    const char *which = getenv("LOCKSTEP_TEST_EXPLORE");
    const uint64_t only = number_from("LOCKSTEP_TEST_EXPLORE_NUMBER", UINT64_MAX);
    struct tally tally = {0};
    (void)state;
    for (uint32_t i = 0; i < FAMILIES; i++) {
        const struct family *family = &families[i];
        const bool all = which && strcmp(which, "all") == 0;
        const bool named = which && strcmp(which, family->name) == 0;
        if (named && only != UINT64_MAX) {
            explore_one(family, only, &tally);
            printf("%s %" PRIu64 ": %" PRIu64 " states\n", family->name, only, tally.states);
        }
        if (!which || which[0] == '\0' || all || (named && only == UINT64_MAX))
            explore_family(family, all || named);
    }
    explore_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_has_happened_can_be_taken_back),
        cmocka_unit_test(test_families),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_end(&world);
    return failed;
}
