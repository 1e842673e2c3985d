// SPDX-License-Identifier: Apache-2.0
//
// A rank of a world whose ranks die: its trainer, its part of the data plane, and what it hears;
// see crash.h.

#include "tests/sim/crash.h"

#include "protos/topology.h"
#include "worker/order/header.h"
#include "worker/order/payloads.h"
#include "worker/order/plan.h"
#include "worker/order/waits.h"

#include <stdio.h>
#include <string.h>

bool crash_lives(const struct crash_rank *rank)
{
    return rank->mode != CRASH_LEFT && rank->mode != CRASH_DEAD && rank->mode != CRASH_OUT;
}

static struct crash_generation *generation_of(struct crash_world *world, uint32_t r)
{
    return &world->generations[world->ranks[r].order.generation.number];
}

// Returns the number, in generation 1, of a rank of a generation.
static uint32_t rank_at(uint32_t members, uint32_t rank)
{
    uint32_t r = 0;
    for (; r < CRASH_RANKS; r++)
        if (crash_in(members, r) && rank-- == 0)
            break;
    return r;
}

static uint32_t place_of(uint32_t members, uint32_t r)
{
    return (uint32_t)__builtin_popcount(members & ((1u << r) - 1));
}

// ---- The stash ---------------------------------------------------------------------------------

static void run_put_off(struct crash_world *world, uint32_t r, const struct slot_id *id)
{
    struct crash_rank *rank = &world->ranks[r];
    struct crash_run *run = crash_run_of(rank, id);
    if (run->put_off || run->decided)
        crash_fault(world, "rank %u defers gradients that it has deferred or given", r);
    run->put_off = true;
    rank->stash[id->module][id->bucket] |= run->own;
    world->put_off++;
}

// The first bucket of a step that becomes ready carries what was deferred before.
static void run_takes(struct crash_world *world, uint32_t r, const struct slot_id *id)
{
    struct crash_rank *rank = &world->ranks[r];
    struct crash_run *run = crash_run_of(rank, id);
    uint32_t *stash = &rank->stash[id->module][id->bucket];
    if (run->put_off || run->decided)
        return;
    run->decided = true;
    run->carries = run->own;
    if (rank->taken[id->module][id->bucket] || *stash == 0)
        return;
    run->carries |= *stash;
    rank->taken[id->module][id->bucket] = true;
    *stash = 0;
    world->carried++;
}

// ---- What the order core decides ---------------------------------------------------------------

static void rank_launches(struct crash_world *world, uint32_t r, const struct order_action *action)
{
    struct crash_rank *rank = &world->ranks[r];
    struct crash_slot *slot = &rank->slots[action->index];
    struct crash_data *data = &generation_of(world, r)->slots[action->step][action->index];
    crash_say(world, "    rank %u launches position %u%s%s", r, action->index,
              action->slot->zero ? ", zeros" : "", action->kind == ORDER_REDO ? ", again" : "");
    if (slot->launched)
        crash_fault(world, "rank %u launches position %u twice", r, action->index);
    for (uint32_t e = 0; action->kind == ORDER_LAUNCH && e < CRASH_ELEMENTS; e++)
        if (slot->elements[e].final)
            crash_fault(world, "R1: rank %u launches position %u, whose input is gone", r,
                        action->index);
    slot->launched = true;
    slot->repeated = action->kind == ORDER_REDO;
    data->launched |= 1u << r;
    if (action->slot->zero)
        return;
    run_takes(world, r, &action->slot->id);
    data->gave |= crash_tokens(crash_run_of(rank, &action->slot->id)->carries, r);
}

static void rank_says_header(struct crash_world *world, uint32_t r,
                             const struct step_header *header)
{
    const struct order *order = &world->ranks[r].order;
    const uint32_t successor = rank_at(generation_of(world, r)->members,
                                       topology_successor(order->rank, order->world_size));
    struct crash_rank *to = &world->ranks[successor];
    if (!crash_lives(to))
        return;
    if (to->header_count == CRASH_HEADERS) {
        crash_fault(world, "rank %u has too many headers before it", successor);
        return;
    }
    to->header_generations[to->header_count] = order->generation;
    to->headers[to->header_count++] = *header;
}

