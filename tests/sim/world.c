// SPDX-License-Identifier: Apache-2.0
//
// The events of a small world and their effects: slots, waves, headers, arrivals, disasters; see
// world.h. Trainers are in world_rank.c, the coordinator is in world_core.c, invariants are in
// world_check.c.
//
// This file repeats what worker/engine/tell.c decides about the end of streams and links, as
// sim_engine.c does: which rank is reported, and how a rank ends that needs a coordinator and has
// none.

#include "tests/sim/world_inside.h"
#include "worker/order/header.h"
#include "worker/order/parts.h"
#include "worker/order/payloads.h"
#include "worker/order/plan.h"
#include "worker/order/recover.h"
#include "worker/order/waits.h"

#include "coordinator/core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Slots -------------------------------------------------------------------------------------

// The same slot of the same step on another rank; NULL: it has not launched it.
static const struct world_launch *launch_like(const struct world *world, uint32_t r,
                                              const struct world_launch *launch, uint8_t step)
{
    const struct world_rank *rank = &world->state.ranks[r];
    for (uint32_t i = 0; rank->step == step && i < rank->launch_count; i++) {
        const struct world_launch *other = &rank->launches[i];
        if (other->space == launch->space && other->module == launch->module &&
            other->call == launch->call && other->bucket == launch->bucket)
            return other;
    }
    return NULL;
}

// True if the slot can complete: all ranks have launched it, and on strict ranks all earlier
// launches can complete, too.
static bool slot_can_end(const struct world *world, const struct world_launch *launch, uint8_t step,
                         uint32_t depth)
{
    if (depth > WORLD_SLOTS)
        return false;
    for (uint32_t q = 0; q < world->config.ranks; q++) {
        const struct world_launch *first = world->state.ranks[q].launches;
        const struct world_launch *other = launch_like(world, q, launch, step);
        if (!other)
            return false;
        if (world_in_set(world->config.strict, q) && other > first && !other[-1].final &&
            !slot_can_end(world, other - 1, step, depth + 1))
            return false;
    }
    return true;
}

static bool final_can(const struct world *world, uint32_t r, uint32_t index)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const struct world_launch *launch = &rank->launches[index];
    if (launch->final)
        return false;
    if (world_in_set(world->config.strict, r) && index > 0 && !rank->launches[index - 1].final)
        return false;
    return slot_can_end(world, launch, rank->step, 0);
}

static void final_happens(struct world *world, uint32_t r, uint32_t index)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct world_launch *launch = &rank->launches[index];
    const struct slot_id id = {
        .module = launch->module, .call = launch->call, .bucket = launch->bucket};
    launch->final = true;
    world->state.slots[rank->step][id.module][id.call] |= (uint8_t)(1u << id.bucket);
    if (launch->data)
        world_made_move(rank, &id, MADE_LAUNCHED, MADE_RESULT);
    order_slot_final(&world->orders[r], launch->index);
}

// ---- Waves and headers -------------------------------------------------------------------------

static bool close_can(const struct world *world, uint32_t r)
{
    const struct world_rank *rank = &world->state.ranks[r];
    for (uint32_t q = 0; q < world->config.ranks; q++)
        if (world->state.ranks[q].close_joined != rank->close_joined)
            return false;
    return rank->close_heard < rank->close_joined;
}

static void close_happens(struct world *world, uint32_t r)
{
    struct close_wave result = world->state.ranks[0].close;
    for (uint32_t q = 1; q < world->config.ranks; q++)
        order_close_merge(&result, &world->state.ranks[q].close);
    world->state.ranks[r].close_heard = world->state.ranks[r].close_joined;
    order_close_completed(&world->orders[r], &result);
}

static bool commit_can(const struct world *world, uint32_t r)
{
    const struct world_rank *rank = &world->state.ranks[r];
    for (uint32_t q = 0; q < world->config.ranks; q++)
        if (world->state.ranks[q].commit_joined < rank->commit_joined)
            return false;
    return rank->commit_heard < rank->commit_joined;
}

static void commit_happens(struct world *world, uint32_t r)
{
    world->state.ranks[r].commit_heard = world->state.ranks[r].commit_joined;
    order_commit_completed(&world->orders[r]);
}

static void header_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    const struct step_header header = rank->headers[0];
    memmove(rank->headers, rank->headers + 1, (rank->header_count - 1u) * sizeof(rank->headers[0]));
    memset(&rank->headers[--rank->header_count], 0, sizeof(rank->headers[0]));
    order_header_received(&world->orders[r], &header);
}

// ---- Messages arrive ---------------------------------------------------------------------------

