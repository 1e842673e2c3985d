// SPDX-License-Identifier: Apache-2.0
//
// The coordinator of a world whose ranks die; see crash.h.

#include "tests/sim/crash.h"

#include <string.h>

void crash_core_begin(struct crash_world *world)
{
    struct crash_core *core = &world->core;
    memset(core, 0, sizeof(*core));
    core->members = (1u << world->config.ranks) - 1;
    core->number = core->established = 1;
    core->suspicions = world->config.suspicions ? 3 : 0;
    world->generations[1].id = (struct generation_id){.number = 1, .incarnation = 7};
    world->generations[1].members = core->members;
}

// True if the rank hears nothing any more.
static bool core_is_deaf(const struct crash_world *world, uint32_t r)
{
    return world->ranks[r].mode == CRASH_DEAD || world->ranks[r].mode == CRASH_LEFT;
}

// ---- Learning ----------------------------------------------------------------------------------

static uint32_t learning_find(const struct crash_learning *learning, const struct slot_id *id)
{
    uint32_t i = 0;
    while (i < learning->count && memcmp(&learning->slots[i], id, sizeof(*id)) != 0)
        i++;
    return i;
}

static void learning_tells(struct crash_world *world, uint32_t r, uint32_t i)
{
    const struct crash_learning *learning = &world->core.learning;
    const struct crash_message grant = {.kind = CRASH_GRANT,
                                        .step = learning->step,
                                        .slot = learning->slots[i],
                                        .forced = world->config.defers &&
                                                  !crash_in(learning->made[i], r) &&
                                                  !crash_in(learning->ended, r)};
    if (crash_in(world->core.members, r) && world->ranks[r].mode != CRASH_DEAD)
        crash_push(world, &world->ranks[r].down, &grant);
}

static void learning_grant(struct crash_world *world, uint32_t i)
{
    struct crash_learning *learning = &world->core.learning;
    learning->granted[i] = true;
    learning->grants[learning->grant_count++] = i;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        if (learning->waits[r] == i + 1)
            learning->waits[r] = 0;
        if (crash_in(learning->entered, r))
            learning_tells(world, r, i);
    }
}

static void learning_grants(struct crash_world *world)
{
    struct crash_learning *learning = &world->core.learning;
    const uint32_t members = world->core.members;
    for (uint32_t i = 0; learning->entered == members && i < learning->count; i++)
        if (!learning->granted[i] && ((learning->made[i] | learning->ended) & members) == members)
            learning_grant(world, i);
}

// If every member waits or has ended, the smallest slot that is waited for is granted by force.
static void learning_forces(struct crash_world *world)
{
    struct crash_learning *learning = &world->core.learning;
    uint32_t smallest = CRASH_SLOTS;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const uint32_t i = learning->waits[r] - 1;
        if (!crash_in(world->core.members, r) || crash_in(learning->ended, r))
            continue;
        if (learning->waits[r] == 0)
            return;
        if (smallest == CRASH_SLOTS ||
            memcmp(&learning->slots[i], &learning->slots[smallest], sizeof(struct slot_id)) < 0)
            smallest = i;
    }
    if (smallest < CRASH_SLOTS)
        learning_grant(world, smallest);
}

static void plan_adds(struct crash_message *plan, const struct slot_id *slot)
{
    for (uint32_t i = 0; i < plan->plan_count; i++)
        if (plan->plan[i].module == slot->module && plan->plan[i].call == slot->call)
            return;
    for (uint32_t bucket = 0; bucket < crash_bucket_count(slot->module); bucket++)
        plan->plan[plan->plan_count++] =
            (struct slot_id){.module = slot->module, .call = slot->call, .bucket = bucket};
}

// A slot that only ranks have made that were removed is not in the plan: such a rank may have died
// in the middle of a call, and a plan has all buckets of a call or none.
static void learning_ends(struct crash_world *world)
{
    struct crash_learning *learning = &world->core.learning;
    struct crash_message plan = {
        .kind = CRASH_PLAN, .step = learning->step, .phase = learning->phase};
    if (learning->ended != world->core.members)
        return;
    learning->active = false;
    learning->last_step = learning->step;
    world->core.plan_number++;
    for (uint32_t i = 0; i < learning->grant_count; i++)
        if ((learning->made[learning->grants[i]] & world->core.members) != 0)
            plan_adds(&plan, &learning->slots[learning->grants[i]]);
    for (uint32_t r = 0; r < world->config.ranks; r++)
        if (crash_in(world->core.members & ~learning->holds, r) && !core_is_deaf(world, r))
            crash_push(world, &world->ranks[r].down, &plan);
}

