// SPDX-License-Identifier: Apache-2.0
//
// Ranks that wait in different functions, as the coordinator sees them: scripted stories, and
// random programs whose heartbeats and queries are as late as they like. A verdict comes when, and
// only when, no rank of the program can go on.

#include "tests/support/bounds.h"
#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// ---- Stories -----------------------------------------------------------------------------------

static const struct await_key step_60 = {.kind = AWAIT_STEP, .number = 60};
static const struct await_key epoch = {.kind = AWAIT_COLLECTIVE, .space = 77};

static void say(struct story *story, uint32_t peer, const struct await *await, uint64_t settled)
{
    struct up_message message = {.kind = UP_HEARTBEAT};
    message.u.heartbeat.step = await->step;
    message.u.heartbeat.settled = settled;
    message.u.heartbeat.place.api = API_STEP_END;
    message.u.heartbeat.place.module = LOCKSTEP_MAX_MODULES;
    message.u.heartbeat.await = *await;
    story_say(story, peer, &message);
}

// The rank is blocked, and lacks one key or none.
static void in_step(struct story *story, uint32_t peer, const struct await_key *lacks)
{
    struct await await = {.key = step_60,
                          .function = API_STEP_END,
                          .module = LOCKSTEP_MAX_MODULES,
                          .step = 60,
                          .open = true,
                          .lack_count = lacks != NULL};
    if (lacks)
        await.lacks[0] = *lacks;
    say(story, peer, &await, 59);
}

static void in_barrier(struct story *story, uint32_t peer, const struct await_key *lacks)
{
    struct await await = {.key = epoch,
                          .function = API_BARRIER,
                          .module = LOCKSTEP_MAX_MODULES,
                          .step = 59,
                          .name = "epoch",
                          .lack_count = lacks != NULL};
    if (lacks)
        await.lacks[0] = *lacks;
    say(story, peer, &await, 59);
}

static bool halted(struct story *story)
{
    return story->last[1].kind == DOWN_HALT;
}

static const char wanted[] =
    "rank 2 waits in lockstep_barrier 'epoch' (use 1) after step 59; ranks 0, 1, 3 wait in "
    "lockstep_step_end of step 60, which rank 2 has not begun; call these functions in the same "
    "order on every rank";

static void expect_halt(struct story *story, uint32_t world, const char *text)
{
    for (uint32_t peer = 1; peer <= world; peer++) {
        const struct down_message *last = &story->last[peer];
        assert_int_equal(last->kind, DOWN_HALT);
        assert_int_equal(last->u.halt.kind, HALT_ORDER);
        assert_int_equal(last->u.halt.step, 60);
        assert_string_equal(last->u.halt.text, text);
    }
}

// Ranks are asked when a second key is in use, and told when all of them wait.
static void all_ranks_wait(void **state)
{
    struct story *story = *state;
    story_run(story, 4);
    in_step(story, 1, NULL);
    in_step(story, 2, NULL);
    assert_int_not_equal(story->last[1].kind, DOWN_QUERY);
    in_barrier(story, 3, NULL);
    for (uint32_t peer = 1; peer <= 4; peer++) {
        assert_int_equal(story->last[peer].kind, DOWN_QUERY);
        assert_int_equal(story->last[peer].u.query.key_count, 2);
    }
    in_step(story, 1, &epoch);
    in_barrier(story, 3, &step_60);
    assert_false(halted(story));
    in_step(story, 2, &epoch);
    in_step(story, 4, &epoch);
    expect_halt(story, 4, wanted);
}

// One that has not come to wait is not waited for longer than a moment.
static void a_rank_computes(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    in_step(story, 1, &epoch);
    in_barrier(story, 2, &step_60);
    in_step(story, 1, &epoch);
    assert_false(halted(story));
    story_sleep(story, LOCKSTEP_AWAIT_MS - 1);
    assert_false(halted(story));
    story_sleep(story, 1);
    expect_halt(story, 3,
                "rank 0 waits in lockstep_step_end of step 60; rank 1 waits in lockstep_barrier "
                "'epoch' (use 1) after step 59, which rank 0 has not called; call these functions "
                "in the same order on every rank");
}

