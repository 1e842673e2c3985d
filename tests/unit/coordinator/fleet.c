// SPDX-License-Identifier: Apache-2.0
//
// A job of workers that say where they are. See fleet.h.

#include "tests/unit/coordinator/fleet.h"

#include "coordinator/stall_view.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

void fleet_begin(struct fleet *fleet, struct story *story, uint32_t world, uint32_t per_host)
{
    assert_true(world <= FLEET_RANKS);
    memset(fleet, 0, sizeof(*fleet));
    fleet->story = story;
    fleet->count = world;
    story->quiet = true;
    for (uint32_t rank = 0; rank < world; rank++) {
        char host[16];
        snprintf(host, sizeof(host), "h%" PRIu32, rank / per_host);
        struct up_hello hello = story_hello("j", world, host);
        snprintf(hello.device, sizeof(hello.device), rank == 2 ? "gpu" : "cpu");
        story_say_hello(story, rank + 1, &hello);
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        struct fleet_rank *of = &fleet->ranks[rank];
        story_start(story, rank + 1, 7, 3, 0);
        assert_int_equal(story->rank[rank + 1], rank);
        of->beat.step = of->beat.settled = 10;
        of->beat.totals.steps = 10;
        of->beat.place.api = API_STEP_END;
        of->beat.place.module = LOCKSTEP_MAX_MODULES;
        of->api_at_ms = story->now_ms;
        of->next_ms = story->now_ms + (uint64_t)rank * 370 % 1000 / FLEET_MS * FLEET_MS;
        of->received = story->received[rank + 1];
    }
}

void fleet_name_modules(struct fleet *fleet)
{
    struct up_message message = {.kind = UP_MODULES, .u.modules = {.total = 2, .count = 2}};
    snprintf(message.u.modules.names[0], LOCKSTEP_NAME_BYTES, "actor");
    snprintf(message.u.modules.names[1], LOCKSTEP_NAME_BYTES, "critic");
    story_say(fleet->story, 1, &message);
}

// ---- Where a rank is ---------------------------------------------------------------------------

static struct place *fleet_place(struct fleet *fleet, uint32_t rank)
{
    struct fleet_rank *of = &fleet->ranks[rank];
    of->beat.step = of->beat.settled + 1;
    of->beat.place = (struct place){.position = 2, .count = 4, .open = true, .plain = 5};
    of->api_at_ms = fleet->story->now_ms;
    return &of->beat.place;
}

void fleet_outside(struct fleet *fleet, uint32_t rank)
{
    struct place *place = fleet_place(fleet, rank);
    place->api = API_CALL_END;
    place->call = 3;
}

void fleet_in_call(struct fleet *fleet, uint32_t rank)
{
    struct place *place = fleet_place(fleet, rank);
    place->api = API_GRAD_READY;
    place->module = 1;
    place->call = 1;
    place->calls_open = 1;
    place->ready = 3;
    place->gradients = 10;
}

void fleet_waits(struct fleet *fleet, uint32_t rank)
{
    struct place *place = fleet_place(fleet, rank);
    place->api = API_STEP_END;
    place->inside = true;
    place->waits = true;
    place->done = true;
    place->module = LOCKSTEP_MAX_MODULES;
}

void fleet_all_wait(struct fleet *fleet)
{
    for (uint32_t rank = 0; rank < fleet->count; rank++)
        fleet_waits(fleet, rank);
}

void fleet_settle(struct fleet *fleet)
{
    for (uint32_t rank = 0; rank < fleet->count; rank++) {
        struct fleet_rank *of = &fleet->ranks[rank];
        of->beat.settled++;
        of->beat.totals.steps++;
        of->beat.place = (struct place){
            .api = API_STEP_END, .module = LOCKSTEP_MAX_MODULES, .plain = of->beat.place.plain};
        of->api_at_ms = fleet->story->now_ms;
    }
}

// ---- Time --------------------------------------------------------------------------------------

void fleet_say(struct fleet *fleet, uint32_t rank)
{
    struct fleet_rank *of = &fleet->ranks[rank];
    struct up_message message = {.kind = UP_HEARTBEAT};
    of->beat.place.api_ms = fleet->story->now_ms - of->api_at_ms;
    message.u.heartbeat = of->beat;
    story_say(fleet->story, rank + 1, &message);
}

static void fleet_frame(struct up_answer *answer, uint32_t thread, const char *object,
                        const char *symbol, uint64_t offset)
{
    struct stack_frame *frame = &answer->u.frames.frames[answer->u.frames.count++];
    frame->thread = thread;
    frame->offset = offset;
    snprintf(frame->object, sizeof(frame->object), "%s", object);
    snprintf(frame->symbol, sizeof(frame->symbol), "%s", symbol);
}

