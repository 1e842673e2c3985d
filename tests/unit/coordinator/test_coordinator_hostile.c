// SPDX-License-Identifier: Apache-2.0
//
// Peers that lie. Each impossible message has its sentence, and no sequence of messages breaks the
// core: seeded random ones are thrown at it, and after every event
//
//   - nothing is sent to a stream that is closed or was never opened,
//   - what is sent has the generation that the stream was given,
//   - generation numbers of a job only grow, and no rank is given twice in one generation,
//   - the views agree with each other.
//
// LOCKSTEP_TEST_FUZZ_SEED=n runs one seed, LOCKSTEP_TEST_FUZZ_SEEDS=n that many (60; every night
// 3000).

#include "coordinator/stall_view.h"
#include "coordinator/view.h"
#include "tests/unit/coordinator/story.h"

#include "tests/support/choice.h"
#include "tests/support/describe.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- One impossible message each -------------------------------------------------------------

struct lie {
    bool started; // Said after lockstep_start; else while it is awaited.
    struct up_message message;
    const char *sentence;
};

#define READY(...) \
    { \
        .kind = UP_READY, .u.ready = {.step = 1, .dtype = DTYPE_FLOAT32, __VA_ARGS__ } \
    }

static const struct lie lies[] = {
    {false, READY(.elements = 1), "learns a step before lockstep_start has completed"},
    {false, {.kind = UP_WAIT}, "learns a step before lockstep_start has completed"},
    {false, {.kind = UP_END}, "learns a step before lockstep_start has completed"},
    {false, {.kind = UP_LAYOUT_PART}, "proposed a layout, which only rank 0 does"},
    {false, {.kind = UP_MANIFEST_PART}, "sent manifest items that nobody asked for"},
    {false,
     {.kind = UP_START, .u.start = {.item_count = LOCKSTEP_MAX_ITEMS + 1}},
     "announced a manifest of 262212 items; the limit is 262211"},
    {false, {.kind = UP_START, .u.start = {.root = 2}}, "wants rank 2 as root; the world has 2"},
    {true, {.kind = UP_START, .u.start = {.root = 2}}, "wants rank 2 as root; the world has 2"},
    {true, {.kind = UP_HELLO}, "sent a second hello on its stream"},
    {true, {.kind = UP_NONE}, "sent a message of the unknown kind 0"},
    {true, {.kind = (enum up_kind)77}, "sent a message of the unknown kind 77"},
    {true, {.kind = UP_MANIFEST_PART}, "sent manifest items that nobody asked for"},
    {true, READY(.slot = {64, 0, 0}), "reported a slot that cannot be: module 64 call 0 bucket 0"},
    {true, READY(.slot = {0, 256, 0}), "reported a slot that cannot be: module 0 call 256"},
    {true, READY(.slot = {0, 0, 1024}), "reported a slot that cannot be: module 0 call 0"},
    {true, {.kind = UP_READY, .u.ready = {.step = 1}}, "bucket 0 dtype 0"},
    {true, {.kind = UP_END}, "learns step 0, but step 0 is learned already"},
    {true,
     {.kind = UP_WAIT, .u.wait = {.step = 1}},
     "waits for module 0 call 0 bucket 0, which it has not reported ready"},
    {true, {.kind = UP_LOST, .u.lost = {.rank = 2}}, "lost rank 2, which cannot be a peer of it"},
    {true, {.kind = UP_LOST, .u.lost = {.rank = 1}}, "lost rank 1, which cannot be a peer of it"},
    {true, {.kind = UP_BLOCKED}, "is blocked by 0 waits in step 0"},
    {true,
     {.kind = UP_BLOCKED, .u.blocked = {.step = 1, .wait_count = 17}},
     "is blocked by 17 waits in step 1"},
    {true,
     {.kind = UP_BLOCKED, .u.blocked = {.step = 1, .lack_count = 17}},
     "is blocked by 0 waits in step 1"},
    {true, {.kind = UP_MODULES, .u.modules = {.count = 17}}, "named 17 modules after 0 others"},
    {true, {.kind = UP_REACH}, "asked for the addresses of 0 ranks"},
    {true, {.kind = UP_REACH, .u.reach = {.count = 33}}, "asked for the addresses of 33 ranks"},
    {true,
     {.kind = UP_REACH, .u.reach = {.count = 1, .ranks = {1}}},
     "asked for the address of rank 1, which is no other rank of it"},
    {true,
     {.kind = UP_REACH, .u.reach = {.count = 2, .ranks = {0, 2}}},
     "asked for the address of rank 2, which is no other rank of it"},
    {true, {.kind = UP_FAIL}, "reported a failure of kind none, which is no disagreement"},
    {true,
     {.kind = UP_FAIL, .u.fail = {.kind = HALT_LEFT}},
     "reported a failure of kind left, which is no disagreement"},
    {true,
     {.kind = UP_LAYOUT_PART, .u.layout_part = {.total = 1, .count = 1}},
     "proposed a layout, which only rank 0 does, and only before it ends a learning step"},
};

