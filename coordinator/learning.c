// SPDX-License-Identifier: Apache-2.0
//
// The learning step of a phase: slots are reported as they become ready, and granted to all in the
// order in which they complete. Runs inside coordinator_step.
//
// Words: a slot is *made* on a rank that reported it ready. It is *complete* when every member has
// made it or has ended the step; who ended without it fulfils it with zeros. A member *waits* for
// a slot that it has made and that is not granted. An *edge* leads from a member that waits for a
// slot to every member that has neither made it nor ended: that one must act first. If it waits
// too, it cannot act before it is released. So a cycle of edges is a deadlock, now and for ever.
//
// Only a wait adds edges, all from the member that begins to wait; everything else removes some.
// So it is enough to search, at each wait, for a path that leads back to that member.

#include "coordinator/core.h"

void learning_reset(struct learning *learning)
{
    learning->active = false;
    learning->last_step = 0;
    learning->plan_number = 0;
    learning->slot_count = 0;
    learning_forget(learning);
}

void learning_forget(struct learning *learning)
{
    learning->open = NULL;
    learning->word_count = 0;
    memset(learning->layouts, 0, sizeof(learning->layouts));
}

// ---- The slots of the step -------------------------------------------------------------------

static uint32_t slot_place(const struct learning *learning, const struct slot_id *id)
{
    uint64_t hash = hash_number(HASH_START, id->module, 4);
    hash = hash_number(hash, id->call, 4);
    hash = hash_number(hash, id->bucket, 4);
    uint32_t place = (uint32_t)(hash ^ hash >> 32) & (CORE_SLOT_TABLE - 1);
    while (learning->table[place] != 0) {
        const struct slot_id *other = &learning->slots[learning->table[place] - 1].id;
        if (other->module == id->module && other->call == id->call && other->bucket == id->bucket)
            break;
        place = (place + 1) & (CORE_SLOT_TABLE - 1);
    }
    return place;
}

static struct learned_slot *slot_find(struct learning *learning, const struct slot_id *id)
{
    const uint16_t entry = learning->table[slot_place(learning, id)];
    return entry == 0 ? NULL : &learning->slots[entry - 1];
}

// NULL: the step has as many as there may be.
static struct learned_slot *slot_add(struct learning *learning, const struct up_ready *ready,
                                     uint32_t rank)
{
    const uint32_t place = slot_place(learning, &ready->slot);
    struct learned_slot *slot = &learning->slots[learning->slot_count];
    if (learning->slot_count == LOCKSTEP_MAX_SLOTS)
        return NULL;
    memset(slot, 0, sizeof(*slot));
    slot->id = ready->slot;
    slot->dtype = ready->dtype;
    slot->elements = ready->elements;
    slot->reporter = rank;
    slot->complete = learning->ended;
    learning->table[place] = (uint16_t)(++learning->slot_count);
    return slot;
}

static bool slot_made(const struct learned_slot *slot, uint32_t rank)
{
    return (slot->ready[rank / 64] >> rank % 64 & 1) != 0;
}

static bool slot_valid(const struct slot_id *id)
{
    return id->module < LOCKSTEP_MAX_MODULES && id->call < LOCKSTEP_MAX_CALLS &&
           id->bucket < LOCKSTEP_MAX_BUCKETS;
}

static void slot_name(struct sentence *sentence, const struct slot_id *id)
{
    sentence_add(sentence, "module %" PRIu32 " call %" PRIu32 " bucket %" PRIu32, id->module,
                 id->call, id->bucket);
}

// ---- Entering --------------------------------------------------------------------------------

static void learning_open(struct coordinator *core, struct job *job, const struct worker *opener,
                          uint64_t step, uint64_t phase)
{
    struct learning *learning = &job->learning;
    learning->active = true;
    learning->step = step;
    learning->phase = phase;
    learning->opener = opener->rank;
    learning->ended = 0;
    learning->slot_count = 0;
    learning->grant_count = 0;
    memset(learning->table, 0, sizeof(learning->table));
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        worker->ended = false;
        worker->waits_for = CORE_NONE;
    }
}