// A rank that waits for a rank of which nothing was heard waits for that one.
static void nobody_is_condemned(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    in_step(story, 1, NULL); // It has begun the barrier: asynchronously.
    in_barrier(story, 2, &step_60);
    in_step(story, 1, NULL);
    story_sleep(story, 10000);
    assert_false(halted(story));
    in_step(story, 3, NULL);
    story_sleep(story, 10000);
    assert_false(halted(story));
}

// A wait that is over is no party any more.
static void a_wait_is_over(void **state)
{
    struct story *story = *state;
    const struct await none = {.step = 60};
    story_run(story, 2);
    in_step(story, 1, &epoch);
    say(story, 1, &none, 60);
    in_barrier(story, 2, &step_60);
    in_barrier(story, 2, &step_60);
    story_sleep(story, 10000);
    assert_false(halted(story));
}

// A broadcast of the library waits for its root only.
static void only_the_root_counts(void **state)
{
    struct story *story = *state;
    struct await await = {.key = epoch,
                          .function = API_STATE_CHECK,
                          .module = LOCKSTEP_MAX_MODULES,
                          .step = 59,
                          .rooted = true,
                          .root = 0,
                          .lack_count = 1,
                          .lacks = {step_60}};
    story_run(story, 3);
    in_step(story, 2, NULL);
    say(story, 3, &await, 59);
    in_step(story, 2, &epoch);
    say(story, 3, &await, 59);
    story_sleep(story, 10000);
    assert_false(halted(story)); // Rank 0 has not come, and may be on its way to both.
    await.root = 1;
    say(story, 3, &await, 59);
    in_step(story, 2, NULL);
    in_step(story, 2, &epoch);
    story_sleep(story, LOCKSTEP_AWAIT_MS);
    assert_true(halted(story));
}

// Rank 0 waits for a collective of a group of ranks 0 and 1. Rank 2 has not called it, and need
// not.
static void only_members_count(void **state)
{
    struct story *story = *state;
    struct await await = {.key = epoch,
                          .function = API_COLLECTIVE_RUN,
                          .module = LOCKSTEP_MAX_MODULES,
                          .step = 59,
                          .name = "epoch",
                          .detail = "barrier of group 'g'",
                          .members = {3},
                          .lack_count = 1,
                          .lacks = {step_60}};
    story_run(story, 3);
    say(story, 1, &await, 59);
    in_step(story, 3, NULL);
    in_step(story, 3, &epoch);
    say(story, 1, &await, 59);
    story_sleep(story, 10000);
    assert_false(halted(story)); // Rank 1 may be on its way to both.
    in_step(story, 2, NULL);
    in_step(story, 2, &epoch);
    story_sleep(story, LOCKSTEP_AWAIT_MS);
    expect_halt(story, 3,
                "rank 0 waits in lockstep_collective_run 'epoch' (use 1, barrier of group 'g') "
                "after step 59; ranks 1, 2 wait in lockstep_step_end of step 60, which rank 0 has "
                "not begun; call these functions in the same order on every rank");
}

// More keys than there is room for: those beyond are left out, and come in when there is.
static void too_many_keys(void **state)
{
    struct story *story = *state;
    const uint32_t world = LOCKSTEP_MAX_AWAITED + 2;
    struct await await = {.function = API_BARRIER, .module = LOCKSTEP_MAX_MODULES, .step = 59};
    story_run(story, world);
    for (uint32_t i = 0; i < world; i++) {
        await.key = (struct await_key){.kind = AWAIT_COLLECTIVE, .space = i + 1};
        say(story, i + 1, &await, 59);
    }
    assert_int_equal(story->last[1].u.query.key_count, LOCKSTEP_MAX_AWAITED);
    say(story, 1, &(struct await){.step = 60}, 60);
    say(story, world, &await, 59); // Its key has the place of that of rank 0.
    await.lack_count = 1;
    await.lacks[0] = (struct await_key){.kind = AWAIT_COLLECTIVE, .space = 2};
    say(story, world, &await, 59);
    await.lacks[0] = await.key;
    await.key = (struct await_key){.kind = AWAIT_COLLECTIVE, .space = 2};
    say(story, 2, &await, 59);
    story_sleep(story, LOCKSTEP_AWAIT_MS);
    assert_true(halted(story));
}

