// SPDX-License-Identifier: Apache-2.0
//
// The learning step of a phase: ranks report slots as these become ready, and the coordinator
// grants the slots to all ranks in the order in which they become complete. Runs inside
// coordinator_step.
//
// Words. A slot is *made* on a rank that has reported it ready. It is *complete* when every member
// has made it or has ended the step; a member that ended the step without the slot contributes
// zeros. A module with a group is *absent* on the members of the job that are not in that group:
// they neither make its slots nor hold them up. A member *waits* when every thread of its trainer
// waits for a slot that the member has made; the grant of one of these slots ends the wait.
//
// A plan has the calls in the order of grants. A complete slot of a module with a group is *held
// back* until all slots are granted that one of its members made before, unless a member waits for
// it. Otherwise a group's call could be planned before a call that every rank makes first, because
// a rank outside of the group was late. Members that wait for that call would wait for ever (order
// protocol, R3).
//
// Members that wait for each other are a knot (knot.c). Positions are here the indices of slots,
// and a member lacks the slots that it has not made. Only a wait can close a knot, so the core
// searches for a knot only at a wait. Under the policy zero_defer there is no verdict. When every
// member waits or has ended, no slot can become complete by itself, so the core grants the smallest
// slot that some member waits for. Members that have not made it contribute zeros. No slot is
// forced before, so the choice does not depend on which member was slow.

#include "coordinator/learning.h"

#include "base/bits.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/knot.h"
#include "coordinator/names.h"
#include "coordinator/plans.h"
#include "coordinator/publish.h"
#include "coordinator/relearn.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/slots.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "coordinator/verify.h"
#include "coordinator/waits.h"

void learning_reset(struct learning *learning)
{
    learning->active = false;
    learning->last_step = 0;
    learning->plan_number = 0;
    learning->republished = 0;
    learning->published_count = 0;
    learning->slot_count = 0;
    plans_forget(learning);
}

// ---- Waits -----------------------------------------------------------------------------------

// Returns the index of the slot that a wait needs: in a learning step a wait needs one slot.
static uint32_t wait_index(const struct blocked_wait *wait)
{
    uint32_t word = 0;
    while (wait->needs.words[word] == 0)
        word++;
    return word * 64 + (uint32_t)__builtin_ctzll(wait->needs.words[word]);
}

// Adds a wait of a member. Returns false if the wait is impossible; then a verdict was made.
static bool wait_add(struct coordinator *core, struct worker *worker, const struct slot_id *id)
{
    struct learning *learning = &core_job_of(core, worker)->learning;
    const struct learned_slot *slot = slot_find(learning, id);
    struct up_blocked *blocked = &worker->blocked;
    struct blocked_wait *wait = &blocked->waits[blocked->wait_count];
    if (!slot || !slot_made(slot, worker->rank)) {
        verdict_protocol(core, worker,
                         "waits for module %" PRIu32 " call %" PRIu32 " bucket %" PRIu32
                         ", which it has not reported ready",
                         id->module, id->call, id->bucket);
        return false;
    }
    const uint32_t index = (uint32_t)(slot - learning->slots);
    *wait = (struct blocked_wait){.call = {id->module, id->call}};
    wait->needs.words[index / 64] = UINT64_C(1) << index % 64;
    blocked->wait_count++;
    return true;
}

static bool wait_over(const struct learning *learning, const struct up_blocked *blocked)
{
    for (uint32_t i = 0; i < blocked->wait_count; i++)
        if (learning->slots[wait_index(&blocked->waits[i])].granted)
            return true;
    return false;
}

// A slot was granted: if the member waits for this slot, the member no longer waits.
static void wait_granted(struct worker *worker, uint32_t index)
{
    for (uint32_t i = 0; i < worker->blocked.wait_count; i++) {
        if (wait_index(&worker->blocked.waits[i]) != index)
            continue;
        worker->blocked.wait_count = 0;
        return;
    }
}

// ---- Granting --------------------------------------------------------------------------------

