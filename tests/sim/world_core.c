// SPDX-License-Identifier: Apache-2.0
//
// The coordinator of a small world, the streams to and from it, and how a world begins; see
// world.h.

#include "coordinator/sentence.h"
#include "tests/sim/world_inside.h"
#include "worker/order/header.h"

#include "coordinator/core.h"
#include "coordinator/hash.h"
#include "coordinator/learning.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static coordinator_peer peer_of(uint32_t rank)
{
    return 100 + rank;
}

static uint32_t rank_of(coordinator_peer peer)
{
    return (uint32_t)(peer - 100);
}

uint64_t world_phase(char letter)
{
    return UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(unsigned char)letter;
}

void world_say(const struct world *world, const char *format, ...)
{
    char line[2 * WORLD_TEXT];
    va_list arguments;
    if (!world->say)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    world->say(world->context, line);
}
// ---- The end of a rank -------------------------------------------------------------------------

void world_rank_fails(struct world *world, uint32_t r, enum halt_kind halt, const char *text)
{
    struct world_rank *rank = &world->state.ranks[r];
    if (!world_lives(rank))
        return;
    if (!text) // The verdict of the close wave.
        text = "calls outside the plan";
    world_say(world, "    rank %" PRIu32 " fails: %s", r, text);
    rank->mode = MODE_FAILED;
    rank->halt = (uint8_t)halt;
    rank->halt_text = hash_bytes(HASH_START, text, strlen(text));
    // Nobody looks at what is still on its way to it.
    rank->down_count = rank->header_count = 0;
    memset(rank->down, 0, sizeof(rank->down));
    memset(rank->headers, 0, sizeof(rank->headers));
}

// ---- Control streams ---------------------------------------------------------------------------

void world_stream_up(struct world *world, uint32_t r, const struct up_message *message)
{
    struct world_rank *rank = &world->state.ranks[r];
    char text[WORLD_TEXT];
    if (!world_lives(rank))
        return;
    if (message->kind != UP_HELLO)
        world_check_said(world, r, message);
    world_up_text(message, text, sizeof(text));
    world_say(world, "    rank %" PRIu32 " says: %s", r, text);
    if (rank->cut_known && world->config.disaster == DISASTER_RESTART)
        return;
    if (rank->cut_known) {
        world_rank_fails(world, r, HALT_NONE, "the coordinator is gone and is needed here");
        return;
    }
    const uint32_t number = world_keep_up(world, message);
    if (number == UINT32_MAX)
        world_fault(world, "rank %" PRIu32 " says what cannot be encoded: %s", r, text);
    else if (rank->up_count == WORLD_CHANNEL)
        world_fault(world, "rank %" PRIu32 " has said more than its channel can hold", r);
    else if (!rank->cut)
        rank->up[rank->up_count++] = number;
}

void world_channel_pop(uint32_t *numbers, uint8_t *count)
{
    memmove(numbers, numbers + 1, (*count - 1u) * sizeof(numbers[0]));
    numbers[--*count] = 0;
}

void world_stream_down(struct world *world, uint32_t r, const struct down_message *message)
{
    struct world_rank *rank = &world->state.ranks[r];
    const uint32_t number = world_keep_down(world, message);
    if (number == UINT32_MAX)
        world_fault(world, "the coordinator says what cannot be encoded: kind %d",
                    (int)message->kind);
    else if (rank->down_count == WORLD_CHANNEL)
        world_fault(world, "rank %" PRIu32 " is told more than its channel can hold", r);
    else
        rank->down[rank->down_count++] = number;
}

static void core_action(void *context, const struct coordinator_action *action)
{
    struct world *world = context;
    const uint32_t r = action->kind == ACTION_LOG ? 0 : rank_of(action->peer);
    struct world_rank *rank = &world->state.ranks[r];
    char text[WORLD_TEXT];
    if (action->kind == ACTION_LOG || action->kind == ACTION_PROBE)
        return;
    if (action->kind == ACTION_CLOSE) {
        world_fault(world, "the coordinator ends the stream of rank %" PRIu32, r);
        return;
    }
    switch (action->message->kind) {
    case DOWN_GRANT:
    case DOWN_PLAN_PART:
    case DOWN_HALT:
    case DOWN_QUERY:
        world_down_text(action->message, text, sizeof(text));
        world_say(world, "    the coordinator tells rank %" PRIu32 ": %s", r, text);
        if (world_lives(rank) && !rank->cut)
            world_stream_down(world, r, action->message);
        else if (rank->mode == MODE_DONE && action->message->kind == DOWN_HALT &&
                 world->config.disaster == DISASTER_NONE)
            world_fault(world, "a halt for rank %" PRIu32 ", which has finished: %s", r, text);
        return;
    case DOWN_WELCOME:
    case DOWN_GENERATION:
    case DOWN_VERIFIED:
    case DOWN_LAYOUT_PART: // Known: world_config.
        return;
    case DOWN_NONE:
    case DOWN_REFUSED:
    case DOWN_MANIFEST_REQUEST:
    case DOWN_TUNING:
    case DOWN_INSPECT:
    case DOWN_PREPARE:
    case DOWN_RECORD_PART:
    case DOWN_DECISION:
    case DOWN_EXCLUDED:
    case DOWN_ADDRESSES:
        break;
    }
    world_fault(world, "the coordinator says something unexpected: kind %d",
                (int)action->message->kind);
}

static void core_happens(struct world *world, const struct coordinator_event *event)
{
    coordinator_step(world->core, event, 1, (struct coordinator_sink){core_action, world});
}

void world_core_hears(struct world *world, uint32_t r, const struct up_message *message)
{
    core_happens(world, &(struct coordinator_event){
                            .kind = EVENT_MESSAGE, .peer = peer_of(r), .message = message});
}