// The rank, whose stream is `peer`, comes back on another one.
static void come_back(struct story *story, uint32_t peer, uint32_t again)
{
    struct up_hello hello = story_hello("j", 2, "h2");
    hello.uuid.bytes[0] = 2;
    hello.resumes = true;
    hello.resume.generation = story->generation[peer];
    hello.resume.rank = 1;
    hello.resume.world_size = 2;
    hello.resume.settled = 59;
    hello.resume.rounds = 1;
    hello.resume.plan_number = 3;
    story_cut(story, peer);
    story->generation[again] = hello.resume.generation;
    story->rank[again] = 1;
    story_say_hello(story, again, &hello);
    assert_int_equal(story->last[again].kind, DOWN_WELCOME);
}

// Condition: more streams than there are keys end while their rank is blocked, each in another
// wait. Decision: the keys are free again, and the crossing that comes later is found.
static void streams_that_end_use_up_no_keys(void **state)
{
    struct story *story = *state;
    struct await await = {.function = API_BARRIER, .module = LOCKSTEP_MAX_MODULES, .step = 59};
    const struct await none = {.step = 59};
    uint32_t peer = 2;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = story_hello("j", 2, rank == 0 ? "h1" : "h2");
        hello.uuid.bytes[0] = (uint8_t)(rank + 1);
        story_say_hello(story, rank + 1, &hello);
    }
    for (uint32_t rank = 0; rank < 2; rank++)
        story_links(story, rank + 1, &(struct up_links){.wish = ALGORITHM_BY_SIZE});
    for (uint32_t rank = 0; rank < 2; rank++)
        story_start(story, rank + 1, 5, 3, 0);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_AWAITED + 1; i++) {
        await.key = (struct await_key){.kind = AWAIT_COLLECTIVE, .space = 1000 + i};
        say(story, peer, &await, 59);
        come_back(story, peer, 10 + i);
        peer = 10 + i;
        say(story, peer, &await, 59);
        say(story, peer, &none, 59);
    }
    in_step(story, 1, NULL);
    in_barrier(story, peer, NULL);
    in_step(story, 1, &epoch);
    in_barrier(story, peer, &step_60);
    story_sleep(story, LOCKSTEP_AWAIT_MS);
    assert_true(halted(story));
}

// Condition: each rank waits for something else. Decision: the sentence names as many as it has
// room for, and counts the others.
static void too_many_groups(void **state)
{
    struct story *story = *state;
    const uint32_t world = 9;
    story_run(story, world);
    for (uint32_t i = 0; i < 2 * world; i++) {
        const uint32_t rank = i % world;
        struct await await = {.key = {.kind = AWAIT_COLLECTIVE, .space = rank + 1},
                              .function = API_BARRIER,
                              .module = LOCKSTEP_MAX_MODULES,
                              .step = 59,
                              .lack_count = 1};
        snprintf(await.name, sizeof(await.name), "b%" PRIu32, rank);
        await.lacks[0] =
            (struct await_key){.kind = AWAIT_COLLECTIVE, .space = (rank + 1) % world + 1};
        say(story, rank + 1, &await, 59);
    }
    story_sleep(story, LOCKSTEP_AWAIT_MS);
    assert_true(halted(story));
    assert_non_null(
        strstr(story->last[1].u.halt.text,
               "; rank 5 waits in lockstep_barrier 'b5' (use 1) after step 59, which "
               "rank 4 has not called; 3 more ranks wait in other calls; call these functions"));
}

// A circle of more keys than there is room for is not found: the wait of a rank that is left out
// holds up the others of the circle. The job stalls, and the stall names what ranks wait for.
static void a_circle_beyond_all_keys(void **state)
{
    struct story *story = *state;
    const uint32_t world = LOCKSTEP_MAX_AWAITED + 1;
    story_run(story, world);
    for (uint32_t i = 0; i < 2 * world; i++) {
        const uint32_t rank = i % world;
        struct await await = {.key = {.kind = AWAIT_COLLECTIVE, .space = rank + 1},
                              .function = API_BARRIER,
                              .module = LOCKSTEP_MAX_MODULES,
                              .step = 59,
                              .lack_count = 1};
        await.lacks[0] =
            (struct await_key){.kind = AWAIT_COLLECTIVE, .space = (rank + 1) % world + 1};
        say(story, rank + 1, &await, 59);
    }
    story_sleep(story, 10000);
    assert_false(halted(story));
}