static void test_an_impossible_message_ends_the_generation_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        static struct story story;
        struct up_message message = lies[i].message;
        story_begin(&story);
        if (lies[i].started)
            story_run(&story, 2);
        else
            story_form(&story, 2);
        story_say(&story, 2, &message);
        if (story.last[1].kind != DOWN_HALT)
            print_error("nothing happened, expected: %s\n", lies[i].sentence);
        assert_int_equal(story.last[1].kind, DOWN_HALT);
        assert_int_equal(story.last[1].u.halt.kind, HALT_PROTOCOL);
        if (!strstr(story.last[1].u.halt.text, lies[i].sentence))
            print_error("%s\nis not: %s\n", story.last[1].u.halt.text, lies[i].sentence);
        assert_non_null(strstr(story.last[1].u.halt.text, lies[i].sentence));
        assert_non_null(strstr(story.last[1].u.halt.text, "rank 1 (host h2) "));
        assert_memory_equal(&story.last[1], &story.last[2], sizeof(story.last[1]));
        assert_true(story.closed[2]);
        assert_false(story.closed[1]);
        story_end(&story);
    }
}

static void test_repetitions_are_named(void **state)
{
    struct story story;
    (void)state;
    story_begin(&story);
    story_run(&story, 2);
    story_ready(&story, 1, 1, slot(0, 0, 0));
    story_ready(&story, 1, 1, slot(0, 0, 0));
    story_expect_piece(&story, "reported module 0 call 0 bucket 0 ready twice in step 1");
    story_end(&story);

    story_begin(&story);
    story_run(&story, 2);
    story_step_end(&story, 1, 1);
    story_step_end(&story, 1, 1);
    story_expect_piece(&story, "said more about step 1 after it had ended it");
    story_end(&story);

    story_begin(&story);
    story_run(&story, 2);
    struct up_message part = {.kind = UP_LAYOUT_PART,
                              .u.layout_part = {.total = 4, .count = 2, .words = {1, 2}}};
    story_say(&story, 1, &part);
    story_step_end(&story, 1, 1);
    story_expect_piece(&story, "ended step 1 in the middle of a layout");
    story_end(&story);
}

static void test_a_gatherer_that_lies_is_refused(void **state)
{
    struct story story;
    (void)state;
    story_begin(&story);
    story_join(&story, 1, "a");
    story_forget(&story);
    story_join(&story, 1, "a");
    story_expect(&story, "1 > hello job j world 2 host a\n"
                         "1 < refused (invalid): said hello before the world had formed; this is a "
                         "bug in the worker\n"
                         "1 closed\n");
    assert_int_equal(story_job(&story, 0).joined, 0);
    story_end(&story);
}

struct wrong_items {
    const char *sentence;
    uint32_t first;
    uint32_t count;
    enum manifest_kind kinds[2];
    uint32_t modules[2];
    uint32_t dims;
};