// In parts: what it misses, two threads of which the second is the trainer's, and its frames.
static void fleet_answer(struct fleet *fleet, uint32_t rank, uint64_t id)
{
    struct up_message message = {.kind = UP_ANSWER};
    struct up_answer *answer = &message.u.answer;
    *answer = (struct up_answer){.id = id, .kind = ANSWER_PLACE};
    snprintf(answer->u.place.phase, sizeof(answer->u.place.phase), "aux");
    answer->u.place.missing_total = 7;
    answer->u.place.missing_count = 4;
    for (uint32_t i = 0; i < 4; i++)
        snprintf(answer->u.place.missing[i], LOCKSTEP_NAME_BYTES, "w%" PRIu32, i);
    if (fleet->ranks[rank].beat.held == DEVICE_HOLD_STREAM) {
        snprintf(answer->u.place.awaited, LOCKSTEP_AWAITED_BYTES, "the gradient of 'w7'");
        answer->u.place.stream = 0x7f00;
    }
    if (fleet->ranks[rank].beat.held == DEVICE_HOLD_NCCL && rank > 0)
        snprintf(answer->u.place.awaited, LOCKSTEP_AWAITED_BYTES,
                 "NCCL (it said last: 'no socket')");
    story_say(fleet->story, rank + 1, &message);

    *answer = (struct up_answer){.id = id, .kind = ANSWER_THREADS};
    answer->u.threads.count = 2;
    answer->u.threads.threads[1].trainer = true;
    story_say(fleet->story, rank + 1, &message);

    *answer = (struct up_answer){.id = id, .kind = ANSWER_FRAMES, .last = true};
    fleet_frame(answer, 0, "phases", "another_thread", 1);
    fleet_frame(answer, 1, "libc.so.6", "read", 2);
    fleet_frame(answer, 1, "phases", "index_samples", 0x1a2b);
    fleet_frame(answer, 1, "phases", "main", 3);
    story_say(fleet->story, rank + 1, &message);
}

static void fleet_answers(struct fleet *fleet)
{
    struct story *story = fleet->story;
    for (uint32_t rank = 0; rank < fleet->count; rank++) {
        struct fleet_rank *of = &fleet->ranks[rank];
        const uint32_t peer = rank + 1;
        const struct down_message *last = &story->last[peer % STORY_LAST];
        if (story->received[peer] == of->received)
            continue;
        of->received = story->received[peer];
        if (last->kind == DOWN_INSPECT && !of->mute && !of->silent)
            fleet_answer(fleet, rank, last->u.inspect.id);
    }
}

static void fleet_turn(struct fleet *fleet)
{
    struct story *story = fleet->story;
    story_sleep(story, FLEET_MS);
    for (uint32_t rank = 0; rank < fleet->count; rank++) {
        struct fleet_rank *of = &fleet->ranks[rank];
        if (story->now_ms < of->next_ms)
            continue;
        of->next_ms = story->now_ms + LOCKSTEP_HEARTBEAT_MS;
        if (!of->silent && story->known[rank + 1])
            fleet_say(fleet, rank);
    }
    story_sleep(story, 0);
    fleet_answers(fleet);
}

void fleet_pass(struct fleet *fleet, uint64_t ms)
{
    for (uint64_t passed = 0; passed < ms; passed += FLEET_MS)
        fleet_turn(fleet);
}

uint64_t fleet_until_stall(struct fleet *fleet, uint64_t ms)
{
    for (uint64_t passed = 0; passed <= ms; passed += FLEET_MS) {
        if (fleet_is_stalled(fleet))
            return passed;
        fleet_turn(fleet);
    }
    return FLEET_NEVER;
}

// ---- Views -------------------------------------------------------------------------------------

static struct stall_view fleet_view; // Too large for a stack.

const struct stall_view *fleet_stall(const struct fleet *fleet)
{
    const struct story *story = fleet->story;
    assert_true(coordinator_stall_view(story->core, 0, 0, story->now_ms, &fleet_view));
    return &fleet_view;
}

bool fleet_is_stalled(const struct fleet *fleet)
{
    const struct story *story = fleet->story;
    return coordinator_stall_view(story->core, 0, 0, story->now_ms, &fleet_view) &&
           fleet_view.active;
}

uint32_t fleet_stalls(const struct fleet *fleet)
{
    const struct story *story = fleet->story;
    uint32_t count = 0;
    while (coordinator_stall_view(story->core, 0, count, story->now_ms, &fleet_view))
        count++;
    return count;
}

struct worker_view fleet_worker(const struct fleet *fleet, uint32_t rank)
{
    return story_worker(fleet->story, 0, rank);
}

void fleet_expect_culprit(const struct fleet *fleet, uint32_t rank, enum stall_kind kind)
{
    const struct stall_view *stall = fleet_stall(fleet);
    assert_true(stall->active);
    assert_int_equal(stall->kind, kind);
    assert_int_equal(stall->culprit_total, 1);
    assert_int_equal(stall->culprit_count, 1);
    assert_int_equal(stall->culprits[0].rank, rank);
    assert_int_equal(stall->culprits[0].kind, kind);
    assert_int_equal(fleet_worker(fleet, rank).kind, kind);
}

void fleet_expect_says(const struct fleet *fleet, const char *piece)
{
    const struct stall_view *stall = fleet_stall(fleet);
    if (!strstr(stall->sentence, piece))
        print_error("--- expected somewhere\n%s\n--- said\n%s\n", piece, stall->sentence);
    assert_non_null(strstr(stall->sentence, piece));
}