// ---- Programs ----------------------------------------------------------------------------------

#define WORLD 4
#define THINGS 5 // Things that every rank does once: a step, and four collectives.
#define PROGRAM (2 * THINGS)

struct act {
    uint32_t thing;
    bool begins; // True if the collective is begun.
    bool waits; // True if the rank waits for it.
};

struct actor {
    struct act acts[PROGRAM];
    uint32_t count;
    uint32_t at;
    bool blocked; // True if the rank is blocked in acts[at].
    bool done[THINGS];
    struct await queue[64]; // Heartbeats on their way.
    uint32_t sent;
    uint32_t heard;
    struct down_query query;
};

struct play {
    struct story story;
    uint64_t random;
    uint32_t world;
    struct actor actors[WORLD];
};

static uint32_t draw(struct play *play, uint32_t below)
{
    play->random = play->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(play->random >> 33) % below;
}

static struct await_key thing_key(uint32_t thing)
{
    if (thing == 0)
        return step_60;
    return (struct await_key){.kind = AWAIT_COLLECTIVE, .space = thing};
}

// Some things are begun first and waited for later, as asynchronous collectives are. Most ranks
// have the same order.
static void actor_write(struct play *play, struct actor *actor)
{
    uint32_t order[THINGS];
    uint32_t later[THINGS];
    uint32_t later_count = 0;
    for (uint32_t i = 0; i < THINGS; i++)
        order[i] = i;
    for (uint32_t i = draw(play, 3); i > 0; i--) {
        const uint32_t a = draw(play, THINGS);
        const uint32_t b = draw(play, THINGS);
        const uint32_t other = order[a];
        order[a] = order[b];
        order[b] = other;
    }
    memset(actor, 0, sizeof(*actor));
    for (uint32_t i = 0; i < THINGS; i++) {
        const bool async = order[i] != 0 && draw(play, 3) == 0;
        actor->acts[actor->count++] =
            (struct act){.thing = order[i], .begins = true, .waits = !async};
        if (async)
            later[later_count++] = order[i];
        if (later_count > 0 && draw(play, 2) == 0)
            actor->acts[actor->count++] =
                (struct act){.thing = later[--later_count], .waits = true};
    }
    while (later_count > 0)
        actor->acts[actor->count++] = (struct act){.thing = later[--later_count], .waits = true};
}

static bool thing_is_done(const struct play *play, uint32_t thing)
{
    for (uint32_t i = 0; i < play->world; i++) {
        if (!play->actors[i].done[thing])
            return false;
    }
    return true;
}

// Lets an actor do its next act. True: the actor has made progress.
static bool actor_moves(struct play *play, struct actor *actor)
{
    if (actor->at == actor->count)
        return false;
    const struct act *act = &actor->acts[actor->at];
    if (!actor->blocked) {
        actor->done[act->thing] = actor->done[act->thing] || act->begins;
        actor->blocked = act->waits;
        actor->at += !act->waits;
        return true;
    }
    if (!thing_is_done(play, act->thing))
        return false;
    actor->blocked = false;
    actor->at++;
    return true;
}

// A heartbeat as the worker's watch makes it: of one moment.
static void actor_beats(struct actor *actor)
{
    struct await await = {.step = 60};
    if (actor->sent == sizeof(actor->queue) / sizeof(actor->queue[0]))
        return;
    if (actor->blocked) {
        await.key = thing_key(actor->acts[actor->at].thing);
        await.function = await.key.kind == AWAIT_STEP ? API_STEP_END : API_BARRIER;
        await.module = LOCKSTEP_MAX_MODULES;
        for (uint32_t i = 0; i < actor->query.key_count; i++) {
            for (uint32_t thing = 0; thing < THINGS; thing++) {
                const struct await_key key = thing_key(thing);
                if (!actor->done[thing] && await_key_equal(&key, &actor->query.keys[i]))
                    await.lacks[await.lack_count++] = key;
            }
        }
    }
    actor->queue[actor->sent++] = await;
}