// Layouts go with what follows them: they decide nothing by themselves.
static void up_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    bool layout;
    do {
        const struct up_message *message = world_up(world, rank->up[0]);
        layout = message->kind == UP_LAYOUT_PART;
        world_channel_pop(rank->up, &rank->up_count);
        world_core_hears(world, r, message);
    } while (layout && rank->up_count > 0);
}

static void down_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct order *order = &world->orders[r];
    const struct down_message *message = world_down(world, rank->down[0]);
    world_channel_pop(rank->down, &rank->down_count);
    switch (message->kind) {
    case DOWN_GRANT:
        order_granted(order, &message->u.grant);
        break;
    case DOWN_PLAN_PART:
        order_plan_received(order, &message->u.plan_part);
        break;
    case DOWN_HALT:
        order_halted(order, &message->u.halt);
        break;
    case DOWN_QUERY:
        order_queried(order, &message->u.query);
        break;
    case DOWN_NONE:
    case DOWN_WELCOME:
    case DOWN_REFUSED:
    case DOWN_GENERATION:
    case DOWN_VERIFIED:
    case DOWN_MANIFEST_REQUEST:
    case DOWN_LAYOUT_PART:
    case DOWN_TUNING:
    case DOWN_INSPECT:
    case DOWN_PREPARE:
    case DOWN_RECORD_PART:
    case DOWN_DECISION:
    case DOWN_EXCLUDED:
    case DOWN_ADDRESSES:
        break;
    }
}

static void publish_happens(struct world *world)
{
    struct learning *learning = &world->core->jobs[0].learning;
    struct down_message message = {.kind = DOWN_PLAN_PART,
                                   .generation = world->orders[0].generation};
    struct down_plan_part *part = &message.u.plan_part;
    const struct order_plan *replaced;
    struct slot_id slots[WORLD_SLOTS];
    char phase = 'p';
    world_plan_read(world->config.publish, &world->config, &phase, slots, &part->slot_count);
    part->number = ++learning->plan_number;
    part->phase = world_phase(phase);
    replaced = order_plan_of(&world->orders[0], part->phase);
    part->replaces = !replaced ? 0 : replaced->number;
    part->hash = UINT64_C(0x5851f42d4c957f2d) * (part->number + 1);
    part->slot_total = part->slot_count;
    part->last = true;
    part->strict = world->config.strict != 0;
    for (uint32_t i = 0; i < part->slot_count; i++)
        part->slots[i] = (struct plan_slot){.id = slots[i], .algorithm = ALGORITHM_BY_SIZE};
    world->state.published = true;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        if (world_lives(&world->state.ranks[r]))
            world_stream_down(world, r, &message);
}

// ---- Disasters ---------------------------------------------------------------------------------

static bool strike_can(const struct world *world)
{
    if (world->config.disaster == DISASTER_RESTART)
        return !world->state.struck;
    return world->config.disaster != DISASTER_NONE && !world->state.struck &&
           world_lives(&world->state.ranks[world->config.victim]);
}

// Messages that are on their way to the coordinator are lost. Those to a rank arrive, or are lost
// when the rank sees the end of its stream.
static void restart_happens(struct world *world)
{
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        struct world_rank *rank = &world->state.ranks[r];
        rank->up_count = 0;
        memset(rank->up, 0, sizeof(rank->up));
        rank->cut = world_lives(rank);
    }
    world->state.struck = true;
    world_core_restarts(world);
}

// As engine_control_stands in worker/engine/resume.c.
static void back_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct order *order = &world->orders[r];
    rank->cut = rank->cut_known = false;
    world_says_hello(world, r);
    if (order->open && order->learning) {
        order_learn_again(order);
        if (order->ended && r == 0)
            world_layouts(world, r);
        if (order->ended)
            order_send_end(order);
    }
    order_coordinator_back(order);
}

static void strike_happens(struct world *world)
{
    struct world_rank *rank = &world->state.ranks[world->config.victim];
    world->state.struck = true;
    rank->cut = true;
    if (world->config.disaster != DISASTER_DEATH)
        return;
    rank->mode = MODE_DEAD;
    rank->down_count = rank->header_count = 0;
    memset(rank->down, 0, sizeof(rank->down));
    memset(rank->headers, 0, sizeof(rank->headers));
}

// The verdict that a rank finds by itself, because no coordinator can send one.
static void find_oneself(struct world *world, uint32_t r)
{
    struct down_halt halt = {.kind = HALT_LOST, .has_rank = true};
    halt.rank = world->state.ranks[r].lost_rank;
    snprintf(halt.text, sizeof(halt.text), "rank %" PRIu32 " was lost", halt.rank);
    order_halted(&world->orders[r], &halt);
}