static uint32_t learning_slot(struct crash_learning *learning, const struct slot_id *id)
{
    const uint32_t i = learning_find(learning, id);
    if (i == learning->count) {
        learning->slots[learning->count++] = *id;
        learning->made[i] = 0;
        learning->granted[i] = false;
    }
    return i;
}

// The rank is in the step, and gets the grants that it does not have.
static void learning_enters(struct crash_world *world, uint32_t r)
{
    struct crash_learning *learning = &world->core.learning;
    if (crash_in(learning->entered, r))
        return;
    learning->entered |= 1u << r;
    for (uint32_t i = learning->recalled[r]; i < learning->grant_count; i++)
        learning_tells(world, r, learning->grants[i]);
}

// The rank says the next slot that is granted to it.
static void learning_recalls(struct crash_world *world, uint32_t r,
                             const struct crash_message *message)
{
    struct crash_learning *learning = &world->core.learning;
    const uint32_t place = message->granted - 1;
    const uint32_t i = learning_slot(learning, &message->slot);
    if (crash_in(learning->entered, r) || place != learning->recalled[r]++)
        crash_fault(world, "rank %u says its grants in another order, or twice", r);
    else if (place < learning->grant_count ? learning->grants[place] != i : learning->granted[i])
        crash_fault(world, "rank %u has another order than others", r);
    else if (place == learning->grant_count)
        learning_grant(world, i);
    if (!message->unmade)
        learning->made[i] |= 1u << r;
    if (message->granted == message->grants)
        learning_enters(world, r);
}

static void learning_hears(struct crash_world *world, uint32_t r,
                           const struct crash_message *message)
{
    struct crash_learning *learning = &world->core.learning;
    const bool anew = world->core.established > 1; // All may be said again.
    if (learning->active && anew && message->step < learning->step)
        return;
    if (learning->active && anew && message->step > learning->step) {
        learning->active = false;
        learning->last_step = learning->step;
    }
    if (!learning->active && message->step <= learning->last_step) {
        if (!anew)
            crash_fault(world, "rank %u learns step %u, which is learned", r,
                        (unsigned)message->step);
        return; // In a new generation it is said again.
    }
    if (!learning->active) {
        memset(learning->made, 0, sizeof(learning->made));
        memset(learning->granted, 0, sizeof(learning->granted));
        memset(learning->waits, 0, sizeof(learning->waits));
        memset(learning->recalled, 0, sizeof(learning->recalled));
        learning->holds = 0;
        learning->active = true;
        learning->step = message->step;
        learning->phase = message->phase;
        learning->entered = learning->ended = learning->count = learning->grant_count = 0;
    }
    if (learning->step != message->step || learning->phase != message->phase) {
        crash_fault(world, "rank %u learns another step", r);
        return;
    }
    if (message->granted > 0) {
        learning_recalls(world, r, message);
        learning_grants(world);
        return;
    }
    learning_enters(world, r);
    if (message->up == UP_READY) {
        const uint32_t i = learning_slot(learning, &message->slot);
        if (crash_in(learning->made[i], r) || crash_in(learning->ended, r))
            crash_fault(world, "rank %u reports a slot twice, or after its end of the step", r);
        learning->made[i] |= 1u << r;
    } else if (message->up == UP_WAIT) {
        const uint32_t i = learning_find(learning, &message->slot);
        if (i == learning->count || !crash_in(learning->made[i], r))
            crash_fault(world, "rank %u waits for a slot that it has not reported", r);
        else
            learning->waits[r] = learning->granted[i] ? 0 : i + 1;
    } else {
        if (crash_in(learning->ended, r))
            crash_fault(world, "rank %u ends a step twice", r);
        learning->ended |= 1u << r;
        learning->holds |= (uint32_t)(message->holds != 0) << r;
        learning->waits[r] = 0;
    }
    learning_grants(world);
    learning_ends(world);
    if (world->config.defers && learning->active && message->up != UP_READY)
        learning_forces(world);
}

// ---- Ballots -----------------------------------------------------------------------------------

static uint32_t core_dead(const struct crash_world *world)
{
    uint32_t dead = 0;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        if (world->ranks[r].mode == CRASH_DEAD)
            dead |= 1u << r;
    return dead & world->core.members;
}