// Whether a message of this step and phase may be looked at; opens the step for the first one.
static bool learning_enter(struct coordinator *core, struct worker *worker, uint64_t step,
                           uint64_t phase)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    if (job->state != JOB_RUNNING) {
        verify_parted(core, worker);
        return false;
    }
    if (!learning->active && step <= learning->last_step) {
        verdict_protocol(core, worker,
                         "learns step %" PRIu64 ", but step %" PRIu64 " is learned already", step,
                         learning->last_step);
        return false;
    }
    if (!learning->active)
        learning_open(core, job, worker, step, phase);
    worker->heartbeat.step = step;
    if (verdict_left_behind(core, worker, step))
        return false;
    if (learning->step != step) {
        verdict_protocol(core, worker,
                         "learns step %" PRIu64 ", while rank %" PRIu32 " learns step %" PRIu64,
                         step, learning->opener, learning->step);
        return false;
    }
    if (learning->phase != phase)
        return false; // The ranks find out from their headers, and can name what differs.
    if (worker->ended) {
        verdict_protocol(core, worker, "said more about step %" PRIu64 " after it had ended it",
                         step);
        return false;
    }
    return true;
}

// ---- Granting --------------------------------------------------------------------------------

static void learning_grant(struct coordinator *core, struct job *job, struct learned_slot *slot)
{
    struct learning *learning = &job->learning;
    const uint16_t index = (uint16_t)(slot - learning->slots);
    struct down_grant *grant = &core_message(core, job, DOWN_GRANT)->u.grant;
    slot->granted = true;
    learning->grants[learning->grant_count++] = index;
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (worker->waits_for == index)
            worker->waits_for = CORE_NONE;
    }
    grant->step = learning->step;
    grant->slot = slot->id;
    core_send_all(core, job);
}

static void learning_complete(struct coordinator *core, struct job *job, struct learned_slot *slot)
{
    if (++slot->complete == job->count)
        learning_grant(core, job, slot);
}

static void learning_slots_differ(struct coordinator *core, struct job *job,
                                  const struct learned_slot *slot, const struct worker *worker,
                                  const struct up_ready *ready)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct sentence sentence;
    sentence_begin(&sentence, text, sizeof(text));
    slot_name(&sentence, &slot->id);
    sentence_add(&sentence, " has %" PRIu64 " elements of dtype %d on ", slot->elements,
                 (int)slot->dtype);
    verdict_name(&sentence, job_worker(core, job, slot->reporter));
    sentence_add(&sentence, ", %" PRIu64 " of dtype %d on ", ready->elements, (int)ready->dtype);
    verdict_name(&sentence, worker);
    sentence_add(&sentence, ": every rank must report the same gradients");
    const struct verdict verdict = {.kind = HALT_LAYOUT, .step = job->learning.step, .text = text};
    verdict_halt(core, job, &verdict);
}

static void learning_too_many(struct coordinator *core, struct job *job,
                              const struct worker *worker)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct sentence sentence;
    sentence_begin(&sentence, text, sizeof(text));
    verdict_name(&sentence, worker);
    sentence_add(&sentence,
                 " reported more than %d slots in step %" PRIu64
                 ": make fewer calls in a step, or register larger modules",
                 LOCKSTEP_MAX_SLOTS, job->learning.step);
    const struct verdict verdict = {.kind = HALT_LAYOUT, .step = job->learning.step, .text = text};
    verdict_halt(core, job, &verdict);
}

void learning_ready(struct coordinator *core, struct worker *worker, const struct up_ready *ready)
{
    struct job *job = core_job_of(core, worker);
    if (!learning_enter(core, worker, ready->step, ready->phase))
        return;
    if (!slot_valid(&ready->slot) || ready->dtype == DTYPE_NONE) {
        verdict_protocol(core, worker,
                         "reported a slot that cannot be: module %" PRIu32 " call %" PRIu32
                         " bucket %" PRIu32 " dtype %d",
                         ready->slot.module, ready->slot.call, ready->slot.bucket,
                         (int)ready->dtype);
        return;
    }
    struct learned_slot *slot = slot_find(&job->learning, &ready->slot);
    if (slot == NULL)
        slot = slot_add(&job->learning, ready, worker->rank);
    if (slot == NULL) {
        learning_too_many(core, job, worker);
        return;
    }
    if (slot->dtype != ready->dtype || slot->elements != ready->elements) {
        learning_slots_differ(core, job, slot, worker, ready);
        return;
    }
    if (slot_made(slot, worker->rank)) {
        verdict_protocol(core, worker,
                         "reported module %" PRIu32 " call %" PRIu32 " bucket %" PRIu32
                         " ready twice in step %" PRIu64,
                         ready->slot.module, ready->slot.call, ready->slot.bucket, ready->step);
        return;
    }
    slot->ready[worker->rank / 64] |= UINT64_C(1) << worker->rank % 64;
    learning_complete(core, job, slot);
}