// Messages that were still on their way up are lost.
static void cut_heard_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    rank->cut_heard = true;
    rank->up_count = 0;
    memset(rank->up, 0, sizeof(rank->up));
    world_core_ended(world, r);
}

static void cut_known_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct order *order = &world->orders[r];
    rank->cut_known = true;
    rank->down_count = 0;
    memset(rank->down, 0, sizeof(rank->down));
    order_coordinator_lost(order);
    if (world->config.disaster == DISASTER_RESTART)
        return;
    if (rank->reported)
        find_oneself(world, r);
    else if (order->open && order->learning)
        world_rank_fails(world, r, HALT_NONE,
                         "the coordinator was lost while the order was learned");
}

// Links end with a process. When a session fails they do, too; that matters to a rank that hears
// no verdict.
static bool peer_lost_can(const struct world *world, uint32_t r, uint32_t peer)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const uint8_t mode = world->state.ranks[peer].mode;
    if (!world_lives(rank) || peer == r || world_in_set(rank->lost_seen, peer))
        return false;
    return mode == MODE_DEAD || (mode == MODE_FAILED && rank->cut);
}

static void peer_lost_happens(struct world *world, uint32_t r, uint32_t peer)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct up_message message = {.kind = UP_LOST, .generation = world->orders[r].generation};
    rank->lost_seen |= (uint8_t)(1u << peer);
    if (rank->reported || world->orders[r].failed)
        return;
    rank->reported = true;
    rank->lost_rank = (uint8_t)peer;
    if (rank->cut_known) {
        find_oneself(world, r);
        return;
    }
    message.u.lost.rank = peer;
    message.u.lost.step = order_present_step(&world->orders[r]);
    snprintf(message.u.lost.text, sizeof(message.u.lost.text), "connection reset by peer");
    world_stream_up(world, r, &message);
}

// ---- Events ------------------------------------------------------------------------------------

struct event_list {
    struct world_event *events;
    uint32_t count;
};

static void event_add(struct event_list *list, bool can, enum world_event_kind kind, uint32_t r,
                      uint32_t index)
{
    if (!can)
        return;
    if (list->count == WORLD_EVENTS)
        abort();
    list->events[list->count++] = (struct world_event){(uint8_t)kind, (uint8_t)r, (uint8_t)index};
}

static bool timeout_can(const struct world *world, uint32_t r, uint32_t t)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const struct world_thread *thread = &rank->threads[t];
    return rank->mode == MODE_RUNS && thread->waits && !thread->withdrawn &&
           world_part_of(world, r, t)->ops[thread->at].kind == OP_TRY;
}

static void rank_events(const struct world *world, uint32_t r, struct event_list *list)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const bool restarts = world->config.disaster == DISASTER_RESTART;
    event_add(list, rank->up_count > 0 && !rank->cut_heard, EVENT_UP, r, 0);
    event_add(list, rank->cut && !rank->cut_heard && !restarts, EVENT_CUT_HEARD, r, 0);
    if (!world_lives(rank))
        return;
    for (uint32_t t = 0; t < WORLD_THREADS; t++) {
        event_add(list, world_trainer_can(world, r, t), EVENT_TRAINER, r, t);
        event_add(list, timeout_can(world, r, t), EVENT_TIMEOUT, r, t);
    }
    event_add(list, rank->down_count > 0, EVENT_DOWN, r, 0);
    event_add(list, rank->header_count > 0, EVENT_HEADER, r, 0);
    for (uint32_t i = 0; i < rank->launch_count; i++)
        event_add(list, final_can(world, r, i), EVENT_FINAL, r, i);
    event_add(list, close_can(world, r), EVENT_CLOSE_WAVE, r, 0);
    event_add(list, commit_can(world, r), EVENT_COMMIT_WAVE, r, 0);
    event_add(list, rank->cut && !rank->cut_known, EVENT_CUT_KNOWN, r, 0);
    event_add(list, rank->cut_known && restarts, EVENT_BACK, r, 0);
    for (uint32_t peer = 0; peer < world->config.ranks; peer++)
        event_add(list, peer_lost_can(world, r, peer), EVENT_PEER_LOST, r, peer);
}

uint32_t world_events(const struct world *world, struct world_event events[WORLD_EVENTS])
{
    struct event_list list = {.events = events};
    for (uint32_t r = 0; r < world->config.ranks; r++)
        rank_events(world, r, &list);
    if (list.count > 0) // When all is over there is nothing to be published or to be struck.
        event_add(&list, world->config.publish && !world->state.published, EVENT_PUBLISH, 0, 0);
    event_add(&list, list.count > 0 && strike_can(world), EVENT_STRIKE, world->config.victim, 0);
    return list.count;
}