// Tells the worker of a grant. Only under zero_defer a grant may be forced. A worker that has made
// the slot takes no notice of it: UP_READY may still follow from one that has come back.
static void learning_tell(struct coordinator *core, const struct job *job,
                          const struct worker *worker, const struct learned_slot *slot)
{
    struct down_grant *grant = &core->out.u.grant;
    grant->step = job->learning.step;
    grant->slot = slot->id;
    grant->forced = job->zero_defer && !slot_made(slot, worker->rank) && !worker->ended &&
                    !slot_absent(worker, &slot->id);
    core_send(core, worker);
}

void learning_catch_up(struct coordinator *core, const struct job *job, const struct worker *worker)
{
    const struct learning *learning = &job->learning;
    core_message(core, job, DOWN_GRANT);
    for (uint32_t i = worker->recalled; i < learning->grant_count; i++)
        learning_tell(core, job, worker, &learning->slots[learning->grants[i]]);
}

void learning_grant(struct coordinator *core, struct job *job, struct learned_slot *slot)
{
    struct learning *learning = &job->learning;
    const uint16_t index = (uint16_t)(slot - learning->slots);
    slot->granted = true;
    learning->grants[learning->grant_count++] = index;
    core_message(core, job, DOWN_GRANT);
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (!worker->entered)
            continue; // The worker is told when it enters.
        wait_granted(worker, index);
        learning_tell(core, job, worker, slot);
    }
}

// ---- Holding back ----------------------------------------------------------------------------

// Notes what the member has made before this slot.
static void slot_follows(struct learning *learning, const struct worker *worker,
                         struct learned_slot *slot)
{
    if ((worker->grouped >> slot->id.module & 1) == 0)
        return;
    for (uint32_t i = 0; i < learning->slot_count; i++)
        if (!learning->slots[i].granted && slot_made(&learning->slots[i], worker->rank))
            slot_set_add(&slot->after, i);
}

static bool sets_meet(const struct slot_set *a, const struct slot_set *b)
{
    uint64_t both = 0;
    for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++)
        both |= a->words[word] & b->words[word];
    return both != 0;
}

// Sets the slots that members wait for.
static void slot_waited(struct coordinator *core, const struct job *job, struct slot_set *waited)
{
    memset(waited, 0, sizeof(*waited));
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_blocked *blocked = &job_worker(core, job, i)->blocked;
        for (uint32_t k = 0; k < blocked->wait_count; k++)
            slot_set_add(waited, wait_index(&blocked->waits[k]));
    }
}

// Adds to `stuck` the open slots that follow a stuck one, until there is none any more. A slot that
// members wait for is never held back.
static void held_spread(const struct learning *learning, const struct slot_set *open,
                        const struct slot_set *waited, struct slot_set *stuck)
{
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < learning->slot_count; i++) {
            if (!slot_set_has(open, i) || slot_set_has(stuck, i) || slot_set_has(waited, i) ||
                !sets_meet(&learning->slots[i].after, stuck))
                continue;
            slot_set_add(stuck, i);
            more = true;
        }
    }
}

// Returns the next slot to grant, or NULL: every complete slot is granted or held back. A slot is
// held back if one that it follows is not complete, or held back itself. Slots that follow each
// other are granted in the order of their first reports.
static struct learned_slot *held_next(struct coordinator *core, struct job *job)
{
    struct learning *learning = &job->learning;
    struct learned_slot *next = NULL;
    struct slot_set waited;
    struct slot_set open = {{0}}; // Slots that are not granted.
    struct slot_set stuck = {{0}}; // Open slots that are not complete, or are held back.
    slot_waited(core, job, &waited);
    learning->held = false;
    for (uint32_t i = 0; i < learning->slot_count; i++) {
        const struct learned_slot *slot = &learning->slots[i];
        if (slot->granted)
            continue;
        slot_set_add(&open, i);
        if (slot->complete < job->count)
            slot_set_add(&stuck, i);
        else
            learning->held = true;
    }
    if (learning->held)
        held_spread(learning, &open, &waited, &stuck);
    for (uint32_t i = 0; i < learning->slot_count; i++) {
        struct learned_slot *slot = &learning->slots[i];
        if (!slot_set_has(&open, i) || slot_set_has(&stuck, i))
            continue;
        if (slot_set_has(&waited, i) || !sets_meet(&slot->after, &open))
            return slot;
        next = next ? next : slot;
    }
    return next;
}

