// SPDX-License-Identifier: Apache-2.0
//
// Invariants of a small world, after every event and at its end. Numbers are those of the order
// protocol, section 7.
//
//   1   orders are prefixes of one another; strict ranks launch the same slot as their k-th
//   2   after step_end no planned slot is unready
//   3   the lowest slot that is not final is launched as soon as it is ready
//   4   no slot is launched before its step is the present one and all before it are settled
//   5   nobody is more than 2W - 1 positions ahead of another's lowest slot
//   7   what a survivor made is in one result or in its stash
//   8   all ranks end a step alike, or fail by one verdict
//   9   a step that is settled anywhere is final everywhere
//   10  nothing is said in a planned step without waits and deviations
//   R5  zeros are launched for what was given up, or after step_end
//   R9  a wait is over when all of its slots are final, or put off
//   R12 who fails in a step has settled the one before

#include "coordinator/verdict.h"
#include "tests/sim/world_inside.h"

#include "coordinator/core.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void world_fault(struct world *world, const char *format, ...)
{
    va_list arguments;
    if (world->fault[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(world->fault, sizeof(world->fault), format, arguments);
    va_end(arguments);
}

static bool same_slot(const struct slot_id *a, const struct slot_id *b)
{
    return a->module == b->module && a->call == b->call && a->bucket == b->bucket;
}

// ---- At a launch -------------------------------------------------------------------------------

// The k-th launch of every strict rank is of one slot.
static void check_pairing(struct world *world, uint32_t r, const struct order_action *action)
{
    const struct slot_id *id = &action->slot->id;
    const struct world_rank *rank = &world->state.ranks[r];
    const uint32_t number = rank->launched_before + (uint32_t)rank->launch_count;
    for (uint32_t q = 0; q < world->config.ranks; q++) {
        const struct world_rank *other = &world->state.ranks[q];
        if (q == r || (world->config.strict >> r & 1) == 0 ||
            (world->config.strict >> q & 1) == 0 ||
            number >= other->launched_before + (uint32_t)other->launch_count)
            continue;
        if (number < other->launched_before) {
            world_fault(world, "rank %" PRIu32 " launches what rank %" PRIu32 " is past", r, q);
            return;
        }
        const struct world_launch *pair = &other->launches[number - other->launched_before];
        if (pair->space != action->space || pair->module != id->module || pair->call != id->call ||
            pair->bucket != id->bucket)
            world_fault(world,
                        "cross-pairing: launch %" PRIu32 " is %c%" PRIu32 ".%" PRIu32
                        " on rank %" PRIu32 " and %c%d.%d on rank %" PRIu32,
                        number, (char)('A' + id->module), id->call, id->bucket, r,
                        'A' + pair->module, pair->call, pair->bucket, q);
    }
}

static bool made_ready(const struct world_rank *rank, const struct slot_id *id)
{
    for (uint32_t i = 0; i < rank->made_count; i++) {
        const struct world_made *made = &rank->made[i];
        if (made->step == rank->step && made->module == id->module && made->call == id->call &&
            made->bucket == id->bucket)
            return made->where == MADE_READY;
    }
    return false;
}

void world_check_launch(struct world *world, uint32_t r, const struct order_action *action)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const struct slot_id *id = &action->slot->id;
    if (rank->launch_count == WORLD_SLOTS)
        world_fault(world, "rank %" PRIu32 " launches more than a world can follow", r);
    if (id->module >= WORLD_MODULES || id->call >= WORLD_CALLS || id->bucket >= WORLD_BUCKETS ||
        id->bucket >= world_buckets(&world->config, id->module))
        world_fault(world, "rank %" PRIu32 " launches a slot that is none", r);
    if (!rank->begun || action->step != rank->step + 1u || rank->settled != rank->step)
        world_fault(world, "rank %" PRIu32 " launches a slot of another step", r);
    for (uint32_t i = 0; i < rank->launch_count; i++)
        if (rank->launches[i].index == action->index)
            world_fault(world, "rank %" PRIu32 " launches position %" PRIu32 " twice", r,
                        action->index);
    if (!action->slot->zero && !made_ready(rank, id))
        world_fault(world, "rank %" PRIu32 " launches what it has not made", r);
    if (action->slot->zero && rank->mode != MODE_ENDS && !action->slot->forfeited)
        world_fault(world, "rank %" PRIu32 " launches zeros for a call that may still come", r);
    check_pairing(world, r, action);
}

// ---- At a release ------------------------------------------------------------------------------

static bool launch_final(const struct world_rank *rank, const struct slot_id *id)
{
    for (uint32_t i = 0; i < rank->launch_count; i++) {
        const struct world_launch *launch = &rank->launches[i];
        if (launch->module == id->module && launch->call == id->call &&
            launch->bucket == id->bucket)
            return launch->final;
    }
    return false;
}

void world_check_release(struct world *world, uint32_t r, const struct order_action *action)
{
    const struct world_rank *rank = &world->state.ranks[r];
    bool stashed = false;
    if (action->release == RELEASE_WITHDRAWN)
        return;
    for (uint32_t i = 0; i < rank->made_count; i++) {
        const struct world_made *made = &rank->made[i];
        const struct slot_id id = {made->module, made->call, made->bucket};
        if (made->step != rank->step || made->module != action->call.module ||
            made->call != action->call.call)
            continue;
        stashed = stashed || made->where == MADE_STASHED;
        if (made->where != MADE_STASHED && !launch_final(rank, &id))
            world_fault(world, "rank %" PRIu32 " is released, and %c%d.%d is not final", r,
                        'A' + made->module, made->call, made->bucket);
    }
    if (stashed != (action->release == RELEASE_DEFERRED))
        world_fault(world, "rank %" PRIu32 " is told of its call what is not so", r);
}

// ---- When a step has settled, and what is said -------------------------------------------------

void world_check_settled(struct world *world, uint32_t r)
{
    const struct world_rank *rank = &world->state.ranks[r];
    for (uint32_t q = 0; q < world->config.ranks; q++) {
        const struct world_rank *other = &world->state.ranks[q];
        if (other->settled > rank->settled)
            continue;
        if (world->orders[q].phase != world->orders[r].phase)
            world_fault(world,
                        "rank %" PRIu32 " settles a step, and rank %" PRIu32 " is in another phase",
                        r, q);
        if (other->mode == MODE_FAILED && other->halt != HALT_LOST && other->halt != HALT_NONE)
            world_fault(world, "rank %" PRIu32 " settles the step in which rank %" PRIu32 " failed",
                        r, q);
        if (other->settled < rank->settled || !other->begun ||
            other->commit_joined != rank->step + 1)
            world_fault(world,
                        "rank %" PRIu32 " settles a step that rank %" PRIu32 " is not through", r,
                        q);
        for (uint32_t i = 0; i < other->launch_count; i++)
            if (!other->launches[i].final)
                world_fault(world,
                            "rank %" PRIu32 " settles a step, and on rank %" PRIu32
                            " a slot is not final",
                            r, q);
        if (other->launch_count != rank->launch_count)
            world_fault(world, "ranks %" PRIu32 " and %" PRIu32 " settle a step with other slots",
                        r, q);
    }
}

void world_check_said(struct world *world, uint32_t r, const struct up_message *message)
{
    const struct world_rank *rank = &world->state.ranks[r];
    if (message->kind == UP_LOST || world->orders[r].learning || world->state.published ||
        world_step_waits(&world->program, world->config.ranks, rank->step) ||
        !world_step_conforms(&world->program, world->config.ranks, rank->step))
        return;
    world_fault(world, "rank %" PRIu32 " has something to say in a step as planned", r);
}

// ---- After every event -------------------------------------------------------------------------

static bool in_one_step(const struct world *world, uint32_t a, uint32_t b)
{
    const struct world_rank *left = &world->state.ranks[a];
    const struct world_rank *right = &world->state.ranks[b];
    return world_lives(left) && world_lives(right) && left->begun && right->begun &&
           left->step == right->step;
}

static void check_orders(struct world *world, uint32_t a, uint32_t b)
{
    const struct order *left = &world->orders[a];
    const struct order *right = &world->orders[b];
    if (!in_one_step(world, a, b) || left->phase != right->phase)
        return;
    if (left->space != right->space || left->learning != right->learning) {
        world_fault(world, "ranks %" PRIu32 " and %" PRIu32 " use different plans in one step", a,
                    b);
        return;
    }
    for (uint32_t i = 0; i < left->slot_count && i < right->slot_count; i++)
        if (!same_slot(&left->slots[i].id, &right->slots[i].id))
            world_fault(world, "ranks %" PRIu32 " and %" PRIu32 " have other orders at %" PRIu32, a,
                        b, i);
}

// Launched slots of b that a would have to keep.
static void check_ahead(struct world *world, uint32_t a, uint32_t b)
{
    const uint32_t low = world->orders[a].low;
    const struct world_rank *other = &world->state.ranks[b];
    if (!in_one_step(world, a, b) || world->orders[b].strict)
        return;
    for (uint32_t i = 0; i < other->launch_count; i++)
        if (other->launches[i].index >= low + 2 * world->config.window)
            world_fault(world, "rank %" PRIu32 " is too far ahead of rank %" PRIu32, b, a);
}

static void check_rank(struct world *world, uint32_t r)
{
    const struct order *order = &world->orders[r];
    const struct world_rank *rank = &world->state.ranks[r];
    if (!world_lives(rank) || !rank->begun)
        return;
    for (uint32_t i = order->low; i < order->slot_count && rank->mode == MODE_ENDS; i++)
        if (order->slots[i].state == SLOT_UNREADY)
            world_fault(world, "rank %" PRIu32 " has ended its step, and a slot is unready", r);
    if (order->low >= order->slot_count)
        return;
    const enum slot_state lowest = order->slots[order->low].state;
    if ((lowest == SLOT_READY || lowest == SLOT_ZERO) && (!order->strict || order->header_equal))
        world_fault(world, "rank %" PRIu32 " does not launch its lowest slot", r);
}

void world_check(struct world *world)
{
    for (uint32_t a = 0; a < world->config.ranks; a++) {
        check_rank(world, a);
        for (uint32_t b = 0; b < world->config.ranks; b++) {
            if (a == b)
                continue;
            check_orders(world, a, b);
            check_ahead(world, a, b);
        }
    }
}

// ---- The end -----------------------------------------------------------------------------------

static const char *const mode_names[] = {"runs", "in step_end", "done", "failed", "dead"};

void world_describe(const struct world *world, char *text, size_t bytes)
{
    size_t used = 0;
    for (uint32_t r = 0; r < world->config.ranks && used < bytes; r++) {
        const struct world_rank *rank = &world->state.ranks[r];
        const struct order *order = &world->orders[r];
        used += (size_t)snprintf(
            text + used, bytes - used,
            "%srank %" PRIu32 " %s%s, step %d, %" PRIu32 " of %" PRIu32 " slots final%s%s%s%s%s",
            r == 0 ? "" : "; ", r, mode_names[rank->mode],
            rank->threads[0].waits || rank->threads[1].waits ? " and waits" : "",
            (int)rank->step - (int)world->program.plans, order->low, order->slot_count,
            order->learning ? ", learns" : "", order->header_equal ? "" : ", no header",
            order->close_joined ? ", in close" : "", order->closed ? ", closed" : "",
            order->commit_joined ? ", in commit" : "");
    }
}

static bool is_victim(const struct world *world, uint32_t r)
{
    return world->config.disaster != DISASTER_NONE && world->config.disaster != DISASTER_RESTART &&
           world->config.victim == r;
}

// With n threads a rank counts as blocked when n wait; while fewer do, another one may still act,
// for all that the cores know, and nobody is told of a deadlock.
static bool end_stalls(const struct world *world)
{
    bool stalls = false;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct world_rank *rank = &world->state.ranks[r];
        uint32_t waiting = 0;
        for (uint32_t t = 0; t < WORLD_THREADS; t++)
            waiting += rank->threads[t].waits;
        stalls = stalls || (rank->mode == MODE_RUNS && waiting < world->config.threads);
    }
    return stalls;
}

