// SPDX-License-Identifier: Apache-2.0
//
// The events of a world whose ranks die, in the order of a seed; see crash.h.

#include "tests/sim/crash.h"

#include "tests/support/choice.h"
#include "worker/order/header.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum event_kind {
    EVENT_TRAINER,
    EVENT_UP, // The coordinator hears a rank.
    EVENT_DOWN, // A rank hears the coordinator.
    EVENT_LATE, // A rank hears a copy of something old.
    EVENT_HEADER,
    EVENT_WAVE,
    EVENT_FINAL,
    EVENT_PREPARE,
};

struct event {
    enum event_kind kind;
    uint32_t rank;
    uint32_t index;
    uint32_t element;
};

struct events {
    uint32_t count;
    struct event list[CRASH_EVENTS];
};

void crash_say(const struct crash_world *world, const char *format, ...)
{
    va_list arguments;
    if (!world->prints)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

uint32_t crash_draw(struct crash_world *world, uint32_t bound)
{
    return (uint32_t)(choice_random(&world->random) % bound);
}

// ---- Channels ----------------------------------------------------------------------------------

void crash_push(struct crash_world *world, struct crash_channel *channel,
                const struct crash_message *message)
{
    if (channel->count == CRASH_CHANNEL)
        crash_fault(world, "a channel has too many messages");
    else
        channel->messages[channel->count++] = *message;
}

void crash_pop(struct crash_channel *channel, uint32_t at, struct crash_message *message)
{
    *message = channel->messages[at];
    channel->count--;
    memmove(&channel->messages[at], &channel->messages[at + 1],
            (channel->count - at) * sizeof(channel->messages[0]));
}

// ---- Programs ----------------------------------------------------------------------------------

// Steps of one phase make the calls of a base, with deviations; the first one of a phase is
// learned.
static void draw_step(struct crash_world *world, struct crash_program *program, uint32_t step,
                      const struct crash_call *base, uint32_t count)
{
    const bool alike = world->config.waits && !world->config.defers;
    uint32_t *made = &program->count[step];
    for (uint32_t i = 0; i < count; i++)
        if (alike || crash_draw(world, 8) != 0)
            program->calls[step][(*made)++] = base[i];
    if (alike)
        return;
    if (*made > 1 && crash_draw(world, 4) == 0) {
        const struct crash_call first = program->calls[step][0];
        program->calls[step][0] = program->calls[step][1];
        program->calls[step][1] = first;
    }
    if (crash_draw(world, 6) == 0)
        program->calls[step][(*made)++] = (struct crash_call){crash_draw(world, CRASH_MODULES), 2};
}

static void draw_programs(struct crash_world *world)
{
    struct crash_call base[CRASH_CALLS];
    const uint32_t count = 1 + crash_draw(world, 4);
    uint32_t phases[CRASH_STEPS + 1];
    for (uint32_t i = 0; i < count; i++)
        base[i] = (struct crash_call){i % CRASH_MODULES, i / CRASH_MODULES};
    for (uint32_t step = 1; step <= CRASH_STEPS; step++)
        phases[step] = 77 + (crash_draw(world, 4) == 0);
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        struct crash_program *program = &world->ranks[r].program;
        memcpy(program->phase, phases, sizeof(phases));
        program->data[0] = crash_draw(world, CRASH_STEPS);
        program->data[1] = crash_draw(world, CRASH_STEPS + 1);
        program->leaves = crash_draw(world, 3) != 0;
        for (uint32_t step = 1; step <= CRASH_STEPS; step++)
            draw_step(world, program, step, base, count);
    }
}

// ---- Events ------------------------------------------------------------------------------------

static void add(struct events *events, enum event_kind kind, uint32_t rank, uint32_t index,
                uint32_t element)
{
    if (events->count < CRASH_EVENTS)
        events->list[events->count++] = (struct event){kind, rank, index, element};
}

// The links of a generation may stand before a rank goes on in it.
static bool header_can(const struct crash_rank *rank)
{
    return rank->header_generations[0].number <= rank->promise.ballot.number;
}

