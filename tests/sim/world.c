// SPDX-License-Identifier: Apache-2.0
//
// What can happen in a small world, and what it does: trainers, streams, headers, waves, slots; see
// world.h. Invariants are in world_check.c.
//
// What worker/engine.c decides about the end of streams and links is repeated here, as in
// sim_engine.c: who is reported, and what becomes of a rank that needs a coordinator and has none.

#include "tests/sim/world.h"

#include "coordinator/core.h"
#include "protos/topology.h"

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

static uint64_t phase_of(char letter)
{
    return UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(unsigned char)letter;
}

static bool in_set(uint32_t set, uint32_t rank)
{
    return (set >> rank & 1) != 0;
}

// The trainer and the engine of this rank go on.
static bool lives(const struct world_rank *rank)
{
    return rank->mode == MODE_RUNS || rank->mode == MODE_ENDS;
}

static void say(const struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(const struct world *world, const char *format, ...)
{
    char line[2 * WORLD_TEXT];
    va_list arguments;
    if (world->say == NULL)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    world->say(world->context, line);
}

// ---- The end of a rank -------------------------------------------------------------------------

static void rank_fails(struct world *world, uint32_t r, enum halt_kind halt, const char *text)
{
    struct world_rank *rank = &world->state.ranks[r];
    if (!lives(rank))
        return;
    if (text == NULL) // The verdict of the close wave.
        text = "calls outside the plan";
    say(world, "    rank %" PRIu32 " fails: %s", r, text);
    rank->mode = MODE_FAILED;
    rank->halt = (uint8_t)halt;
    rank->halt_text = hash_bytes(HASH_START, text, strlen(text));
    // Nobody looks at what is still on its way to it.
    rank->down_count = rank->header_count = 0;
    memset(rank->down, 0, sizeof(rank->down));
    memset(rank->headers, 0, sizeof(rank->headers));
}

// ---- Control streams ---------------------------------------------------------------------------

static void stream_up(struct world *world, uint32_t r, const struct up_message *message)
{
    struct world_rank *rank = &world->state.ranks[r];
    char text[WORLD_TEXT];
    if (!lives(rank))
        return;
    world_check_said(world, r, message);
    world_up_text(message, text, sizeof(text));
    say(world, "    rank %" PRIu32 " says: %s", r, text);
    if (rank->cut_known) {
        rank_fails(world, r, HALT_NONE, "the coordinator is gone and is needed here");
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

static void channel_pop(uint32_t *numbers, uint8_t *count)
{
    memmove(numbers, numbers + 1, (*count - 1u) * sizeof(numbers[0]));
    numbers[--*count] = 0;
}

static void stream_down(struct world *world, uint32_t r, const struct down_message *message)
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
    if (action->kind == ACTION_LOG)
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
        say(world, "    the coordinator tells rank %" PRIu32 ": %s", r, text);
        if (lives(rank) && !rank->cut)
            stream_down(world, r, action->message);
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
        break;
    }
    world_fault(world, "the coordinator says something unexpected: kind %d",
                (int)action->message->kind);
}

static void core_happens(struct world *world, const struct coordinator_event *event)
{
    coordinator_step(world->core, event, 1, (struct coordinator_sink){core_action, world});
}

static void core_hears(struct world *world, uint32_t r, const struct up_message *message)
{
    core_happens(world, &(struct coordinator_event){
                            .kind = EVENT_MESSAGE, .peer = peer_of(r), .message = message});
}

// ---- What the order core decides ---------------------------------------------------------------

static struct world_made *made_find(struct world_rank *rank, const struct slot_id *id)
{
    for (uint32_t i = rank->made_count; i-- > 0;) {
        struct world_made *made = &rank->made[i];
        if (made->step == rank->step && made->module == id->module && made->call == id->call &&
            made->bucket == id->bucket)
            return made;
    }
    return NULL;
}

// What travels by this slot, itself and what was put off before, goes from one place to another.
static void made_move(struct world_rank *rank, const struct slot_id *id, enum made_where from,
                      enum made_where to)
{
    const struct world_made *carrier = made_find(rank, id);
    for (uint32_t i = 0; carrier != NULL && i < rank->made_count; i++)
        if (rank->made[i].carrier == carrier - rank->made && rank->made[i].where == from)
            rank->made[i].where = (uint8_t)to;
}

static void order_launches(struct world *world, uint32_t r, const struct order_action *action)
{
    struct world_rank *rank = &world->state.ranks[r];
    const struct order_slot *slot = action->slot;
    say(world, "    rank %" PRIu32 " launches %c%" PRIu32 ".%" PRIu32 "%s", r,
        (char)('A' + slot->id.module), slot->id.call, slot->id.bucket, slot->zero ? ", zeros" : "");
    world_check_launch(world, r, action);
    if (world->fault[0] != '\0')
        return;
    struct world_launch *launch = &rank->launches[rank->launch_count++];
    memset(launch, 0, sizeof(*launch));
    launch->space = action->space;
    launch->module = (uint8_t)slot->id.module;
    launch->call = (uint8_t)slot->id.call;
    launch->bucket = (uint8_t)slot->id.bucket;
    launch->index = (uint8_t)action->index;
    launch->data = !slot->zero;
    if (launch->data)
        made_move(rank, &slot->id, MADE_READY, MADE_LAUNCHED);
}

static void order_says_header(struct world *world, uint32_t r, const struct step_header *header)
{
    const uint32_t successor = topology_successor(r, world->config.ranks);
    struct world_rank *rank = &world->state.ranks[successor];
    if (!lives(rank))
        return;
    if (rank->header_count == WORLD_HEADERS) {
        world_fault(world, "rank %" PRIu32 " has too many headers before it", successor);
        return;
    }
    struct step_header *kept = &rank->headers[rank->header_count++];
    memset(kept, 0, sizeof(*kept));
    kept->step = header->step;
    kept->phase = header->phase;
    kept->plan_number = header->plan_number;
    kept->plan_hash = header->plan_hash;
    kept->starts = header->starts;
    kept->opening = header->opening;
}

static void order_releases(struct world *world, uint32_t r, const struct order_action *action)
{
    struct world_rank *rank = &world->state.ranks[r];
    for (uint32_t t = 0; t < WORLD_THREADS; t++) {
        struct world_thread *thread = &rank->threads[t];
        const struct world_op *op = &world->program.rows[r][rank->step].threads[t].ops[thread->at];
        if (!thread->waits || op->module != action->call.module || op->call != action->call.call)
            continue;
        say(world, "    rank %" PRIu32 " has waited for %c%d%s", r, 'A' + op->module, op->call,
            action->release == RELEASE_FINAL      ? ""
            : action->release == RELEASE_DEFERRED ? ", which counts later"
                                                  : " long enough");
        world_check_release(world, r, action);
        thread->waits = thread->withdrawn = false;
        thread->at++;
        return;
    }
    world_fault(world, "rank %" PRIu32 " releases a thread that does not wait", r);
}

static void order_settles(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    world_check_settled(world, r);
    rank->settled++;
    rank->step++;
    rank->begun = false;
    rank->launched_before = (uint8_t)(rank->launched_before + rank->launch_count);
    rank->launch_count = 0;
    memset(rank->launches, 0, sizeof(rank->launches));
    memset(rank->threads, 0, sizeof(rank->threads));
    rank->mode = rank->step == world->program.steps ? MODE_DONE : MODE_RUNS;
    if (rank->mode == MODE_DONE) {
        rank->down_count = 0;
        memset(rank->down, 0, sizeof(rank->down));
    }
}

static void order_acts(void *context, const struct order_action *action)
{
    struct world *world = context;
    const uint32_t r = world->acts;
    struct world_rank *rank = &world->state.ranks[r];
    if (!lives(rank))
        return;
    switch (action->kind) {
    case ORDER_SEND:
        stream_up(world, r, action->up);
        break;
    case ORDER_HEADER:
        order_says_header(world, r, action->header);
        break;
    case ORDER_LAUNCH:
        order_launches(world, r, action);
        break;
    case ORDER_DEFER:
        say(world, "    rank %" PRIu32 " puts off %c%" PRIu32 ".%" PRIu32, r,
            (char)('A' + action->deferred->module), action->deferred->call,
            action->deferred->bucket);
        made_move(rank, action->deferred, MADE_READY, MADE_STASHED);
        break;
    case ORDER_RELEASE:
        order_releases(world, r, action);
        break;
    case ORDER_CLOSE:
        rank->close_joined = (uint8_t)action->step;
        rank->close = *action->close;
        break;
    case ORDER_COMMIT:
        rank->commit_joined = (uint8_t)action->step;
        break;
    case ORDER_SETTLED:
        order_settles(world, r);
        break;
    case ORDER_FAILED:
        rank_fails(world, r, action->halt, action->text);
        break;
    case ORDER_OPEN:
        world_fault(world, "rank %" PRIu32 " joins an open wave", r);
        break;
    }
}

// ---- The trainer -------------------------------------------------------------------------------

static const struct world_part *part_of(const struct world *world, uint32_t r, uint32_t t)
{
    return &world->program.rows[r][world->state.ranks[r].step].threads[t];
}

// A thread that can take its next step.
static bool trainer_can(const struct world *world, uint32_t r, uint32_t t)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const struct world_thread *thread = &rank->threads[t];
    if (rank->mode != MODE_RUNS || thread->waits)
        return false;
    const struct world_part *part = part_of(world, r, t);
    if (!rank->begun || thread->at == part->count)
        return !rank->begun && t == 0;
    if (part->ops[thread->at].kind != OP_END)
        return true;
    for (uint32_t other = 1; other < WORLD_THREADS; other++)
        if (rank->threads[other].at < part_of(world, r, other)->count)
            return false;
    return true;
}