static void event_happens(struct world *world, const struct world_event *event)
{
    const uint32_t r = event->rank;
    switch ((enum world_event_kind)event->kind) {
    case EVENT_TRAINER:
        world_trainer_steps(world, r, event->index);
        break;
    case EVENT_TIMEOUT: {
        const struct world_thread *thread = &world->state.ranks[r].threads[event->index];
        const struct world_op *op = &world_part_of(world, r, event->index)->ops[thread->at];
        world->state.ranks[r].threads[event->index].withdrawn = true;
        order_wait_ended(&world->orders[r], (struct call_id){op->module, op->call});
        break;
    }
    case EVENT_UP:
        up_happens(world, r);
        break;
    case EVENT_DOWN:
        down_happens(world, r);
        break;
    case EVENT_HEADER:
        header_happens(world, r);
        break;
    case EVENT_FINAL:
        final_happens(world, r, event->index);
        break;
    case EVENT_CLOSE_WAVE:
        close_happens(world, r);
        break;
    case EVENT_COMMIT_WAVE:
        commit_happens(world, r);
        break;
    case EVENT_PUBLISH:
        publish_happens(world);
        break;
    case EVENT_STRIKE:
        if (world->config.disaster == DISASTER_RESTART)
            restart_happens(world);
        else
            strike_happens(world);
        break;
    case EVENT_BACK:
        back_happens(world, r);
        break;
    case EVENT_CUT_HEARD:
        cut_heard_happens(world, r);
        break;
    case EVENT_CUT_KNOWN:
        cut_known_happens(world, r);
        break;
    case EVENT_PEER_LOST:
        peer_lost_happens(world, r, event->index);
        break;
    }
}

void world_do(struct world *world, const struct world_event *event)
{
    char text[WORLD_TEXT];
    if (world->say) {
        world_event_text(world, event, text);
        world_say(world, "%s", text);
    }
    world->acts = event->rank;
    event_happens(world, event);
    if (world->fault[0] == '\0')
        world_check(world);
}

static void text_trainer(const struct world *world, uint32_t r, uint32_t t, char text[WORLD_TEXT])
{
    static const char *const verbs[] = {"step_begin", "begin",    "make",    "end",
                                        "wait for",   "wait for", "step_end"};
    const struct world_op *op =
        &world_part_of(world, r, t)->ops[world->state.ranks[r].threads[t].at];
    const int step = world->state.ranks[r].step - (int)world->program.plans;
    if (op->kind == OP_BEGIN || op->kind == OP_END)
        snprintf(text, WORLD_TEXT, "rank %" PRIu32 ": %s of step %d", r, verbs[op->kind], step);
    else
        snprintf(text, WORLD_TEXT, "rank %" PRIu32 ": %s %c%d.%d", r, verbs[op->kind],
                 'A' + op->module, op->call, op->bucket);
}

void world_event_text(const struct world *world, const struct world_event *event,
                      char text[WORLD_TEXT])
{
    static const char *const facts[] = {
        "",
        "the time of a wait is over",
        "",
        "",
        "the header of its predecessor arrives",
        "",
        "hears the result of the close wave",
        "hears the result of the commit wave",
        "the coordinator publishes a plan",
        "is struck",
        "the coordinator sees the end of its stream",
        "sees the end of its stream",
        "sees the end of a link",
        "comes back to another coordinator",
    };
    const uint32_t r = event->rank;
    const struct world_rank *rank = &world->state.ranks[r];
    const struct world_launch *launch = &rank->launches[event->index % WORLD_SLOTS];
    char said[WORLD_TEXT - 64];
    if (event->kind == EVENT_TRAINER) {
        text_trainer(world, r, event->index, text);
    } else if (event->kind == EVENT_UP) {
        world_up_text(world_up(world, rank->up[0]), said, sizeof(said));
        snprintf(text, WORLD_TEXT, "the coordinator hears rank %" PRIu32 ": %s", r, said);
    } else if (event->kind == EVENT_DOWN) {
        world_down_text(world_down(world, rank->down[0]), said, sizeof(said));
        snprintf(text, WORLD_TEXT, "rank %" PRIu32 " hears: %s", r, said);
    } else if (event->kind == EVENT_FINAL) {
        snprintf(text, WORLD_TEXT, "rank %" PRIu32 ": %c%d.%d is final", r, 'A' + launch->module,
                 launch->call, launch->bucket);
    } else {
        snprintf(text, WORLD_TEXT, "rank %" PRIu32 ": %s", r, facts[event->kind]);
    }
}