// Grants the complete slots that are not held back.
static void learning_release(struct coordinator *core, struct job *job)
{
    struct learned_slot *slot = NULL;
    while (job->learning.held && (slot = held_next(core, job)))
        learning_grant(core, job, slot);
}

// A member that has not begun the step would drop the grant.
static void learning_complete(struct coordinator *core, struct job *job, struct learned_slot *slot)
{
    struct learning *learning = &job->learning;
    if (++slot->complete < job->count || slot->granted || learning->entered < job->count)
        return;
    learning->held = true;
    learning_release(core, job);
}

// ---- Entering --------------------------------------------------------------------------------

static void learning_open(struct coordinator *core, struct job *job, const struct worker *opener,
                          uint64_t step, uint64_t phase)
{
    struct learning *learning = &job->learning;
    if (relearn_is_stale(core, job, step))
        plans_forget(learning);
    learning->active = true;
    learning->again = relearn_is_again(opener, step);
    learning->decided_number = 0;
    learning->step = step;
    learning->phase = phase;
    learning->opener = opener->rank;
    learning->entered = learning->ended = 0;
    learning->slot_count = 0;
    learning->grant_count = 0;
    learning->held = false;
    memset(learning->table, 0, sizeof(learning->table));
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        worker->entered = worker->ended = worker->holds = false;
        worker->recalled = 0;
        worker->blocked.wait_count = 0;
    }
}

void learning_meet(struct coordinator *core, struct job *job, struct worker *worker)
{
    struct learning *learning = &job->learning;
    if (worker->entered)
        return;
    if (learning->entered == 0)
        learning->opener = worker->rank;
    worker->entered = true;
    learning_catch_up(core, job, worker);
    if (++learning->entered < job->count)
        return;
    learning->held = true;
    learning_release(core, job);
    if (learning->ended == job->count)
        publish_plan(core, job);
}

bool learning_admits(struct coordinator *core, struct worker *worker, uint64_t step, uint64_t phase)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    if (job->state != JOB_RUNNING) {
        verify_parted(core, worker);
        return false;
    }
    if (relearn_is_again(worker, step) &&
        (learning->active ? step < learning->step : step <= learning->last_step))
        return false;
    if (!learning->active && step <= learning->last_step) {
        verdict_protocol(core, worker,
                         "learns step %" PRIu64 ", but step %" PRIu64 " is learned already", step,
                         learning->last_step);
        return false;
    }
    if (learning->active && learning->again && step > learning->step)
        relearn_overtaken(learning);
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
    // If the phases differ, the ranks notice it from their step headers, and can name the
    // difference.
    return learning->phase == phase;
}

// Returns true if a message of this step and phase is to be handled.
static bool learning_enter(struct coordinator *core, struct worker *worker, uint64_t step,
                           uint64_t phase)
{
    if (!learning_admits(core, worker, step, phase))
        return false;
    if (worker->ended && !relearn_is_again(worker, step)) {
        verdict_protocol(core, worker, "said more about step %" PRIu64 " after it had ended it",
                         step);
        return false;
    }
    learning_meet(core, core_job_of(core, worker), worker);
    return !worker->ended; // Otherwise the member says again what is known.
}

// ---- Waits that cannot end -------------------------------------------------------------------