void world_core_ended(struct world *world, uint32_t r)
{
    core_happens(world,
                 &(struct coordinator_event){
                     .kind = EVENT_CLOSED, .peer = peer_of(r), .text = "reset", .proven = true});
}

void world_core_restarts(struct world *world)
{
    struct coordinator *core = world->core;
    struct job *job = &core->jobs[0];
    job->used = false;
    job->queried_step = 0;
    memset(&job->halt, 0, sizeof(job->halt));
    learning_reset(&job->learning);
    job->learning.step = job->learning.phase = 0;
    job->learning.opener = job->learning.entered = job->learning.ended = 0;
    job->learning.grant_count = 0;
    core->job_count = core->worker_top = 0;
    core->worker_free = CORE_NONE;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        memset(&core->workers[r], 0, sizeof(core->workers[r]));
        core->peers[world->port[r]] = 0;
    }
}

static void hello_fill(const struct world *world, uint32_t r, struct up_hello *hello)
{
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    snprintf(hello->job, sizeof(hello->job), "small");
    snprintf(hello->host, sizeof(hello->host), "h%" PRIu32, r);
    snprintf(hello->host_id, sizeof(hello->host_id), "h%" PRIu32, r);
    snprintf(hello->address, sizeof(hello->address), "small:%" PRIu32, r);
    hello->uuid.bytes[0] = (uint8_t)(r + 1);
    hello->world_min = hello->world_max = world->config.ranks;
}

static void start_fill(const struct world *world, uint32_t r, struct up_start *start)
{
    start->item_count = 1;
    start->zero_defer = world->config.zero_defer;
    start->strict = world_in_set(world->config.strict, r);
}

// As resume_describe in worker/engine/resume.c.
void world_says_hello(struct world *world, uint32_t r)
{
    const struct order *order = &world->orders[r];
    struct up_message message = {.kind = UP_HELLO, .generation = order->generation};
    struct up_resume *resume = &message.u.hello.resume;
    hello_fill(world, r, &message.u.hello);
    message.u.hello.resumes = true;
    *resume = (struct up_resume){.generation = order->generation,
                                 .rank = r,
                                 .world_size = world->config.ranks,
                                 .settled = order->settled,
                                 .rounds = order->headers.starts,
                                 .plan_number = order->plans.number,
                                 .learning_step = order->open && order->learning ? order->step : 0};
    start_fill(world, r, &resume->start);
    world_stream_up(world, r, &message);
}

// ---- The beginning -----------------------------------------------------------------------------

static void begin_rank(struct world *world, uint32_t r)
{
    const struct order_options options = {
        .window = world->config.window,
        .zero_defer = world->config.zero_defer,
        .unplanned = world->config.unplanned,
        .strict = world_in_set(world->config.strict, r),
        .wait_while_open = world->config.wait_while_open,
        .threads = world->config.threads,
    };
    const struct generation_id generation = {.number = 1, .incarnation = 7};
    order_init(&world->orders[r], generation, r, world->config.ranks, &options,
               (struct order_sink){world_order_acts, world});
    order_start_begun(&world->orders[r]);
}

static void begin_hello(struct world *world, uint32_t r)
{
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *hello = &message.u.hello;
    hello_fill(world, r, hello);
    hello->has_rank_hint = true;
    hello->rank_hint = r;
    world_core_hears(world, r, &message);
}

static void begin_start(struct world *world, uint32_t r)
{
    struct up_message message = {.kind = UP_START, .generation = world->orders[r].generation};
    start_fill(world, r, &message.u.start);
    world_core_hears(world, r, &message);
}

// Chooses an event while plans are learned: first events that are no trainer's, then the trainer
// that is furthest behind. So grants come in the order of the plan.
static bool begin_choose(const struct world *world, struct world_event *chosen)
{
    struct world_event events[WORLD_EVENTS];
    const uint32_t count = world_events(world, events);
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const struct world_rank *rank = &world->state.ranks[events[i].rank];
        if (events[i].kind == EVENT_PUBLISH || events[i].kind == EVENT_STRIKE)
            continue;
        if (events[i].kind != EVENT_TRAINER) {
            *chosen = events[i];
            return true;
        }
        const uint32_t place = 256u * rank->step + rank->threads[0].at;
        if (place >= least || rank->step >= world->program.plans)
            continue;
        least = place;
        *chosen = events[i];
    }
    return least != UINT32_MAX;
}

bool world_begin(struct world *world, const struct world_config *config)
{
    const struct coordinator_config core = {.incarnation = 7};
    struct world_event event;
    void *memory = world->core;
    world_forget_messages(world);
    memset(&world->state, 0, sizeof(world->state));
    world->config = *config;
    world->fault[0] = '\0';
    if (!world_program_read(&world->program, config)) {
        world_fault(world, "the programs or plans make no sense");
        return false;
    }
    if (!memory)
        memory = malloc(coordinator_bytes());
    if (!memory)
        abort();
    world->core = coordinator_init(memory, &core);
    for (uint32_t r = 0; r < config->ranks; r++)
        begin_hello(world, r);
    for (uint32_t r = 0; r < config->ranks; r++) {
        world->acts = r;
        begin_rank(world, r);
        begin_start(world, r);
    }
    for (uint32_t r = 0, at = 0; r < config->ranks; at++)
        if (world->core->peers[at] != 0)
            world->port[r++] = at;
    while (world->fault[0] == '\0' && begin_choose(world, &event))
        world_do(world, &event);
    return world->fault[0] == '\0';
}

void world_end(struct world *world)
{
    world_forget_messages(world);
    free(world->core);
    world->core = NULL;
}