static void rank_joins(struct crash_world *world, uint32_t r, enum wave_kind kind, uint64_t step)
{
    struct crash_wave *wave = &world->ranks[r].waves[kind];
    static const char *const names[] = {"close", "commit", "open"};
    crash_say(world, "    rank %u joins the %s wave of step %u", r, names[kind], (unsigned)step);
    *wave = (struct crash_wave){.joined = true, .step = step};
    generation_of(world, r)->joined[kind][step] |= 1u << r;
}

static void rank_settles(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    crash_say(world, "    rank %u settles step %u", r, (unsigned)rank->step);
    crash_check_settled(world, r);
    memset(rank->slots, 0, sizeof(rank->slots));
    memset(rank->read, 0, sizeof(rank->read));
    memset(rank->runs, 0, sizeof(rank->runs));
    memset(rank->taken, 0, sizeof(rank->taken));
    rank->mode = rank->step == CRASH_STEPS ? CRASH_DONE : CRASH_BETWEEN;
}

static void rank_says(struct crash_world *world, uint32_t r, const struct up_message *up)
{
    struct crash_message message = {.kind = CRASH_UP, .generation = up->generation, .up = up->kind};
    if (up->kind == UP_READY) {
        message.step = up->u.ready.step;
        message.phase = up->u.ready.phase;
        message.slot = up->u.ready.slot;
        message.granted = up->u.ready.granted;
        message.grants = up->u.ready.grants;
        message.unmade = up->u.ready.unmade;
    } else if (up->kind == UP_WAIT) {
        message.step = up->u.wait.step;
        message.phase = up->u.wait.phase;
        message.slot = up->u.wait.slot;
    } else if (up->kind == UP_END) {
        message.step = up->u.end.step;
        message.phase = up->u.end.phase;
        message.holds = up->u.end.plan;
    }
    crash_push(world, &world->ranks[r].up, &message);
}

static void rank_acts(void *context, const struct order_action *action)
{
    struct crash_world *world = context;
    const uint32_t r = world->acts;
    struct crash_rank *rank = &world->ranks[r];
    if (!crash_lives(rank))
        return;
    if (world->actions++ == world->config.kill_action) {
        crash_say(world, "    rank %u dies within the event", r);
        rank->mode = CRASH_DEAD;
        return;
    }
    // What is deferred concerns no other rank.
    const bool own = action->kind == ORDER_DEFER ||
                     (action->kind == ORDER_RELEASE && action->release == RELEASE_DEFERRED);
    if (rank->promise.frozen && action->kind != ORDER_SETTLED && action->kind != ORDER_FAILED &&
        !own)
        crash_fault(world, "R3: rank %u does something while it is frozen: %d", r,
                    (int)action->kind);
    switch (action->kind) {
    case ORDER_SEND:
        rank_says(world, r, action->up);
        break;
    case ORDER_OPEN:
        generation_of(world, r)->openings[action->step][r] = *action->opening;
        rank_joins(world, r, WAVE_OPEN, action->step);
        break;
    case ORDER_HEADER:
        rank_says_header(world, r, action->header);
        break;
    case ORDER_LAUNCH:
    case ORDER_REDO:
        rank_launches(world, r, action);
        break;
    case ORDER_CLOSE:
        generation_of(world, r)->closes[action->step][r] = *action->close;
        rank_joins(world, r, WAVE_CLOSE, action->step);
        break;
    case ORDER_COMMIT:
        crash_check_commit(world, r);
        rank_joins(world, r, WAVE_COMMIT, action->step);
        break;
    case ORDER_SETTLED:
        rank_settles(world, r);
        break;
    case ORDER_FAILED:
        crash_fault(world, "rank %u fails: %s", r, action->text ? action->text : "unplanned calls");
        break;
    case ORDER_RELEASE:
        crash_check_wait(world, r, action);
        rank->mode = CRASH_BACKWARD;
        break;
    case ORDER_DEFER:
        run_put_off(world, r, action->deferred);
        break;
    case ORDER_IMPOSSIBLE:
        crash_fault(world, "rank %u decides something unexpected: %d %s", r, (int)action->kind,
                    action->text ? action->text : "");
        break;
    }
}

// ---- The data plane ----------------------------------------------------------------------------

static bool rank_runs(const struct crash_rank *rank)
{
    return crash_lives(rank) && !rank->promise.frozen;
}