static void trainer_begin(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    uint32_t buckets[LOCKSTEP_MAX_MODULES] = {0};
    for (uint32_t module = 0; module < WORLD_MODULES; module++)
        buckets[module] = world_buckets(&world->config, module);
    rank->begun = true;
    order_step_begun(&world->orders[r], rank->step + 1u,
                     phase_of(world->program.rows[r][rank->step].phase), buckets);
}

static void trainer_make(struct world *world, uint32_t r, const struct world_op *op)
{
    struct world_rank *rank = &world->state.ranks[r];
    const struct slot_id id = {.module = op->module, .call = op->call, .bucket = op->bucket};
    if (rank->made_count == WORLD_MADE) {
        world_fault(world, "rank %" PRIu32 " makes more than a world can follow", r);
        return;
    }
    struct world_made *made = &rank->made[rank->made_count];
    made->step = rank->step;
    made->module = op->module;
    made->call = op->call;
    made->bucket = op->bucket;
    made->where = MADE_READY;
    made->carrier = rank->made_count;
    for (uint32_t i = 0; i < rank->made_count; i++) {
        struct world_made *kept = &rank->made[i];
        if (kept->where != MADE_STASHED || kept->module != op->module || kept->bucket != op->bucket)
            continue;
        kept->where = MADE_READY;
        kept->carrier = rank->made_count;
    }
    rank->made_count++;
    order_slot_ready(&world->orders[r], id, DTYPE_FLOAT32, 10u + op->module);
}