static void rank_events(const struct crash_world *world, uint32_t r, struct events *events)
{
    const struct crash_rank *rank = &world->ranks[r];
    if (rank->up.count > 0)
        add(events, EVENT_UP, r, 0, 0);
    if (!crash_lives(rank))
        return;
    if (crash_trainer_can(world, r))
        add(events, EVENT_TRAINER, r, 0, 0);
    if (rank->down.count > 0)
        add(events, EVENT_DOWN, r, 0, 0);
    for (uint32_t i = 0; i < rank->late.count; i++)
        add(events, EVENT_LATE, r, i, 0);
    if (rank->header_count > 0 && header_can(rank))
        add(events, EVENT_HEADER, r, 0, 0);
    for (enum wave_kind kind = WAVE_CLOSE; kind < WAVE_KINDS; kind++)
        if (crash_wave_can(world, r, kind))
            add(events, EVENT_WAVE, r, kind, 0);
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++)
        for (uint32_t e = 0; e < CRASH_ELEMENTS; e++)
            if (crash_final_can(world, r, slot, e))
                add(events, EVENT_FINAL, r, slot, e);
}

static void list_events(const struct crash_world *world, struct events *events)
{
    events->count = 0;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        rank_events(world, r, events);
    if (crash_core_can_prepare(world))
        add(events, EVENT_PREPARE, 0, 0, 0);
}

// A header of an earlier generation is dropped (R8).
static void header_happens(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    const struct step_header header = rank->headers[0];
    const struct generation_id generation = rank->header_generations[0];
    rank->header_count--;
    memmove(rank->headers, rank->headers + 1, rank->header_count * sizeof(rank->headers[0]));
    memmove(rank->header_generations, rank->header_generations + 1,
            rank->header_count * sizeof(rank->header_generations[0]));
    if (generation.number == rank->promise.ballot.number)
        order_header_received(&rank->order, &header);
}

static void down_happens(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    struct crash_message message;
    crash_pop(&rank->down, 0, &message);
    const bool ballot = message.kind == CRASH_PREPARE || message.kind == CRASH_DECISION;
    if (ballot && crash_draw(world, 3) == 0)
        crash_push(world, &rank->late, &message);
    crash_rank_hears(world, r, &message);
}

static void event_happens(struct crash_world *world, const struct event *event)
{
    struct crash_rank *rank = &world->ranks[event->rank];
    struct crash_message message;
    world->acts = event->rank;
    switch (event->kind) {
    case EVENT_TRAINER:
        crash_trainer_acts(world, event->rank);
        break;
    case EVENT_UP:
        crash_pop(&rank->up, 0, &message);
        crash_core_hears(world, event->rank, &message);
        break;
    case EVENT_DOWN:
        down_happens(world, event->rank);
        break;
    case EVENT_LATE:
        crash_pop(&rank->late, event->index, &message);
        crash_rank_hears(world, event->rank, &message);
        break;
    case EVENT_HEADER:
        header_happens(world, event->rank);
        break;
    case EVENT_WAVE:
        crash_wave_completes(world, event->rank, (enum wave_kind)event->index);
        break;
    case EVENT_FINAL:
        crash_final_happens(world, event->rank, event->index, event->element);
        break;
    case EVENT_PREPARE:
        crash_core_prepares(world);
        break;
    }
}

static void say_event(const struct crash_world *world, const struct event *event)
{
    static const char *const names[] = {"trainer", "is heard", "hears",    "hears a late copy",
                                        "header",  "wave",     "is final", "PREPARE"};
    crash_say(world, "[%u] rank %u: %s %u.%u", world->events, event->rank, names[event->kind],
              event->index, event->element);
}

static void kill_at(struct crash_world *world)
{
    for (uint32_t k = 0; k < 2; k++) {
        struct crash_rank *victim = &world->ranks[world->config.victim[k]];
        if (world->config.kill_at[k] != world->events || !crash_lives(victim))
            continue;
        crash_say(world, "rank %u dies", world->config.victim[k]);
        victim->mode = CRASH_DEAD;
    }
}

bool crash_run(struct crash_world *world, const struct crash_config *config)
{
    const bool prints = world->prints;
    struct events events;
    memset(world, 0, sizeof(*world));
    world->prints = prints;
    world->config = *config;
    world->random = config->seed;
    draw_programs(world);
    crash_core_begin(world);
    for (uint32_t r = 0; r < config->ranks; r++)
        crash_rank_begin(world, r);
    for (list_events(world, &events); events.count > 0; list_events(world, &events)) {
        const struct event *event = &events.list[crash_draw(world, events.count)];
        say_event(world, event);
        event_happens(world, event);
        world->events++;
        kill_at(world);
        crash_check_event(world);
        if (world->fault[0] != '\0')
            return false;
        if (world->events > 20000) {
            crash_fault(world, "the world does not end");
            return false;
        }
    }
    crash_check_end(world);
    return world->fault[0] == '\0';
}
