// SPDX-License-Identifier: Apache-2.0
//
// What must hold in a world whose ranks die (crash.h). The rules are those of
// docs/internals/recovery.md.
//
//   R1  a slot is launched as an ordinary one only if its input is intact; no two ranks hold other
//       bits (both are checked where it happens)
//   R2  a rank joins the commit wave of a step when all its slots are final in its memory
//   R3  a frozen rank launches, joins and sends nothing
//   R5  a rank answers only ballots above its promise, and obeys only the decision of that ballot
//   R6  only a decision excludes: a rank that no decision removed runs to the end
//   R9  of two members one has settled at most one step more, and then nothing of the next step is
//       final
//   M10 a rank that has left is no part of a decision, and no step that it has settled is lost
//   wait a trainer goes on when all of its call is final in its memory, and what it reads then is
//       what the step ends with
//   end a step that is settled on two ranks has equal bits on both, and each element holds the
//       gradients of all ranks that settled it and gave some
//   once each call of a rank that ends well is in the result of one step, or in the rank's stash

#include "tests/sim/crash.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void crash_fault(struct crash_world *world, const char *format, ...)
{
    va_list arguments;
    if (world->fault[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(world->fault, sizeof(world->fault), format, arguments);
    va_end(arguments);
}

void crash_check_commit(struct crash_world *world, uint32_t r)
{
    const struct crash_rank *rank = &world->ranks[r];
    for (uint32_t slot = 0; slot < rank->order.slot_count; slot++) {
        if (rank->slots[slot].launched)
            crash_fault(world, "R2: rank %u joins the commit wave, and position %u is in flight", r,
                        slot);
        for (uint32_t e = 0; e < CRASH_ELEMENTS; e++)
            if (!rank->slots[slot].elements[e].final)
                crash_fault(world,
                            "R2: rank %u joins the commit wave, and position %u is not final", r,
                            slot);
    }
}

void crash_check_wait(struct crash_world *world, uint32_t r, const struct order_action *action)
{
    struct crash_rank *rank = &world->ranks[r];
    const bool deferred = world->config.defers && action->release == RELEASE_DEFERRED;
    if (rank->mode != CRASH_WAITING || (action->release != RELEASE_FINAL && !deferred))
        crash_fault(world, "rank %u goes on from a wait that is not over: %d", r,
                    (int)action->release);
    world->waits++;
    if (deferred)
        return;
    for (uint32_t slot = 0; slot < rank->order.slot_count; slot++) {
        const struct slot_id *id = &rank->order.slots[slot].id;
        if (id->module != action->call.module || id->call != action->call.call)
            continue;
        for (uint32_t e = 0; e < CRASH_ELEMENTS; e++) {
            if (!rank->slots[slot].elements[e].final)
                crash_fault(world, "rank %u reads position %u, which is not final", r, slot);
            rank->read[slot][e] = rank->slots[slot].elements[e].value;
        }
    }
}

void crash_check_settled(struct crash_world *world, uint32_t r)
{
    struct crash_rank *rank = &world->ranks[r];
    const uint64_t step = rank->step;
    const bool first = world->settled[step] == 0;
    if (first)
        world->slot_counts[step] = rank->order.slot_count;
    world->settled[step] |= 1u << r;
    if (world->slot_counts[step] != rank->order.slot_count)
        crash_fault(world, "rank %u settles step %u with other slots", r, (unsigned)step);
    for (uint32_t slot = 0; slot < rank->order.slot_count; slot++) {
        for (uint32_t e = 0; e < CRASH_ELEMENTS; e++) {
            const struct crash_element *element = &rank->slots[slot].elements[e];
            const struct slot_id *id = &rank->order.slots[slot].id;
            const uint64_t given = crash_tokens(crash_run_of(rank, id)->carries, r);
            uint64_t *value = &world->values[step][slot][e];
            if (!element->final)
                crash_fault(world, "rank %u settles step %u, and position %u is not final", r,
                            (unsigned)step, slot);
            if (first) {
                *value = element->value;
                world->slots[step][slot] = *id;
            }
            if (*value != element->value)
                crash_fault(world, "step %u, position %u: rank %u holds other bits", (unsigned)step,
                            slot, r);
            if (rank->read[slot][e] != 0 && rank->read[slot][e] != element->value)
                crash_fault(world, "step %u, position %u: rank %u has read other bits",
                            (unsigned)step, slot, r);
            if (!rank->order.slots[slot].zero && (element->value & given) != given)
                crash_fault(world, "step %u, position %u: the gradients of rank %u are missing",
                            (unsigned)step, slot, r);
        }
    }
}

void crash_check_decision(struct crash_world *world, uint32_t members, uint64_t settled)
{
    bool skipped = false;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        skipped = skipped || (crash_in(members, r) && world->core.reports[r].facts.skipped &&
                              world->core.reports[r].facts.settled == settled);
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct crash_report *report = &world->core.reports[r];
        if (!crash_in(members, r))
            continue;
        if (report->facts.settled + 1 < settled ||
            (report->facts.settled < settled && !report->facts.all_final && !skipped))
            crash_fault(world, "R9: rank %u has settled step %u, another rank step %u", r,
                        (unsigned)report->facts.settled, (unsigned)settled);
        if (report->facts.settled == settled)
            continue;
        for (uint32_t q = 0; q < world->config.ranks; q++)
            for (uint32_t slot = 0; slot < CRASH_SLOTS && crash_in(members, q); slot++)
                for (uint32_t e = 0; e < CRASH_ELEMENTS; e++)
                    if (world->core.reports[q].facts.settled == settled &&
                        world->core.reports[q].slots[slot].elements[e].final)
                        crash_fault(world,
                                    "R9: of step %u something is final, and rank %u has "
                                    "not settled the one before",
                                    (unsigned)settled + 1, r);
    }
}

static void check_rank(struct crash_world *world, uint32_t r)
{
    const struct crash_rank *rank = &world->ranks[r];
    if (rank->mode == CRASH_DEAD || rank->mode == CRASH_LEFT)
        return;
    if (rank->promise.excluded && !crash_in(world->core.removed, r))
        crash_fault(world, "R6: rank %u is excluded, and no decision has removed it", r);
    if (!rank->promise.excluded && rank->promise.frozen != rank->order.recovery.frozen)
        crash_fault(world, "rank %u is half frozen", r);
    if (!rank->promise.frozen && !rank->promise.excluded &&
        rank->promise.ballot.number != rank->order.generation.number)
        crash_fault(world, "R5: rank %u runs in generation %u, and promised ballot %u", r,
                    (unsigned)rank->order.generation.number, (unsigned)rank->promise.ballot.number);
}

void crash_check_event(struct crash_world *world)
{
    for (uint32_t r = 0; r < world->config.ranks; r++)
        check_rank(world, r);
}

// The results of the job that hold a rank's call of a module.
static uint32_t results_with(const struct crash_world *world, uint32_t r, const struct slot_id *id,
                             uint32_t token, uint32_t element)
{
    uint32_t count = 0;
    for (uint32_t step = 1; step <= CRASH_STEPS; step++)
        for (uint32_t slot = 0; slot < world->slot_counts[step]; slot++)
            count += world->slots[step][slot].module == id->module &&
                     world->slots[step][slot].bucket == id->bucket &&
                     (world->values[step][slot][element] & crash_tokens(1u << token, r)) != 0;
    return count;
}

static void check_once(struct crash_world *world, uint32_t r)
{
    const struct crash_rank *rank = &world->ranks[r];
    struct slot_id id = {.module = 0};
    for (; id.module < CRASH_MODULES; id.module++)
        for (id.bucket = 0; id.bucket < crash_bucket_count(id.module); id.bucket++)
            for (uint32_t token = 0; token < rank->tokens[id.module]; token++)
                for (uint32_t e = 0; e < CRASH_ELEMENTS; e++) {
                    const uint32_t kept = rank->stash[id.module][id.bucket] >> token & 1;
                    if (kept + results_with(world, r, &id, token, e) != 1)
                        crash_fault(world,
                                    "call %u of module %u of rank %u is in %u results, and %s "
                                    "its stash",
                                    token, id.module, r, results_with(world, r, &id, token, e),
                                    kept != 0 ? "in" : "not in");
                }
}

// Nothing can happen any more.
void crash_check_end(struct crash_world *world)
{
    static const char *const modes[] = {"between steps",
                                        "between epochs",
                                        "in the open wave",
                                        "in its backward pass",
                                        "in a wait",
                                        "in step_end",
                                        "done",
                                        "gone",
                                        "dead",
                                        "out"};
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct crash_rank *rank = &world->ranks[r];
        if (!crash_lives(rank))
            continue;
        if (rank->mode != CRASH_DONE)
            crash_fault(world, "nothing can happen, and rank %u is %s of step %u%s", r,
                        modes[rank->mode], (unsigned)rank->step,
                        rank->promise.frozen ? ", frozen" : "");
        if (!world->config.uneven && rank->order.settled != CRASH_STEPS)
            crash_fault(world, "rank %u ends after step %u", r, (unsigned)rank->order.settled);
        check_once(world, r);
    }
}