// A death that is not known is a reason, and so is a suspicion of a rank that lives. A job whose
// ranks have all finished needs no decision.
bool crash_core_can_prepare(const struct crash_world *world)
{
    const uint32_t dead = core_dead(world);
    bool runs = false;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        runs = runs || (crash_in(world->core.members & ~dead, r) &&
                        world->ranks[r].mode != CRASH_DONE && world->ranks[r].mode != CRASH_LEFT);
    if (!runs || world->core.number + 1 >= CRASH_BALLOTS)
        return false;
    return (dead & ~world->core.known_dead) != 0 || world->core.suspicions > 0;
}

// A coordinator that has not heard of the last decision excludes a member of it.
static void core_is_stale(struct crash_world *world)
{
    const struct crash_core *core = &world->core;
    const uint32_t r = crash_draw(world, world->config.ranks);
    const struct crash_message message = {
        .kind = CRASH_EXCLUDED, .ballot = {.number = core->established - 1, .incarnation = 7}};
    if (core->established > 1 && crash_in(core->members, r) && world->ranks[r].late.count < 8)
        crash_push(world, &world->ranks[r].late, &message);
}

// Another coordinator begins the ballot. A part of what the first one has told each rank is lost:
// the end of it.
static void core_restarts(struct crash_world *world)
{
    world->core.forgets = true;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        struct crash_channel *down = &world->ranks[r].down;
        uint32_t kept = 0;
        uint32_t left = crash_draw(world, down->count + 1); // Grants and plans that arrive.
        for (uint32_t i = 0; i < down->count; i++) {
            const enum crash_message_kind kind = down->messages[i].kind;
            const bool learns = kind == CRASH_GRANT || kind == CRASH_PLAN;
            if (learns && left == 0)
                continue;
            left -= learns;
            down->messages[kept++] = down->messages[i];
        }
        down->count = kept;
    }
}

// Half of the suspicions are of nobody: the ranks freeze and go on with the same members.
void crash_core_prepares(struct crash_world *world)
{
    struct crash_core *core = &world->core;
    const uint32_t dead = core_dead(world);
    uint32_t suspects = dead;
    if ((dead & ~core->known_dead) == 0) {
        core->suspicions--;
        core_is_stale(world);
        if (crash_draw(world, 2) == 0)
            suspects |= 1u << crash_draw(world, world->config.ranks) & core->members;
    }
    core->known_dead |= dead;
    core->number++;
    core->forgets = core->forgets && core->collects;
    core->collects = true;
    core->reported = 0;
    core->kept = core->members & ~core->left & ~suspects;
    if (__builtin_popcount(core->kept) * 2 <=
        __builtin_popcount(core->members & ~core->left & ~dead))
        core->kept = core->members & ~core->left & ~dead; // No quorum without the suspect.
    if (world->config.restarts && crash_draw(world, 2) == 0)
        core_restarts(world);
    crash_say(world, "coordinator: PREPARE %u, suspects %x, keeps %x", (unsigned)core->number,
              suspects, core->kept);
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct crash_message message = {.kind = CRASH_PREPARE,
                                              .ballot = {.number = core->number, .incarnation = 7},
                                              .suspect = crash_in(suspects, r)};
        if (crash_in(core->members, r) && !core_is_deaf(world, r))
            crash_push(world, &world->ranks[r].down, &message);
    }
}

static void decide_element(struct crash_world *world, struct crash_decision *decision,
                           uint32_t slot, uint32_t element)
{
    uint32_t holders = 0;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct crash_report *report = &world->core.reports[r];
        if (!crash_in(decision->members, r) || report->facts.step != decision->settled + 1 ||
            !report->facts.begun || !report->slots[slot].elements[element].final)
            continue;
        const uint64_t value = report->slots[slot].elements[element].value;
        if (holders != 0 && decision->values[slot][element] != value)
            crash_fault(world, "two ranks hold other bits of slot %u", slot);
        holders |= 1u << r;
        decision->values[slot][element] = value;
        decision->owners[slot][element] = r;
    }
    decision->rows[slot][element] = holders == 0                   ? ROW_REDUCE
                                    : holders == decision->members ? ROW_NONE
                                                                   : ROW_HAVE;
}

// A slot that is whole on every member is repeated without rows, unless it is done everywhere:
// otherwise it would run again with inputs that are gone.
static void decide_slot(struct crash_world *world, struct crash_decision *decision, uint32_t slot)
{
    bool some = false;
    bool done = true;
    for (uint32_t e = 0; e < CRASH_ELEMENTS; e++) {
        decide_element(world, decision, slot, e);
        some = some || decision->rows[slot][e] != ROW_REDUCE;
    }
    for (uint32_t r = 0; r < world->config.ranks; r++)
        if (crash_in(decision->members, r))
            done =
                done && (world->core.reports[r].facts.final.words[slot / 64] >> slot % 64 & 1) != 0;
    if (!some || done)
        return;
    decision->redo.words[slot / 64] |= UINT64_C(1) << slot % 64;
    world->repeated++;
}