bool crash_wave_can(const struct crash_world *world, uint32_t r, enum wave_kind kind)
{
    const struct crash_rank *rank = &world->ranks[r];
    const struct crash_wave *wave = &rank->waves[kind];
    const struct crash_generation *generation = &world->generations[rank->order.generation.number];
    return rank_runs(rank) && wave->joined && !wave->heard &&
           generation->joined[kind][wave->step] == generation->members;
}

static void trainer_begins(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    uint32_t buckets[LOCKSTEP_MAX_MODULES] = {0};
    for (uint32_t m = 0; m < CRASH_MODULES; m++)
        buckets[m] = crash_bucket_count(m);
    rank->step++;
    rank->made = 0;
    rank->waited = true;
    rank->mode = CRASH_BACKWARD;
    order_step_begun(&rank->order, rank->step, rank->program.phase[rank->step], buckets);
}

// The rank has the result of the open wave. world_size: of the generation of the wave.
static void trainer_opened(struct crash_world *world, uint32_t r, const struct open_wave *result,
                           uint32_t world_size)
{
    struct crash_rank *rank = &world->ranks[r];
    if (result->exhausted < world_size)
        return; // An event of its own begins the step.
    rank->mode = rank->epoch++ == 0 ? CRASH_FINISHED : CRASH_DONE;
}

void crash_wave_completes(struct crash_world *world, uint32_t r, enum wave_kind kind)
{
    struct crash_rank *rank = &world->ranks[r];
    struct crash_wave *wave = &rank->waves[kind];
    const struct crash_generation *generation = generation_of(world, r);
    const uint32_t first = rank_at(generation->members, 0);
    wave->heard = true;
    if (kind == WAVE_OPEN) {
        struct open_wave result = generation->openings[wave->step][first];
        for (uint32_t q = first + 1; q < CRASH_RANKS; q++)
            if (crash_in(generation->members, q))
                order_open_merge(&result, &generation->openings[wave->step][q]);
        order_open_completed(&rank->order, &result);
        trainer_opened(world, r, &result, rank->order.world_size);
    } else if (kind == WAVE_CLOSE) {
        struct close_wave result = generation->closes[wave->step][first];
        for (uint32_t q = first + 1; q < CRASH_RANKS; q++)
            if (crash_in(generation->members, q))
                order_close_merge(&result, &generation->closes[wave->step][q]);
        rank->closed = result;
        order_close_completed(&rank->order, &result);
    } else {
        order_commit_completed(&rank->order);
    }
}

static bool slot_final(const struct crash_slot *slot)
{
    bool final = true;
    for (uint32_t e = 0; e < CRASH_ELEMENTS; e++)
        final = final && slot->elements[e].final;
    return final;
}

// A rank that has all elements of a repeated slot is done when it has passed them on.
bool crash_final_can(const struct crash_world *world, uint32_t r, uint32_t slot, uint32_t element)
{
    const struct crash_rank *rank = &world->ranks[r];
    const struct crash_slot *at = &rank->slots[slot];
    const struct crash_generation *generation = &world->generations[rank->order.generation.number];
    const struct crash_decision *decision = &world->decisions[rank->order.generation.number];
    if (!rank_runs(rank) || !at->launched)
        return false;
    if (at->elements[element].final)
        return element == 0 && slot_final(at);
    const uint32_t launched = generation->slots[rank->step][slot].launched;
    if (at->repeated && decision->rows[slot][element] == ROW_HAVE)
        return crash_in(launched, decision->owners[slot][element]);
    return launched == generation->members;
}

void crash_final_happens(struct crash_world *world, uint32_t r, uint32_t slot, uint32_t element)
{
    struct crash_rank *rank = &world->ranks[r];
    struct crash_slot *at = &rank->slots[slot];
    const struct crash_decision *decision = &world->decisions[rank->order.generation.number];
    if (!at->elements[element].final) {
        at->elements[element].final = true;
        at->elements[element].value = generation_of(world, r)->slots[rank->step][slot].gave;
        if (at->repeated && decision->rows[slot][element] == ROW_HAVE)
            at->elements[element].value = decision->values[slot][element];
    }
    if (!slot_final(at))
        return;
    at->launched = false;
    order_slot_final(&rank->order, slot);
}