// Stores the lacks of a blocked member: the slots in `waited` that it has not made.
static void wait_lacks(const struct learning *learning, struct worker *worker,
                       const struct slot_set *waited)
{
    struct up_blocked *blocked = &worker->blocked;
    memset(&blocked->lacks, 0, sizeof(blocked->lacks));
    blocked->lack_count = 0;
    for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++) {
        for (uint64_t bits = waited->words[word]; bits != 0; bits &= bits - 1) {
            const uint32_t index = word * 64 + (uint32_t)__builtin_ctzll(bits);
            const struct learned_slot *slot = &learning->slots[index];
            if (slot_made(slot, worker->rank) || slot_absent(worker, &slot->id))
                continue;
            blocked->lacks.words[word] |= bits & -bits;
            if (blocked->lack_count < LOCKSTEP_LACKS_NAMED)
                blocked->lacking[blocked->lack_count++] =
                    (struct blocked_lack){index, {slot->id.module, slot->id.call}};
        }
    }
}

// Policy error: halts if the wait of this member closes a knot.
static void learning_judge(struct coordinator *core, struct job *job, struct worker *last)
{
    struct slot_set waited;
    slot_waited(core, job, &waited);
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (worker->blocked.wait_count > 0)
            wait_lacks(&job->learning, worker, &waited);
    }
    if (knot_find(core, job, &last->blocked))
        waits_halt(core, job, last);
}

static bool slot_before(const struct slot_id *a, const struct slot_id *b)
{
    if (a->module != b->module)
        return a->module < b->module;
    return a->call != b->call ? a->call < b->call : a->bucket < b->bucket;
}

// Policy zero_defer: if every member waits or has ended, grants the smallest slot that some member
// waits for.
static void learning_force(struct coordinator *core, struct job *job)
{
    struct learning *learning = &job->learning;
    struct learned_slot *smallest = NULL;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (!worker->ended && worker->blocked.wait_count == 0)
            return;
        for (uint32_t k = 0; k < worker->blocked.wait_count; k++) {
            struct learned_slot *slot = &learning->slots[wait_index(&worker->blocked.waits[k])];
            if (!smallest || slot_before(&slot->id, &smallest->id))
                smallest = slot;
        }
    }
    if (!smallest)
        return;
    learning_grant(core, job, smallest);
    learning_release(core, job);
}

// ---- Messages of members ---------------------------------------------------------------------

static void learning_slots_differ(struct coordinator *core, struct job *job,
                                  const struct learned_slot *slot, const struct worker *worker,
                                  const struct up_ready *ready)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    slot_name(&sentence, &slot->id);
    text_append(&sentence, " has %" PRIu64 " elements of dtype %d on ", slot->elements,
                (int)slot->dtype);
    core_rank_name(&sentence, job_worker(core, job, slot->reporter));
    text_append(&sentence, ", %" PRIu64 " of dtype %d on ", ready->elements, (int)ready->dtype);
    core_rank_name(&sentence, worker);
    text_append(&sentence, ": every rank must report the same gradients");
    const struct verdict verdict = {.kind = HALT_LAYOUT, .step = job->learning.step, .text = text};
    verdict_halt(core, job, &verdict);
}

static void learning_too_many(struct coordinator *core, struct job *job,
                              const struct worker *worker)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, worker);
    text_append(&sentence,
                " reported more than %d buckets in step %" PRIu64
                ", and a step has at most %d; each bucket counts once for each separate call: "
                "make the buckets larger (bucket_bytes), or make fewer separate calls",
                LOCKSTEP_MAX_SLOTS, job->learning.step, LOCKSTEP_MAX_SLOTS);
    const struct verdict verdict = {.kind = HALT_LIMIT, .step = job->learning.step, .text = text};
    verdict_halt(core, job, &verdict);
}