static void trainer_layouts(struct world *world, uint32_t r)
{
    for (uint32_t module = 0; module < WORLD_MODULES; module++) {
        const uint32_t buckets = world_buckets(&world->config, module);
        struct up_message message = {.kind = UP_LAYOUT_PART,
                                     .generation = world->orders[r].generation};
        struct layout_part *part = &message.u.layout_part;
        part->module = module;
        part->words[part->count++] = buckets;
        for (uint32_t i = 1; i <= buckets; i++)
            part->words[part->count++] = i;
        for (uint32_t i = 0; i < buckets; i++)
            part->words[part->count++] = i;
        part->total = part->count;
        stream_up(world, r, &message);
    }
}

static void trainer_end(struct world *world, uint32_t r)
{
    world->state.ranks[r].mode = MODE_ENDS;
    if (r == 0 && world->orders[r].learning)
        trainer_layouts(world, r);
    if (lives(&world->state.ranks[r]))
        order_step_ended(&world->orders[r]);
}

static void trainer_does(struct world *world, uint32_t r, uint32_t t)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct order *order = &world->orders[r];
    struct world_thread *thread = &rank->threads[t];
    const struct world_op *op = &part_of(world, r, t)->ops[thread->at];
    const struct call_id call = {.module = op->module, .call = op->call};
    if (op->kind == OP_WAIT || op->kind == OP_TRY)
        thread->waits = true; // It goes on when it is released.
    else
        thread->at++;
    switch (op->kind) {
    case OP_BEGIN:
        trainer_begin(world, r);
        break;
    case OP_OPEN:
        if (world->config.wait_while_open)
            order_call_begun(order, call);
        break;
    case OP_MAKE:
        trainer_make(world, r, op);
        break;
    case OP_CLOSE:
        if (world->config.wait_while_open)
            order_call_ended(order, call);
        break;
    case OP_WAIT:
    case OP_TRY:
        order_wait_begun(order, call);
        break;
    case OP_END:
        trainer_end(world, r);
        break;
    }
}