static void play_deliver(struct play *play, uint32_t i)
{
    struct actor *actor = &play->actors[i];
    if (actor->heard < actor->sent)
        say(&play->story, i + 1, &actor->queue[actor->heard++], 59);
}

static void play_hear(struct play *play, uint32_t i)
{
    if (play->story.last[i + 1].kind == DOWN_QUERY)
        play->actors[i].query = play->story.last[i + 1].u.query;
}

static bool play_goes_on(struct play *play)
{
    bool any = false;
    for (uint32_t i = 0; i < play->world; i++)
        any |= actor_moves(play, &play->actors[i]);
    return any;
}

// The rest of the program, whatever anybody says of it.
static bool play_ends_well(struct play *play)
{
    while (play_goes_on(play))
        continue;
    for (uint32_t i = 0; i < play->world; i++) {
        if (play->actors[i].at < play->actors[i].count)
            return false;
    }
    return true;
}

static void play_random(struct play *play)
{
    for (uint32_t turn = 0; turn < 400 && !halted(&play->story); turn++) {
        const uint32_t i = draw(play, play->world);
        switch (draw(play, 6)) {
        case 0:
        case 1:
            actor_moves(play, &play->actors[i]);
            break;
        case 2:
            actor_beats(&play->actors[i]);
            break;
        case 3:
        case 4:
            play_deliver(play, i);
            break;
        default:
            play_hear(play, i);
            if (draw(play, 8) == 0)
                story_sleep(&play->story, LOCKSTEP_AWAIT_MS / 2);
            break;
        }
    }
}

// Delivers all messages that are still in flight, when no actor can make progress.
static void play_settle(struct play *play)
{
    for (uint32_t turn = 0; turn < 4 && !halted(&play->story); turn++) {
        for (uint32_t i = 0; i < play->world; i++) {
            struct actor *actor = &play->actors[i];
            while (actor->heard < actor->sent && !halted(&play->story))
                play_deliver(play, i);
            actor->sent = actor->heard = 0;
            play_hear(play, i);
            actor_beats(actor);
        }
        story_sleep(&play->story, LOCKSTEP_AWAIT_MS);
    }
}

// Plays one random program. True: the program could not end.
static bool play_one(struct play *play, uint64_t seed)
{
    play->random = seed;
    play->world = 2 + draw(play, WORLD - 1);
    story_begin(&play->story);
    play->story.quiet = true;
    story_run(&play->story, play->world);
    for (uint32_t i = 0; i < play->world; i++)
        actor_write(play, &play->actors[i]);
    play_random(play);
    const bool early = halted(&play->story);
    const bool well = play_ends_well(play);
    if (early && well)
        fail_msg("seed %u: a program that ends was condemned", (unsigned)seed);
    if (!early)
        play_settle(play);
    if (!early && halted(&play->story) == well)
        fail_msg("seed %u: the program ends: %d, and the verdict is the same", (unsigned)seed,
                 well);
    story_end(&play->story);
    return !well;
}

static void random_programs(void **state)
{
    static struct play play;
    uint32_t stuck = 0;
    const uint32_t rounds = test_slow() > 1 ? 60 : 200;
    (void)state;
    for (uint32_t seed = 1; seed <= rounds; seed++)
        stuck += play_one(&play, seed);
    // Both kinds are tried often.
    assert_in_range(stuck, 4, rounds - 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_ranks_wait, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(a_rank_computes, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(nobody_is_condemned, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(a_wait_is_over, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(only_the_root_counts, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(only_members_count, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(too_many_keys, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(streams_that_end_use_up_no_keys, story_setup,
                                        story_teardown),
        cmocka_unit_test_setup_teardown(too_many_groups, story_setup, story_teardown),
        cmocka_unit_test_setup_teardown(a_circle_beyond_all_keys, story_setup, story_teardown),
        cmocka_unit_test(random_programs),
    };
    return cmocka_run_group_tests_name("coordinator crossing", tests, NULL, NULL);
}