static void test_wrong_manifest_items_are_named(void **state)
{
    static const struct wrong_items wrong[] = {
        {"sent 2 manifest items from item 1; asked were 2 from item 0", 1, 2, {0}, {0}, 0},
        {"sent 1 manifest items from item 0; asked were 2 from item 0", 0, 1, {0}, {0}, 0},
        {"sent 77 manifest items", 0, 77, {0}, {0}, 0},
        {"sent manifest item 0 out of place", 0, 2, {MANIFEST_PARAMETER}, {0}, 0},
        {"sent manifest item 0 out of place", 0, 2, {(enum manifest_kind)9}, {0}, 0},
        {"sent manifest item 0 out of place", 0, 2, {MANIFEST_MODULE}, {1}, 0},
        {"sent manifest item 1 out of place", 0, 2, {MANIFEST_MODULE, MANIFEST_SESSION}, {0}, 0},
        {"sent manifest item 1 out of place", 0, 2, {MANIFEST_MODULE, MANIFEST_BUFFER}, {0, 1}, 0},
        {"sent manifest item 1 out of place",
         0,
         2,
         {MANIFEST_MODULE, MANIFEST_PARAMETER},
         {0},
         LOCKSTEP_MAX_DIMS + 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        static struct story story;
        struct up_message message = {.kind = UP_MANIFEST_PART};
        message.u.manifest_part.first = wrong[i].first;
        message.u.manifest_part.count = wrong[i].count;
        for (int k = 0; k < 2; k++) {
            message.u.manifest_part.items[k].kind = wrong[i].kinds[k];
            message.u.manifest_part.items[k].module = wrong[i].modules[k];
            message.u.manifest_part.items[k].dims = wrong[i].dims;
        }
        story_begin(&story);
        story_form(&story, 2);
        story_start(&story, 1, 1, 2, 0);
        story_start(&story, 2, 2, 2, 0);
        story_say(&story, 2, &message);
        story_expect_piece(&story, wrong[i].sentence);
        assert_true(story.closed[2]);
        story_end(&story);
    }
}

// ---- Random messages -------------------------------------------------------------------------

enum {
    FUZZ_STREAMS = 24,
    FUZZ_JOBS = 3,
    FUZZ_EVENTS = 1500
};

struct fuzz {
    struct story story;
    uint64_t seed;
    uint64_t random;
    uint32_t next_peer;
    uint32_t peers[FUZZ_STREAMS]; // 0: none.
    // The present step by the stream's account, what the stream has sent in it, and before it.
    uint64_t steps[FUZZ_STREAMS];
    bool linked[FUZZ_STREAMS];
    bool started[FUZZ_STREAMS];
    bool ended[FUZZ_STREAMS];
    uint32_t reported[FUZZ_STREAMS];
    uint32_t layouts[FUZZ_STREAMS];
    struct generation_id highest[FUZZ_JOBS];
    uint64_t stalls; // Seen, over all looks.
};

static uint64_t draw(struct fuzz *fuzz, uint64_t bound)
{
    return choice_random(&fuzz->random) % bound;
}

// Mostly small and plausible, sometimes anything.
static uint32_t draw_number(struct fuzz *fuzz, uint32_t plausible)
{
    return (uint32_t)(draw(fuzz, 300) == 0 ? draw(fuzz, UINT32_MAX) : draw(fuzz, plausible));
}

static void draw_hello(struct fuzz *fuzz, struct up_hello *hello)
{
    const uint32_t job = (uint32_t)draw(fuzz, FUZZ_JOBS);
    *hello = story_hello("x", draw(fuzz, 20) == 0 ? draw_number(fuzz, 5) : 1 + job, "h");
    hello->job[0] = (char)('a' + job);
    if (job == 1 && draw(fuzz, 20) != 0)
        hello->on_failure = FAILURE_CONTINUE;
    hello->host[0] = hello->host_id[0] = (char)('A' + draw(fuzz, 3));
    if (job == 2 && draw(fuzz, 10) != 0)
        hello->world_max = 4;
    hello->window_ms = 50;
    hello->open_timeout_ms = draw_number(fuzz, 1000);
    hello->has_rank_hint = draw(fuzz, 8) == 0;
    hello->rank_hint = draw_number(fuzz, 4);
    if (draw(fuzz, 100) == 0)
        hello->gpu_problem[0] = '\n';
    hello->has_gpu = draw(fuzz, 8) == 0;
    hello->gpu.uuid.bytes[0] = (uint8_t)draw(fuzz, 4);
    hello->further_gpu_count = (uint32_t)draw(fuzz, LOCKSTEP_MAX_OWN_DEVICES);
    hello->further_gpus[0].bytes[0] = (uint8_t)draw(fuzz, 8);
    hello->gpu.nccl_version = draw(fuzz, 4) == 0 ? draw_number(fuzz, 1) : 22105;
    hello->version = draw(fuzz, 50) == 0 ? 1 : LOCKSTEP_PROTOCOL_VERSION;
}

static void draw_items(struct fuzz *fuzz, struct up_manifest_part *part, const struct story *story,
                       uint32_t peer)
{
    part->count = draw_number(fuzz, LOCKSTEP_MANIFEST_PART + 1);
    part->first = draw_number(fuzz, 2) * LOCKSTEP_MANIFEST_PART;
    const struct down_message *last = &story->last[peer % STORY_LAST];
    if (last->kind == DOWN_MANIFEST_REQUEST && draw(fuzz, 10) != 0) {
        part->first = last->u.manifest_request.first;
        part->count = last->u.manifest_request.count;
    }
    for (uint32_t i = 0; i < LOCKSTEP_MANIFEST_PART; i++) {
        struct manifest_item *item = &part->items[i];
        item->kind =
            (enum manifest_kind)(part->first + i == 0 ? MANIFEST_MODULE : 3 + draw(fuzz, 2));
        item->name[0] = (char)('a' + draw(fuzz, 20));
        item->dtype = (enum dtype)draw(fuzz, 8);
        item->dims = draw_number(fuzz, 9);
        item->shape[0] = (int64_t)draw(fuzz, 3);
        memset(item->value, draw(fuzz, 2) == 0 ? '=' : 'x', draw(fuzz, sizeof(item->value)));
    }
}

static void draw_layout(struct fuzz *fuzz, struct layout_part *part, uint32_t module)
{
    static const uint32_t right[] = {2, 1, 3, 2, 0, 1};
    part->module = module;
    part->total = 6;
    part->count = 6;
    memcpy(part->words, right, sizeof(right));
    if (draw(fuzz, 10) == 0) {
        part->module = draw_number(fuzz, 3);
        part->words[draw(fuzz, 6)] = draw_number(fuzz, 4);
        part->total = draw_number(fuzz, 8);
        part->count = draw_number(fuzz, 8);
        part->first = draw_number(fuzz, 3);
    }
}

// A message that a worker could send at this point, or any message.
static enum up_kind draw_kind(struct fuzz *fuzz, uint32_t place)
{
    static const enum up_kind learning[] = {UP_READY, UP_READY, UP_READY, UP_READY,
                                            UP_READY, UP_READY, UP_WAIT,  UP_END};
    const struct story *story = &fuzz->story;
    const uint32_t peer = fuzz->peers[place];
    if (draw(fuzz, 60) == 0)
        return (enum up_kind)draw(fuzz, UP_REFUSE + 2);
    if (story->generation[peer].number == 0)
        return UP_HEARTBEAT;
    switch (story->last[peer % STORY_LAST].kind) {
    case DOWN_PLAN_PART: // After every other step all start again; some now and then do not.
        if (fuzz->steps[place] % 2 == 1 && fuzz->reported[place] == 0 && draw(fuzz, 50) != 0)
            return fuzz->started[place] ? UP_HEARTBEAT : UP_START;
        break;
    case DOWN_GENERATION:
        if (!fuzz->linked[place])
            return UP_LINKS;
        return fuzz->started[place] ? UP_HEARTBEAT : UP_START;
    case DOWN_TUNING:
        return fuzz->started[place] ? UP_HEARTBEAT : UP_START;
    case DOWN_MANIFEST_REQUEST:
        return UP_MANIFEST_PART;
    case DOWN_HALT:
        return draw(fuzz, 2) == 0 ? UP_LEAVE : UP_FAIL;
    case DOWN_PREPARE:
        return draw(fuzz, 3) == 0 ? UP_REPORT : UP_RECORD_PART;
    case DOWN_VERIFIED:
        if (story->rank[peer] == 0 && fuzz->layouts[place] < 3)
            return UP_LAYOUT_PART;
        break;
    case DOWN_NONE:
    case DOWN_WELCOME:
    case DOWN_REFUSED:
    case DOWN_GRANT:
    case DOWN_LAYOUT_PART:
    case DOWN_QUERY:
    case DOWN_INSPECT:
    case DOWN_RECORD_PART:
    case DOWN_DECISION:
    case DOWN_EXCLUDED:
    case DOWN_ADDRESSES:
        break;
    }
    if (fuzz->ended[place])
        return UP_HEARTBEAT;
    return fuzz->reported[place] >= 12 ? UP_END : learning[draw(fuzz, 8)];
}

// Each stream makes the slots in an order of its own, and waits for the last one it has made.
static struct slot_id draw_slot(struct fuzz *fuzz, uint32_t place, enum up_kind kind)
{
    static const uint32_t strides[] = {1, 5, 7, 11, 1, 1};
    uint32_t count = fuzz->reported[place];
    if (kind == UP_READY)
        fuzz->reported[place]++;
    else if (count > 0)
        count--;
    const uint32_t index = count * strides[fuzz->peers[place] % 6] % 12;
    if (draw(fuzz, 100) == 0)
        return slot(draw_number(fuzz, 3), draw_number(fuzz, 2), draw_number(fuzz, 2));
    return slot(index % 3, index / 3 % 2, index / 6);
}

static void draw_record(struct fuzz *fuzz, struct record_part *part)
{
    part->kind = (enum record_kind)draw_number(fuzz, RECORD_COMMIT + 1);
    part->position = draw_number(fuzz, 3);
    part->total = draw_number(fuzz, 9);
    part->first = draw(fuzz, 4) == 0 ? draw_number(fuzz, 3) : 0;
    part->count = draw(fuzz, 4) == 0 ? draw_number(fuzz, 9) : part->total;
    for (uint32_t i = 0; i < LOCKSTEP_RECORD_PART; i++)
        part->words[i] = draw_number(fuzz, 9);
}

static void draw_replan(struct fuzz *fuzz, struct up_replan *replan)
{
    replan->replaces = draw_number(fuzz, 4);
    replan->in_force = draw_number(fuzz, 4);
    replan->call_count = draw_number(fuzz, 4);
    for (uint32_t i = 0; i < LOCKSTEP_REPLAN_CALLS; i++)
        replan->calls[i] = (struct call_id){draw_number(fuzz, 3), draw_number(fuzz, 2)};
}

// Sets of few positions and of all, names of calls beside them and of others.
static void draw_blocked(struct fuzz *fuzz, struct up_blocked *blocked)
{
    blocked->space = draw(fuzz, 2);
    blocked->wait_count = draw_number(fuzz, 3);
    for (uint32_t i = 0; i < 2; i++) {
        blocked->waits[i].call.module = draw_number(fuzz, 70);
        blocked->waits[i].needs.words[draw(fuzz, LOCKSTEP_SLOT_WORDS)] = draw(fuzz, 9) - 1;
    }
    for (uint32_t i = 0; i < LOCKSTEP_SLOT_WORDS; i++)
        blocked->lacks.words[i] = draw(fuzz, 8) == 0 ? draw(fuzz, 9) - 1 : 0;
    blocked->lack_count = draw_number(fuzz, LOCKSTEP_LACKS_NAMED + 1);
    for (uint32_t i = 0; i < LOCKSTEP_LACKS_NAMED; i++)
        blocked->lacking[i] =
            (struct blocked_lack){draw_number(fuzz, 1024), {draw_number(fuzz, 70), i}};
}

// Numbers as absurd as the codec lets through, and more links and mates than it does.
static void draw_heartbeat(struct fuzz *fuzz, struct up_heartbeat *beat)
{
    struct place *place = &beat->place;
    beat->step = draw(fuzz, 9);
    beat->settled = draw_number(fuzz, 3);
    beat->flags = draw(fuzz, 4) == 0 ? (uint32_t)draw(fuzz, 40) : 0;
    beat->pause_ms = draw_number(fuzz, 9);
    beat->bytes_sent = draw(fuzz, 3) == 0;
    beat->totals.steps = draw_number(fuzz, 9);
    beat->totals.exposed_us = draw_number(fuzz, 9);
    place->position = draw_number(fuzz, 2);
    place->count = 4;
    place->done = draw(fuzz, 3) == 0;
    place->waits = draw(fuzz, 2) == 0;
    place->inside = draw(fuzz, 2) == 0;
    place->api = (enum api_function)draw(fuzz, API_CLOSE + 2);
    place->api_ms = draw(fuzz, 50) == 0 ? UINT64_MAX : draw(fuzz, 200000);
    place->module = draw_number(fuzz, LOCKSTEP_MAX_MODULES + 2);
    place->calls_open = draw_number(fuzz, 2);
    place->usual_us = draw(fuzz, 9) == 0 ? UINT64_MAX : draw(fuzz, 3000000);
    place->waited_us = draw_number(fuzz, 9);
    beat->link_count = draw_number(fuzz, LOCKSTEP_LINKS_NAMED + 2);
    beat->mate_count = draw_number(fuzz, LOCKSTEP_MATES_NAMED + 2);
    for (uint32_t i = 0; i < LOCKSTEP_LINKS_NAMED; i++)
        beat->links[i] = (struct link_state){.rank = draw_number(fuzz, 3), .unsent = 1};
    for (uint32_t i = 0; i < LOCKSTEP_MATES_NAMED; i++)
        beat->mates[i] = (struct mate_state){.rank = draw_number(fuzz, 3), .state = 'T'};
    beat->metric_count = draw_number(fuzz, LOCKSTEP_MAX_METRICS + 2);
    beat->counter_count = draw_number(fuzz, LOCKSTEP_MAX_COUNTERS + 2);
    memset(beat->metrics, (int)draw(fuzz, 256), sizeof(beat->metrics)); // No name ends.
    memset(beat->counters, (int)draw(fuzz, 256), sizeof(beat->counters));
}

static void draw_answer(struct fuzz *fuzz, uint32_t place, struct up_answer *answer)
{
    const struct down_message *last = &fuzz->story.last[fuzz->peers[place] % STORY_LAST];
    memset(answer, 0xe2, sizeof(*answer)); // No text is terminated, and every count is too large.
    answer->id = last->kind == DOWN_INSPECT ? last->u.inspect.id : draw(fuzz, 3);
    answer->last = draw(fuzz, 2) == 0;
    answer->kind = (enum answer_kind)(1 + draw(fuzz, 4));
    for (uint32_t i = 0; answer->kind == ANSWER_THREADS && i < LOCKSTEP_THREADS_PART; i++)
        answer->u.threads.threads[i].trainer = draw(fuzz, 2) == 0;
    for (uint32_t i = 0; answer->kind == ANSWER_FRAMES && i < LOCKSTEP_FRAMES_PART; i++) {
        answer->u.frames.frames[i].thread = draw_number(fuzz, 2);
        answer->u.frames.frames[i].python = draw(fuzz, 2) == 0;
    }
}

static void draw_message(struct fuzz *fuzz, uint32_t place, struct up_message *message)
{
    const uint64_t step = draw(fuzz, 100) == 0 ? draw(fuzz, 5) : fuzz->steps[place];
    const uint64_t phase = draw(fuzz, 100) == 0;
    const struct down_message *last = &fuzz->story.last[fuzz->peers[place] % STORY_LAST];
    memset(message, 0, sizeof(*message));
    message->kind = draw_kind(fuzz, place);
    const struct slot_id id = draw_slot(fuzz, place, message->kind);
    fuzz->linked[place] |= message->kind == UP_LINKS;
    fuzz->started[place] |= message->kind == UP_START;
    fuzz->ended[place] |= message->kind == UP_END;
    switch (message->kind) {
    case UP_HELLO:
        draw_hello(fuzz, &message->u.hello);
        return;
    case UP_START:
        message->u.start.manifest_hash = draw(fuzz, 12) == 0;
        message->u.start.item_count = draw(fuzz, 8) == 0 ? draw_number(fuzz, 300) : 40;
        message->u.start.root = draw(fuzz, 30) == 0;
        message->u.start.settled = step - 1;
        message->u.start.zero_defer = draw(fuzz, 2) == 0;
        return;
    case UP_MANIFEST_PART:
        draw_items(fuzz, &message->u.manifest_part, &fuzz->story, fuzz->peers[place]);
        return;
    case UP_READY:
        message->u.ready = (struct up_ready){
            .step = step, .phase = phase, .slot = id, .dtype = DTYPE_FLOAT32, .elements = 4};
        if (draw(fuzz, 200) == 0) {
            message->u.ready.granted = draw_number(fuzz, 3);
            message->u.ready.grants = draw_number(fuzz, 4);
            message->u.ready.unmade = draw(fuzz, 2) == 0;
        }
        return;
    case UP_WAIT:
        message->u.wait = (struct up_wait){.step = step, .phase = phase, .slot = id};
        message->u.wait.also_count = draw(fuzz, 4) == 0 ? draw_number(fuzz, 2) : 0;
        message->u.wait.also[0] = draw(fuzz, 4) == 0 ? slot(0, 0, 0) : id;
        return;
    case UP_LAYOUT_PART:
        draw_layout(fuzz, &message->u.layout_part, fuzz->layouts[place]++);
        return;
    case UP_END:
        message->u.end = (struct up_end){.step = step, .phase = phase};
        if (draw(fuzz, 50) == 0)
            message->u.end.plan = draw_number(fuzz, 3);
        return;
    case UP_HEARTBEAT:
        draw_heartbeat(fuzz, &message->u.heartbeat);
        return;
    case UP_FAIL:
        message->u.fail.kind = (enum halt_kind)draw(fuzz, 12);
        message->u.fail.step = step;
        memset(message->u.fail.text, 0xe2, sizeof(message->u.fail.text)); // Not even terminated.
        message->u.fail.space = draw(fuzz, 2);
        memset(message->u.fail.name, 0xe2, sizeof(message->u.fail.name));
        if (draw(fuzz, 2) == 0)
            memset(message->u.fail.form, 'a' + (int)draw(fuzz, 2), sizeof(message->u.fail.form));
        return;
    case UP_LOST:
        message->u.lost.rank = draw_number(fuzz, 4);
        message->u.lost.left = draw(fuzz, 2) == 0;
        message->u.lost.impossible = draw(fuzz, 2) == 0;
        message->u.lost.step = step;
        return;
    case UP_LEAVE:
        message->u.leave.settled = step;
        message->u.leave.flags = draw(fuzz, 3) == 0 ? REPORT_OPENED : 0;
        message->u.leave.word_count = draw_number(fuzz, 3);
        return;
    case UP_LINKS:
        message->u.links = (struct up_links){.shares = draw(fuzz, 2) == 0,
                                             .latency_ns = draw_number(fuzz, 9),
                                             .bytes_per_s = draw_number(fuzz, 9),
                                             .wish = draw(fuzz, 60) == 0 ? (uint32_t)draw(fuzz, 9)
                                                                         : ALGORITHM_BY_SIZE};
        return;
    case UP_BLOCKED:
        draw_blocked(fuzz, &message->u.blocked);
        message->u.blocked.step = step;
        return;
    case UP_MODULES:
        message->u.modules.first = draw_number(fuzz, 3);
        message->u.modules.count = draw_number(fuzz, 18);
        memset(message->u.modules.names, 0xe2, sizeof(message->u.modules.names));
        return;
    case UP_ANSWER:
        draw_answer(fuzz, place, &message->u.answer);
        return;
    case UP_REPLAN:
        draw_replan(fuzz, &message->u.replan);
        message->u.replan.phase = phase;
        return;
    case UP_REACH:
        message->u.reach.count = draw_number(fuzz, LOCKSTEP_REACH_RANKS);
        for (uint32_t i = 0; i < LOCKSTEP_REACH_RANKS; i++)
            message->u.reach.ranks[i] = draw_number(fuzz, 2);
        return;
    case UP_RECORD_PART:
        draw_record(fuzz, &message->u.record_part);
        return;
    case UP_REPORT:
        message->u.report.ballot = last->u.prepare.ballot;
        if (last->kind != DOWN_PREPARE || draw(fuzz, 20) == 0)
            message->u.report.ballot = (struct generation_id){draw_number(fuzz, 9), 0xc0};
        message->u.report.settled = draw_number(fuzz, 3);
        message->u.report.step = draw_number(fuzz, 3);
        message->u.report.flags = draw_number(fuzz, REPORT_FLAGS);
        return;
    case UP_REFUSE:
        message->u.refuse.promised.number = draw_number(fuzz, 4);
        return;
    case UP_NONE:
        return;
    }
}

// Checks what the core sent to a stream since the last event, as far as it can be wrong.
static void fuzz_check_peer(struct fuzz *fuzz, uint32_t place)
{
    const struct story *story = &fuzz->story;
    const uint32_t peer = fuzz->peers[place];
    if (peer == 0)
        return;
    if (story->closed[peer])
        fuzz->peers[place] = 0;
    const struct down_message *last = &story->last[peer % STORY_LAST];
    if (last->kind != DOWN_PLAN_PART || last->u.plan_part.step < fuzz->steps[place])
        return;
    fuzz->steps[place] = last->u.plan_part.step + 1;
    fuzz->started[place] = false;
    fuzz->ended[place] = false;
    fuzz->reported[place] = 0;
    fuzz->layouts[place] = 0;
}

static void fuzz_check_ranks(struct fuzz *fuzz)
{
    const struct story *story = &fuzz->story;
    for (uint32_t i = 0; i < FUZZ_STREAMS; i++) {
        const uint32_t a = fuzz->peers[i];
        for (uint32_t k = 0; k < i && a != 0; k++) {
            const uint32_t b = fuzz->peers[k];
            if (b == 0 || story->generation[a].number == 0 ||
                memcmp(story->secret[a], story->secret[b], LOCKSTEP_SECRET_BYTES) != 0)
                continue;
            assert_int_not_equal(story->rank[a], story->rank[b]);
            assert_int_equal(story->generation[a].number, story->generation[b].number);
        }
    }
}

static void fuzz_check_views(struct fuzz *fuzz)
{
    const struct story *story = &fuzz->story;
    for (uint32_t i = 0; i < coordinator_job_count(story->core); i++) {
        const struct job_view job = story_job(story, i);
        struct worker_view worker;
        uint32_t count = 0;
        struct generation_id *highest = &fuzz->highest[job.name[0] - 'a'];
        assert_true(job.generation.number >= highest->number);
        highest->number = job.generation.number;
        for (; coordinator_worker_view(story->core, i, count, story->now_ms, &worker); count++)
            if (worker.has_rank)
                assert_int_equal(worker.rank, count);
        assert_true(job.joined <= count);
        assert_true(job.left <= count);
        assert_int_equal(job.state == JOB_HALTED, job.halt_text[0] != '\0');
    }
}

static bool is_text(const char *text, size_t bytes)
{
    const char *end = memchr(text, '\0', bytes);
    for (; end && text < end; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text == 0xe2)
            return false;
    return end != NULL;
}

static void fuzz_check_stalls(struct fuzz *fuzz)
{
    static struct stall_view stall;
    const struct story *story = &fuzz->story;
    for (uint32_t i = 0; i < coordinator_job_count(story->core); i++) {
        uint64_t number = UINT64_MAX;
        for (uint32_t k = 0; coordinator_stall_view(story->core, i, k, story->now_ms, &stall);
             k++) {
            assert_true(stall.number < number);
            number = stall.number;
            assert_true(k == 0 || !stall.active);
            assert_true(stall.culprit_count <= LOCKSTEP_MAX_CULPRITS &&
                        stall.culprit_count <= stall.culprit_total);
            assert_true(is_text(stall.sentence, sizeof(stall.sentence)));
            assert_true(is_text(stall.phase, sizeof(stall.phase)));
            for (uint32_t c = 0; c < stall.culprit_count; c++)
                assert_true(is_text(stall.culprits[c].top, sizeof(stall.culprits[c].top)));
            fuzz->stalls++;
        }
    }
}

static void fuzz_open(struct fuzz *fuzz, uint32_t place)
{
    struct up_hello hello;
    fuzz->peers[place] = fuzz->next_peer++;
    fuzz->steps[place] = 1;
    fuzz->linked[place] = false;
    fuzz->started[place] = false;
    fuzz->ended[place] = false;
    fuzz->reported[place] = 0;
    fuzz->layouts[place] = 0;
    draw_hello(fuzz, &hello);
    story_say_hello(&fuzz->story, fuzz->peers[place], &hello);
}

static void fuzz_event(struct fuzz *fuzz)
{
    struct up_message message;
    const uint32_t place = (uint32_t)draw(fuzz, FUZZ_STREAMS);
    const uint64_t choice = draw(fuzz, 100);
    struct story *story = &fuzz->story;
    if (choice < 3) {
        story_sleep(story, draw(fuzz, draw(fuzz, 10) == 0 ? 3000 : 300));
    } else if (fuzz->peers[place] == 0) {
        if (choice < 30)
            fuzz_open(fuzz, place);
    } else if (choice < 4 && draw(fuzz, 5) == 0) {
        const uint32_t peer = fuzz->peers[place];
        fuzz->peers[place] = 0;
        story_close(story, peer, "broken");
    } else {
        const bool stale = draw(fuzz, 60) == 0;
        struct generation_id *generation = &story->generation[fuzz->peers[place]];
        draw_message(fuzz, place, &message);
        generation->incarnation ^= stale;
        story_say(story, fuzz->peers[place], &message);
        // A generation that was given meanwhile is the true one.
        if (stale && generation->incarnation != 0xc0)
            generation->incarnation ^= 1;
    }
    for (uint32_t i = 0; i < FUZZ_STREAMS; i++)
        fuzz_check_peer(fuzz, i);
    fuzz_check_ranks(fuzz);
    fuzz_check_views(fuzz);
    if (choice % 16 == 0)
        fuzz_check_stalls(fuzz);
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return !text || text[0] == '\0' ? otherwise : strtoull(text, NULL, 10);
}

static void test_random_messages(void **state)
{
    static struct fuzz fuzz;
    const uint64_t only = number_from("LOCKSTEP_TEST_FUZZ_SEED", UINT64_MAX);
    const uint64_t first = only == UINT64_MAX ? 0 : only;
    const uint64_t end =
        only == UINT64_MAX ? number_from("LOCKSTEP_TEST_FUZZ_SEEDS", 60) : only + 1;
    uint64_t stalls = 0;
    (void)state;
    for (uint64_t seed = first; seed < end; seed++) {
        memset(&fuzz, 0, sizeof(fuzz));
        story_begin(&fuzz.story);
        fuzz.story.quiet = only == UINT64_MAX;
        fuzz.random = seed * 1000003;
        fuzz.next_peer = 1;
        for (int i = 0; i < FUZZ_EVENTS && fuzz.next_peer < STORY_PEERS; i++) {
            // Printed first: an assertion that fails says no more.
            if (i == 0 && only != UINT64_MAX)
                print_message("seed %" PRIu64 "\n", seed);
            fuzz_event(&fuzz);
        }
        if (only != UINT64_MAX)
            puts(fuzz.story.trace);
        story_end(&fuzz.story);
        stalls += fuzz.stalls;
    }
    assert_true(only != UINT64_MAX || stalls > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_impossible_message_ends_the_generation_by_name),
        cmocka_unit_test(test_repetitions_are_named),
        cmocka_unit_test(test_a_gatherer_that_lies_is_refused),
        cmocka_unit_test(test_wrong_manifest_items_are_named),
        cmocka_unit_test(test_random_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