// A call is begun together with its first bucket, unless the program begins it by itself, and ended
// with its last one: nothing is told to anybody between.
static void trainer_steps(struct world *world, uint32_t r, uint32_t t)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const struct world_part *part = part_of(world, r, t);
    const uint8_t step = rank->step;
    bool opens;
    do {
        opens = part->ops[rank->threads[t].at].kind == OP_OPEN;
        trainer_does(world, r, t);
        if (rank->mode != MODE_RUNS || rank->step != step || rank->threads[t].waits)
            return;
    } while ((opens && part->ops[rank->threads[t].at].kind == OP_MAKE) ||
             part->ops[rank->threads[t].at].kind == OP_CLOSE);
}

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

// Whether the slot can complete: all ranks have launched it, and on strict ranks what was launched
// before it can complete, too.
static bool slot_can_end(const struct world *world, const struct world_launch *launch, uint8_t step,
                         uint32_t depth)
{
    if (depth > WORLD_SLOTS)
        return false;
    for (uint32_t q = 0; q < world->config.ranks; q++) {
        const struct world_launch *first = world->state.ranks[q].launches;
        const struct world_launch *other = launch_like(world, q, launch, step);
        if (other == NULL)
            return false;
        if (in_set(world->config.strict, q) && other > first && !other[-1].final &&
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
    if (in_set(world->config.strict, r) && index > 0 && !rank->launches[index - 1].final)
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
        made_move(rank, &id, MADE_LAUNCHED, MADE_RESULT);
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
        channel_pop(rank->up, &rank->up_count);
        core_hears(world, r, message);
    } while (layout && rank->up_count > 0);
}

static void down_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct order *order = &world->orders[r];
    const struct down_message *message = world_down(world, rank->down[0]);
    channel_pop(rank->down, &rank->down_count);
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
    part->phase = phase_of(phase);
    replaced = order_plan_of(&world->orders[0], part->phase);
    part->replaces = replaced == NULL ? 0 : replaced->number;
    part->hash = UINT64_C(0x5851f42d4c957f2d) * (part->number + 1);
    part->slot_total = part->slot_count;
    part->last = true;
    part->strict = world->config.strict != 0;
    for (uint32_t i = 0; i < part->slot_count; i++)
        part->slots[i] = (struct plan_slot){.id = slots[i], .algorithm = ALGORITHM_BY_SIZE};
    world->state.published = true;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        if (lives(&world->state.ranks[r]))
            stream_down(world, r, &message);
}

// ---- Disasters ---------------------------------------------------------------------------------

static bool strike_can(const struct world *world)
{
    return world->config.disaster != DISASTER_NONE && !world->state.struck &&
           lives(&world->state.ranks[world->config.victim]);
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

// The finding of a rank that nobody can tell more.
static void find_oneself(struct world *world, uint32_t r)
{
    struct down_halt halt = {.kind = HALT_LOST, .has_rank = true};
    halt.rank = world->state.ranks[r].lost_rank;
    snprintf(halt.text, sizeof(halt.text), "rank %" PRIu32 " was lost", halt.rank);
    order_halted(&world->orders[r], &halt);
}

// What was still on its way up is lost.
static void cut_heard_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    rank->cut_heard = true;
    rank->up_count = 0;
    memset(rank->up, 0, sizeof(rank->up));
    core_happens(world, &(struct coordinator_event){
                            .kind = EVENT_CLOSED, .peer = peer_of(r), .text = "reset"});
}

static void cut_known_happens(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct order *order = &world->orders[r];
    rank->cut_known = true;
    rank->down_count = 0;
    memset(rank->down, 0, sizeof(rank->down));
    order_coordinator_lost(order);
    if (rank->reported)
        find_oneself(world, r);
    else if (order->open && order->learning)
        rank_fails(world, r, HALT_NONE, "the coordinator was lost while the order was learned");
}

// Links end with a process. When a session fails they do, too; that matters to a rank that hears
// no verdict.
static bool peer_lost_can(const struct world *world, uint32_t r, uint32_t peer)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const uint8_t mode = world->state.ranks[peer].mode;
    if (!lives(rank) || peer == r || in_set(rank->lost_seen, peer))
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
    stream_up(world, r, &message);
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
           part_of(world, r, t)->ops[thread->at].kind == OP_TRY;
}