void learning_end(struct coordinator *core, struct worker *worker, const struct up_end *end)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    if (!learning_enter(core, worker, end->step, end->phase))
        return;
    if (worker->rank == 0 && learning->open != NULL) {
        verdict_protocol(core, worker, "ended step %" PRIu64 " in the middle of a layout",
                         end->step);
        return;
    }
    worker->ended = true;
    worker->waits_for = CORE_NONE;
    learning->ended++;
    for (uint32_t i = 0; i < learning->slot_count; i++)
        if (!slot_made(&learning->slots[i], worker->rank))
            learning_complete(core, job, &learning->slots[i]);
    if (learning->ended == job->count)
        publish_plan(core, job);
}

// ---- Waits and cycles ------------------------------------------------------------------------

static bool cycle_edge(const struct learning *learning, const struct worker *from,
                       const struct worker *to)
{
    if (from->waits_for == CORE_NONE || to->ended)
        return false;
    return !slot_made(&learning->slots[from->waits_for], to->rank);
}

static void cycle_text(struct coordinator *core, const struct job *job, const uint16_t *cycle,
                       uint32_t count, struct sentence *sentence)
{
    const uint32_t shown = count < 6 ? count : 6;
    sentence_add(sentence, "waits form a cycle: ");
    for (uint32_t i = 0; i < shown; i++) {
        const struct worker *from = job_worker(core, job, cycle[i]);
        const struct worker *to = job_worker(core, job, cycle[(i + 1) % count]);
        verdict_name(sentence, from);
        sentence_add(sentence, " waits for ");
        slot_name(sentence, &job->learning.slots[from->waits_for].id);
        sentence_add(sentence, ", which ");
        verdict_name(sentence, to);
        sentence_add(sentence, " has not made; ");
    }
    if (count > shown)
        sentence_add(sentence, "and so on over %" PRIu32 " ranks; ", count);
    sentence_add(sentence, "wait in one order on every rank, or only in lockstep_step_end");
}

static void cycle_halt(struct coordinator *core, struct job *job, const uint16_t *before,
                       uint16_t last)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct sentence sentence;
    uint16_t cycle[LOCKSTEP_MAX_WORLD];
    uint32_t count = 0;
    // before leads from the last one back to the first, and edges lead the other way.
    for (uint16_t rank = last; rank != CORE_NONE; rank = before[rank])
        cycle[count++] = rank;
    for (uint32_t i = 0; i < count / 2; i++) {
        const uint16_t kept = cycle[i];
        cycle[i] = cycle[count - 1 - i];
        cycle[count - 1 - i] = kept;
    }
    sentence_begin(&sentence, text, sizeof(text));
    cycle_text(core, job, cycle, count, &sentence);
    const struct verdict verdict = {.kind = HALT_ORDER, .step = job->learning.step, .text = text};
    verdict_halt(core, job, &verdict);
}

// Breadth first from the member that begins to wait, over members that wait. Costs waiting members
// times world, once a wait.
static void cycle_search(struct coordinator *core, struct job *job, const struct worker *start)
{
    uint16_t queue[LOCKSTEP_MAX_WORLD];
    uint16_t before[LOCKSTEP_MAX_WORLD];
    bool seen[LOCKSTEP_MAX_WORLD] = {false};
    uint32_t head = 0;
    uint32_t tail = 0;
    queue[tail++] = (uint16_t)start->rank;
    before[start->rank] = CORE_NONE;
    seen[start->rank] = true;
    while (head < tail) {
        const uint16_t from = queue[head++];
        const struct worker *worker = job_worker(core, job, from);
        if (from != start->rank && cycle_edge(&job->learning, worker, start)) {
            cycle_halt(core, job, before, from);
            return;
        }
        for (uint16_t to = 0; to < job->count; to++) {
            if (seen[to] || !cycle_edge(&job->learning, worker, job_worker(core, job, to)))
                continue;
            seen[to] = true;
            before[to] = from;
            queue[tail++] = to;
        }
    }
}

void learning_wait(struct coordinator *core, struct worker *worker, const struct up_wait *wait)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    if (!learning_enter(core, worker, wait->step, wait->phase))
        return;
    struct learned_slot *slot = slot_find(learning, &wait->slot);
    if (slot == NULL || !slot_made(slot, worker->rank)) {
        verdict_protocol(core, worker,
                         "waits for module %" PRIu32 " call %" PRIu32 " bucket %" PRIu32
                         ", which it has not reported ready",
                         wait->slot.module, wait->slot.call, wait->slot.bucket);
        return;
    }
    if (slot->granted)
        return;
    worker->waits_for = (uint16_t)(slot - learning->slots);
    cycle_search(core, job, worker);
}