void learning_ready(struct coordinator *core, struct worker *worker, const struct up_ready *ready)
{
    struct job *job = core_job_of(core, worker);
    if (ready->granted > 0) {
        relearn_granted(core, worker, ready);
        return;
    }
    if (!learning_enter(core, worker, ready->step, ready->phase))
        return;
    if (!slot_valid(&ready->slot) || ready->dtype == DTYPE_NONE ||
        slot_absent(worker, &ready->slot)) {
        verdict_protocol(core, worker,
                         "reported a slot that cannot be: module %" PRIu32 " call %" PRIu32
                         " bucket %" PRIu32 " dtype %d",
                         ready->slot.module, ready->slot.call, ready->slot.bucket,
                         (int)ready->dtype);
        return;
    }
    struct learned_slot *slot = slot_find(&job->learning, &ready->slot);
    if (!slot)
        slot = slot_add(core, job, ready, worker->rank);
    if (!slot) {
        learning_too_many(core, job, worker);
        return;
    }
    if (slot->dtype == DTYPE_NONE) { // Ranks have said that it is granted.
        slot->dtype = ready->dtype;
        slot->elements = ready->elements;
    }
    if (slot->dtype != ready->dtype || slot->elements != ready->elements) {
        learning_slots_differ(core, job, slot, worker, ready);
        return;
    }
    if (slot_made(slot, worker->rank) && (slot->granted || relearn_is_again(worker, ready->step)))
        return;
    if (slot_made(slot, worker->rank)) {
        verdict_protocol(core, worker,
                         "reported module %" PRIu32 " call %" PRIu32 " bucket %" PRIu32
                         " ready twice in step %" PRIu64,
                         ready->slot.module, ready->slot.call, ready->slot.bucket, ready->step);
        return;
    }
    slot_follows(&job->learning, worker, slot);
    bits_add(slot->ready, worker->rank);
    learning_complete(core, job, slot);
}

void learning_end(struct coordinator *core, struct worker *worker, const struct up_end *end)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    const bool enters =
        !relearn_ended(core, worker, end) && learning_enter(core, worker, end->step, end->phase);
    if (worker->back.step <= end->step)
        worker->back.step = 0; // The member has said all again.
    if (!enters || !relearn_holds(core, worker, end))
        return;
    if (plans_open(learning, worker->rank)) {
        verdict_protocol(core, worker, "ended step %" PRIu64 " in the middle of a layout",
                         end->step);
        return;
    }
    worker->ended = true;
    worker->blocked.wait_count = 0;
    learning->ended++;
    for (uint32_t i = 0; i < learning->slot_count; i++)
        if (!slot_made(&learning->slots[i], worker->rank) &&
            !slot_absent(worker, &learning->slots[i].id))
            learning_complete(core, job, &learning->slots[i]);
    if (learning->ended == job->count && learning->entered == job->count)
        publish_plan(core, job);
    else if (job->zero_defer)
        learning_force(core, job);
}

// The message may come when other members are in a learning step already. So a slot may become
// complete now.
void learning_grouped(struct coordinator *core, struct worker *worker,
                      const struct up_modules *modules)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    const uint64_t more = modules->absent & ~worker->absent;
    worker->grouped |= modules->grouped;
    worker->absent |= modules->absent;
    if (!learning->active || worker->ended)
        return;
    for (uint32_t i = 0; i < learning->slot_count; i++) {
        struct learned_slot *slot = &learning->slots[i];
        if ((more >> slot->id.module & 1) != 0 && !slot_made(slot, worker->rank))
            learning_complete(core, job, slot);
    }
}

void learning_wait(struct coordinator *core, struct worker *worker, const struct up_wait *wait)
{
    struct job *job = core_job_of(core, worker);
    if (!learning_enter(core, worker, wait->step, wait->phase))
        return;
    worker->blocked.wait_count = 0;
    if (wait->also_count >= LOCKSTEP_MAX_WAITS) {
        verdict_protocol(core, worker, "waits in %" PRIu64 " threads",
                         (uint64_t)wait->also_count + 1);
        return;
    }
    if (!wait_add(core, worker, &wait->slot))
        return;
    for (uint32_t i = 0; i < wait->also_count; i++)
        if (!wait_add(core, worker, &wait->also[i]))
            return;
    worker->blocked.step = wait->step;
    worker->blocked.space = wait->phase;
    if (wait_over(&job->learning, &worker->blocked))
        worker->blocked.wait_count = 0; // The grant was sent; the member has not received it yet.
    learning_release(core, job);
    if (worker->blocked.wait_count == 0)
        return;
    if (job->zero_defer)
        learning_force(core, job);
    else
        learning_judge(core, job, worker);
}