// Whether each rank has an end, and one that goes with those of the others.
static bool end_fits(struct world *world, const struct world_rank **failed)
{
    char where[2 * WORLD_TEXT];
    uint32_t done = 0;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct world_rank *rank = &world->state.ranks[r];
        if (rank->mode == MODE_RUNS || rank->mode == MODE_ENDS) {
            world_describe(world, where, sizeof(where));
            world_fault(world, "nothing can happen any more: %s", where);
            return false;
        }
        if (is_victim(world, r) && world->state.struck)
            continue;
        done += rank->mode == MODE_DONE;
        if (rank->mode != MODE_FAILED)
            continue;
        if (!*failed)
            *failed = rank;
        if ((*failed)->halt != rank->halt || (*failed)->halt_text != rank->halt_text)
            world_fault(world, "ranks fail for different reasons");
        if (rank->halt != HALT_LOST && (*failed)->settled != rank->settled)
            world_fault(world, "ranks fail in different steps");
    }
    if (*failed && (*failed)->halt != HALT_LOST && done > 0)
        world_fault(world, "a rank is done, and another fails");
    return world->fault[0] == '\0';
}

static const char *halt_name(uint8_t halt)
{
    return verdict_kind_name((enum halt_kind)halt);
}

static bool end_failed(struct world *world, const struct world_rank *failed, char *text,
                       size_t bytes)
{
    const bool genuine = failed->halt == HALT_ORDER || failed->halt == HALT_PHASE ||
                         failed->halt == HALT_UNPLANNED ||
                         (failed->halt == HALT_LOST && world->state.struck &&
                          world->config.disaster != DISASTER_RESTART);
    if (!genuine)
        world_fault(world, "a verdict that no program deserves: %s", halt_name(failed->halt));
    snprintf(text, bytes, "error %d %s", (int)failed->settled - (int)world->program.plans,
             halt_name(failed->halt));
    return genuine;
}