static void rank_events(const struct world *world, uint32_t r, struct event_list *list)
{
    const struct world_rank *rank = &world->state.ranks[r];
    event_add(list, rank->up_count > 0 && !rank->cut_heard, EVENT_UP, r, 0);
    event_add(list, rank->cut && !rank->cut_heard, EVENT_CUT_HEARD, r, 0);
    if (!lives(rank))
        return;
    for (uint32_t t = 0; t < WORLD_THREADS; t++) {
        event_add(list, trainer_can(world, r, t), EVENT_TRAINER, r, t);
        event_add(list, timeout_can(world, r, t), EVENT_TIMEOUT, r, t);
    }
    event_add(list, rank->down_count > 0, EVENT_DOWN, r, 0);
    event_add(list, rank->header_count > 0, EVENT_HEADER, r, 0);
    for (uint32_t i = 0; i < rank->launch_count; i++)
        event_add(list, final_can(world, r, i), EVENT_FINAL, r, i);
    event_add(list, close_can(world, r), EVENT_CLOSE_WAVE, r, 0);
    event_add(list, commit_can(world, r), EVENT_COMMIT_WAVE, r, 0);
    event_add(list, rank->cut && !rank->cut_known, EVENT_CUT_KNOWN, r, 0);
    for (uint32_t peer = 0; peer < world->config.ranks; peer++)
        event_add(list, peer_lost_can(world, r, peer), EVENT_PEER_LOST, r, peer);
}

uint32_t world_events(const struct world *world, struct world_event events[WORLD_EVENTS])
{
    struct event_list list = {.events = events};
    for (uint32_t r = 0; r < world->config.ranks; r++)
        rank_events(world, r, &list);
    if (list.count > 0) // When all is over there is nothing to be published or to be struck.
        event_add(&list, world->config.publish != NULL && !world->state.published, EVENT_PUBLISH, 0,
                  0);
    event_add(&list, list.count > 0 && strike_can(world), EVENT_STRIKE, world->config.victim, 0);
    return list.count;
}

static void event_happens(struct world *world, const struct world_event *event)
{
    const uint32_t r = event->rank;
    switch ((enum world_event_kind)event->kind) {
    case EVENT_TRAINER:
        trainer_steps(world, r, event->index);
        break;
    case EVENT_TIMEOUT: {
        const struct world_thread *thread = &world->state.ranks[r].threads[event->index];
        const struct world_op *op = &part_of(world, r, event->index)->ops[thread->at];
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
        strike_happens(world);
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
    if (world->say != NULL) {
        world_event_text(world, event, text);
        say(world, "%s", text);
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
    const struct world_op *op = &part_of(world, r, t)->ops[world->state.ranks[r].threads[t].at];
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

// ---- The beginning -----------------------------------------------------------------------------

static void begin_rank(struct world *world, uint32_t r)
{
    const struct order_options options = {
        .window = world->config.window,
        .zero_defer = world->config.zero_defer,
        .unplanned = world->config.unplanned,
        .strict = in_set(world->config.strict, r),
        .wait_while_open = world->config.wait_while_open,
        .threads = world->config.threads,
    };
    const struct generation_id generation = {.number = 1, .incarnation = 7};
    order_init(&world->orders[r], generation, r, world->config.ranks, &options,
               (struct order_sink){order_acts, world});
    order_start_begun(&world->orders[r]);
}

static void begin_hello(struct world *world, uint32_t r)
{
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *hello = &message.u.hello;
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    snprintf(hello->job, sizeof(hello->job), "small");
    snprintf(hello->host, sizeof(hello->host), "h%" PRIu32, r);
    snprintf(hello->host_id, sizeof(hello->host_id), "h%" PRIu32, r);
    snprintf(hello->address, sizeof(hello->address), "small:%" PRIu32, r);
    hello->uuid.bytes[0] = (uint8_t)(r + 1);
    hello->world_min = hello->world_max = world->config.ranks;
    hello->has_rank_hint = true;
    hello->rank_hint = r;
    core_hears(world, r, &message);
}

static void begin_start(struct world *world, uint32_t r)
{
    struct up_message message = {.kind = UP_START, .generation = world->orders[r].generation};
    message.u.start.item_count = 1;
    message.u.start.zero_defer = world->config.zero_defer;
    message.u.start.strict = (world->config.strict >> r & 1) != 0;
    core_hears(world, r, &message);
}

// Of what can happen while plans are learned: first what no trainer does, then the trainer that is
// furthest behind. So grants come in the order of the plan.
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
    if (memory == NULL)
        memory = malloc(coordinator_bytes());
    if (memory == NULL)
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