static void rank_reports(struct crash_world *world, uint32_t r, enum crash_message_kind kind)
{
    struct crash_rank *rank = &world->ranks[r];
    struct crash_message message = {.kind = kind, .report = {.ballot = rank->promise.ballot}};
    order_report(&rank->order, &message.report.facts);
    memcpy(message.report.slots, rank->slots, sizeof(rank->slots));
    message.report.opened = rank->order.recovery.result;
    message.report.closed = rank->order.verdict;
    crash_push(world, &rank->up, &message);
}

// ---- The trainer -------------------------------------------------------------------------------

bool crash_trainer_can(const struct crash_world *world, uint32_t r)
{
    const struct crash_rank *rank = &world->ranks[r];
    switch (rank->mode) {
    case CRASH_BETWEEN:
    case CRASH_FINISHED:
    case CRASH_BACKWARD:
        return true;
    case CRASH_OPENING:
        return rank->order.recovery.opened;
    case CRASH_DONE:
        return rank->program.leaves;
    case CRASH_WAITING:
    case CRASH_ENDING:
    case CRASH_LEFT:
    case CRASH_DEAD:
    case CRASH_OUT:
        break;
    }
    return false;
}

// A wait for a call outside the plan is an error, unless such a call is deferred.
static bool rank_may_wait(const struct crash_world *world, uint32_t r)
{
    const struct crash_rank *rank = &world->ranks[r];
    const struct crash_call *call = &rank->program.calls[rank->step][rank->made - 1];
    const struct call_id id = {.module = call->module, .call = call->call};
    return rank->order.learning || world->config.unplanned_defers ||
           order_call_end(&rank->order, &id) > 0;
}

static void trainer_makes(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    const struct crash_call *call = &rank->program.calls[rank->step][rank->made++];
    const uint32_t token = rank->tokens[call->module]++;
    if (token >= CRASH_TOKENS)
        crash_fault(world, "rank %u makes too many calls", r);
    for (uint32_t bucket = 0; bucket < crash_bucket_count(call->module); bucket++) {
        const struct slot_id id = {.module = call->module, .call = call->call, .bucket = bucket};
        crash_run_of(rank, &id)->own = 1u << token;
        order_slot_ready(&rank->order, id, DTYPE_FLOAT32, CRASH_ELEMENTS);
        run_takes(world, r, &id);
    }
    rank->waited = !world->config.waits || crash_draw(world, 3) == 0 || !rank_may_wait(world, r);
}

// The answer may come at once, and sets the mode again.
static void trainer_waits(struct crash_rank *rank)
{
    const struct crash_call *call = &rank->program.calls[rank->step][rank->made - 1];
    rank->waited = true;
    rank->mode = CRASH_WAITING;
    order_wait_begun(&rank->order, (struct call_id){.module = call->module, .call = call->call});
}

void crash_trainer_acts(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    if (rank->mode == CRASH_DONE) {
        rank_reports(world, r, CRASH_LEAVE);
        rank->mode = CRASH_LEFT;
    } else if (rank->mode == CRASH_FINISHED) {
        rank->mode = CRASH_BETWEEN;
        order_step_skipped(&rank->order, ++rank->step);
    } else if (rank->mode == CRASH_BETWEEN && world->config.uneven) {
        struct open_wave opening = {.exhausted = rank->step >= rank->program.data[rank->epoch],
                                    .first = rank->order.rank};
        if (opening.exhausted != 0)
            opening.first = OPEN_NOBODY;
        rank->mode = CRASH_OPENING;
        order_step_opening(&rank->order, rank->step + 1, &opening);
    } else if (rank->mode != CRASH_BACKWARD) {
        trainer_begins(world, r);
    } else if (!rank->waited) {
        trainer_waits(rank);
    } else if (rank->made < rank->program.count[rank->step]) {
        trainer_makes(world, r);
    } else {
        rank->mode = CRASH_ENDING;
        order_step_ended(&rank->order);
    }
}

// ---- Recovery ----------------------------------------------------------------------------------

static void rank_prepares(struct crash_world *world, uint32_t r,
                          const struct crash_message *message)
{
    struct crash_rank *rank = &world->ranks[r];
    const uint64_t before = rank->promise.ballot.number;
    switch (promise_prepare(&rank->promise, message->ballot)) {
    case PROMISE_FREEZE:
        if (message->ballot.number <= before)
            crash_fault(world, "R5: rank %u answers ballot %u after ballot %u", r,
                        (unsigned)message->ballot.number, (unsigned)before);
        crash_say(world, "    rank %u freezes", r);
        order_freeze(&rank->order);
        rank_reports(world, r, CRASH_REPORT);
        break;
    case PROMISE_REPORT:
        rank_reports(world, r, CRASH_REPORT);
        break;
    case PROMISE_REFUSE:
    case PROMISE_SILENCE:
        break;
    }
}