static void decide_waves(struct crash_world *world, struct crash_decision *decision)
{
    bool has_next = false; // True if a member has the result of the next step's open wave.
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct crash_report *report = &world->core.reports[r];
        if (crash_in(decision->members | world->core.left, r) && report->facts.skipped &&
            report->facts.settled == decision->settled && !has_next) {
            decision->skipped = decision->has_opened = true;
            decision->opened = report->opened;
        }
        if (!crash_in(decision->members | world->core.left, r) ||
            report->facts.step != decision->settled + 1)
            continue;
        if (report->facts.opened && world->config.uneven) {
            decision->skipped = false;
            decision->has_opened = has_next = true;
            decision->opened = report->opened;
        }
        if (report->facts.closed) {
            decision->has_closed = true;
            decision->closed = report->closed;
        }
    }
}

// A rank that has left may be the only one that knows of its last step.
static void core_hears_leavers(struct crash_world *world, struct crash_decision *decision)
{
    const uint64_t settled = decision->settled;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        if (crash_in(world->core.left, r) &&
            world->core.reports[r].facts.settled > decision->settled)
            decision->settled = world->core.reports[r].facts.settled;
    world->words += decision->settled > settled;
}

static void core_decides(struct crash_world *world)
{
    struct crash_core *core = &world->core;
    struct crash_decision *decision = &world->decisions[core->number];
    struct crash_generation *generation = &world->generations[core->number];
    memset(decision, 0, sizeof(*decision));
    memset(generation, 0, sizeof(*generation));
    decision->ballot = (struct generation_id){.number = core->number, .incarnation = 7};
    decision->members = core->kept;
    for (uint32_t r = 0; r < world->config.ranks; r++)
        if (crash_in(core->kept, r) && core->reports[r].facts.settled > decision->settled)
            decision->settled = core->reports[r].facts.settled;
    core_hears_leavers(world, decision);
    crash_check_decision(world, core->kept, decision->settled);
    decide_waves(world, decision);
    for (uint32_t slot = 0; slot < CRASH_SLOTS; slot++)
        decide_slot(world, decision, slot);
    generation->id = decision->ballot;
    generation->members = core->kept;
    crash_say(world, "coordinator: DECISION %u, members %x, settled %u, redo %x",
              (unsigned)core->number, core->kept, (unsigned)decision->settled,
              (unsigned)decision->redo.words[0]);
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        const struct crash_message message = {.kind = crash_in(core->kept, r) ? CRASH_DECISION
                                                                              : CRASH_EXCLUDED,
                                              .ballot = decision->ballot};
        if (crash_in(core->members, r) && !core_is_deaf(world, r))
            crash_push(world, &world->ranks[r].down, &message);
    }
    core->removed |= core->members & ~core->left & ~core->kept;
    core->members = core->kept;
    core->collects = false;
    core->established = core->number;
    world->recoveries++;
    core->learning.active = false; // In the new generation all is said again.
    core->learning.last_step = decision->settled;
}

void crash_core_hears(struct crash_world *world, uint32_t r, const struct crash_message *message)
{
    struct crash_core *core = &world->core;
    if (message->kind == CRASH_LEAVE) {
        if (!crash_in(core->members, r))
            return;
        core->left |= 1u << r;
        core->reports[r] = message->report;
        core->kept &= ~(1u << r);
        if (core->collects && core->kept != 0 && (core->reported & core->kept) == core->kept)
            core_decides(world);
        return;
    }
    if (message->kind == CRASH_REPORT) {
        if (!core->collects || message->report.ballot.number != core->number)
            return;
        core->reports[r] = message->report;
        core->reported |= 1u << r;
        if ((core->reported & core->kept) == core->kept)
            core_decides(world);
        return;
    }
    if (!crash_in(core->members, r))
        return; // It was removed, and does not know it yet.
    // What a rank says of its old generation comes before its report.
    if (message->generation.number != core->established)
        crash_fault(world, "rank %u says something of another generation", r);
    if (core->collects && core->forgets)
        return; // All is said again in the new generation.
    if (message->up == UP_READY || message->up == UP_END || message->up == UP_WAIT)
        learning_hears(world, r, message);
    else if (message->up != UP_REPLAN && message->up != UP_BLOCKED)
        crash_fault(world, "rank %u says something unexpected: %d", r, (int)message->up);
}