struct writer {
    char *text;
    size_t bytes;
    size_t used;
};

static void write(struct writer *writer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void write(struct writer *writer, const char *format, ...)
{
    va_list arguments;
    if (writer->used >= writer->bytes)
        return;
    va_start(arguments, format);
    writer->used += (size_t)vsnprintf(writer->text + writer->used, writer->bytes - writer->used,
                                      format, arguments);
    va_end(arguments);
}

static void write_slot(struct writer *writer, const struct world *world, int step, uint32_t module,
                       uint32_t call, uint32_t bucket)
{
    write(writer, "%d%c%" PRIu32, step, (char)('A' + module), call);
    if (world_buckets(&world->config, module) > 1)
        write(writer, ".%" PRIu32, bucket);
}

// The contributions of all ranks that are in the result of this slot, or, without a slot, in a
// stash.
static void write_contents(struct writer *writer, const struct world *world,
                           const struct world_made *slot)
{
    bool first = true;
    write(writer, "{");
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct world_rank *rank = &world->state.ranks[r];
        for (uint32_t i = 0; i < rank->made_count; i++) {
            const struct world_made *made = &rank->made[i];
            const struct world_made *by = &rank->made[made->carrier];
            const bool here = !slot ? made->where == MADE_STASHED
                                    : made->where == MADE_RESULT && by->step == slot->step &&
                                          by->module == slot->module && by->call == slot->call &&
                                          by->bucket == slot->bucket;
            if (!here)
                continue;
            write(writer, "%s%" PRIu32 ":", first ? "" : ",", r);
            write_slot(writer, world, made->step - (int)world->program.plans, made->module,
                       made->call, made->bucket);
            first = false;
        }
    }
    write(writer, "}");
}