// What the engine does when a decision comes into force.
static void rank_goes_on(struct crash_world *world, uint32_t r, const struct crash_message *message)
{
    struct crash_rank *rank = &world->ranks[r];
    const struct generation_id promised = rank->promise.ballot;
    const struct crash_decision *decision = &world->decisions[message->ballot.number];
    const uint32_t world_size = rank->order.world_size;
    const bool waits = rank->mode == CRASH_OPENING && !rank->order.recovery.opened;
    if (!promise_decided(&rank->promise, message->ballot))
        return;
    if (message->ballot.number != promised.number)
        crash_fault(world, "R5: rank %u obeys decision %u, and promised %u", r,
                    (unsigned)message->ballot.number, (unsigned)promised.number);
    const struct order_decision order_decision = {
        .generation = decision->ballot,
        .rank = place_of(decision->members, r),
        .world_size = (uint32_t)__builtin_popcount(decision->members),
        .settled = decision->settled,
        .skipped = decision->skipped,
        .opened = decision->has_opened ? &decision->opened : NULL,
        .closed = decision->has_closed ? &decision->closed : NULL,
        .redo = decision->redo};
    crash_say(world, "    rank %u goes on in generation %u", r, (unsigned)message->ballot.number);
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++)
        rank->slots[slot].launched = rank->slots[slot].repeated = false;
    memset(rank->waves, 0, sizeof(rank->waves));
    order_recover(&rank->order, &order_decision);
    if (waits && rank->order.recovery.opened && crash_lives(rank))
        trainer_opened(world, r, &decision->opened, world_size);
}

static void rank_hears_plan(struct crash_world *world, uint32_t r,
                            const struct crash_message *message)
{
    struct crash_rank *rank = &world->ranks[r];
    static struct down_plan_part part;
    part = (struct down_plan_part){.number = rank->order.plans.number + 1,
                                   .phase = message->phase,
                                   .step = message->step,
                                   .closes_step = true,
                                   .last = true,
                                   .hash = UINT64_C(0x5851f42d4c957f2d) * (message->step + 1),
                                   .slot_count = message->plan_count,
                                   .slot_total = message->plan_count};
    for (uint32_t i = 0; i < part.slot_count; i++)
        part.slots[i] = (struct plan_slot){.id = message->plan[i], .algorithm = ALGORITHM_BY_SIZE};
    order_plan_received(&rank->order, &part);
}

void crash_rank_hears(struct crash_world *world, uint32_t r, const struct crash_message *message)
{
    struct crash_rank *rank = &world->ranks[r];
    struct down_grant grant = {
        .step = message->step, .slot = message->slot, .forced = message->forced};
    switch (message->kind) {
    case CRASH_GRANT:
        if (rank->order.step != message->step)
            crash_fault(world, "rank %u is granted a slot of a step that it has not begun", r);
        order_granted(&rank->order, &grant);
        break;
    case CRASH_PLAN:
        rank_hears_plan(world, r, message);
        break;
    case CRASH_PREPARE:
        rank_prepares(world, r, message);
        break;
    case CRASH_DECISION:
        rank_goes_on(world, r, message);
        break;
    case CRASH_EXCLUDED:
        if (promise_excluded(&rank->promise, message->ballot))
            rank->mode = CRASH_OUT;
        break;
    case CRASH_UP:
    case CRASH_REPORT:
    case CRASH_LEAVE:
        crash_fault(world, "rank %u hears what ranks say", r);
        break;
    }
}

void crash_rank_begin(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    const struct generation_id generation = world->generations[1].id;
    const struct order_options options = {
        .window = 2,
        .zero_defer = world->config.defers,
        .unplanned = world->config.unplanned_defers ? UNPLANNED_DEFER : UNPLANNED_EXTEND};
    order_init(&rank->order, generation, r, world->config.ranks, &options,
               (struct order_sink){rank_acts, world});
    promise_init(&rank->promise, generation);
    world->acts = r;
    order_start_begun(&rank->order);
}