static void end_done(struct world *world, char *text, size_t bytes)
{
    struct writer writer = {text, bytes, 0};
    const uint32_t slots = WORLD_MODULES * WORLD_CALLS * WORLD_BUCKETS;
    write(&writer, "ok");
    for (uint32_t step = world->program.plans; step < world->program.steps; step++) {
        for (uint32_t i = 0; i < slots; i++) {
            const uint32_t module = i / WORLD_BUCKETS / WORLD_CALLS;
            const uint32_t call = i / WORLD_BUCKETS % WORLD_CALLS;
            const struct world_made slot = {
                (uint8_t)step, (uint8_t)module, (uint8_t)call, (uint8_t)(i % WORLD_BUCKETS), 0, 0};
            if ((world->state.slots[step][module][call] >> slot.bucket & 1) == 0)
                continue;
            write(&writer, " ");
            write_slot(&writer, world, (int)(step - world->program.plans), module, call,
                       slot.bucket);
            write(&writer, "=");
            write_contents(&writer, world, &slot);
        }
    }
    write(&writer, " stash=");
    write_contents(&writer, world, NULL);
    for (uint32_t r = 0; r < world->config.ranks; r++)
        for (uint32_t i = 0; i < world->state.ranks[r].made_count; i++)
            if (world->state.ranks[r].made[i].where < MADE_RESULT && !is_victim(world, r))
                world_fault(world, "what rank %" PRIu32 " made of %c%d.%d is lost", r,
                            'A' + world->state.ranks[r].made[i].module,
                            world->state.ranks[r].made[i].call,
                            world->state.ranks[r].made[i].bucket);
}

bool world_outcome(struct world *world, char *text, size_t bytes)
{
    const struct world_rank *failed = NULL;
    snprintf(text, bytes, "stall");
    if (world->fault[0] != '\0')
        return false;
    if (end_stalls(world))
        return true;
    if (!end_fits(world, &failed))
        return false;
    if (failed)
        return end_failed(world, failed, text, bytes);
    end_done(world, text, bytes);
    return world->fault[0] == '\0';
}
