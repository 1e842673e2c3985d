// SPDX-License-Identifier: Apache-2.0
//
// Receives the layouts that ranks propose, and publishes plans. Runs inside coordinator_step.
//
// Rank 0 proposes the layouts of the modules that all ranks have. One member of a group proposes
// those of the group's modules. The coordinator does not know the members, so it takes the proposal
// of any rank that has the module; the first one counts.
//
// A layout is a list of words: the bucket count k, the k exclusive ends of the buckets (increasing;
// the last end is the number of indices), then the parameter indices, each once. A layout belongs
// to the learning step in which it was proposed, and is forgotten after that step.
//
// A plan is the calls of the learning step in the order of their first grant, each with the
// buckets of its module's layout. Its hash is FNV-1a, 64 bits, over little-endian numbers: the
// phase (8 bytes); for each slot module, call, bucket and algorithm (4 bytes each); then for each
// module, in the order of its first slot, its index, its number of words and its words (4 bytes
// each). Every proposed layout is published before the plan, also the layout of a module that had
// no call: a later call of the module needs it on all ranks.
//
// A plan may be replaced by a plan of the same phase with its calls in another order, or with more
// calls, when several steps of a rank differ from it in the same way (order protocol, R13). The
// coordinator does not keep the slots of a plan. It does not need them, because the worker sends
// the calls of the new plan, and the coordinator knows the number of buckets of each module. The
// hash of the new plan starts from the hash of the plan that it replaces. A rank can keep only one
// plan that is not in force yet, so the last new plan must be in force on all ranks first, or be
// dropped by all. The worker's message proves that: the worker has settled a step with that plan,
// or has a later plan from a learning step. If ranks wait in opposite orders, no order suits both,
// so the number of replacements is limited.

#include "coordinator/publish.h"

#include "base/bits.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/hash.h"
#include "coordinator/job.h"
#include "coordinator/names.h"
#include "coordinator/plans.h"
#include "coordinator/relearn.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "coordinator/verify.h"

// ---- Layouts ---------------------------------------------------------------------------------

static uint32_t layout_buckets(const struct learning *learning, const struct layout *layout)
{
    return learning->words[layout->offset];
}

// Returns what is wrong with a complete layout, or NULL.
static const char *layout_fault(const uint32_t *words, uint32_t total)
{
    uint64_t seen[LOCKSTEP_MAX_PARAMETERS / 64] = {0};
    const uint32_t buckets = words[0];
    if (buckets > LOCKSTEP_MAX_BUCKETS || buckets > total - 1)
        return "has more buckets than words";
    const uint32_t indices = total - 1 - buckets;
    uint32_t end = 0;
    for (uint32_t i = 0; i < buckets; i++) {
        if (words[1 + i] <= end || words[1 + i] > indices)
            return "has bucket ends that do not grow to the number of its parameters";
        if (words[1 + i] - end > LOCKSTEP_BUCKET_PARAMETERS)
            return "has a bucket with more parameters than the limit";
        end = words[1 + i];
    }
    if (end != indices)
        return "has parameters outside its buckets";
    for (uint32_t i = 0; i < indices; i++) {
        const uint32_t index = words[1 + buckets + i];
        if (index >= LOCKSTEP_MAX_PARAMETERS)
            return "has a parameter index above the limit";
        if (bits_has(seen, index))
            return "has a parameter twice";
        bits_add(seen, index);
    }
    return NULL;
}

// Returns what is wrong with a part of a layout, or NULL.
static const char *layout_part_fault(const struct learning *learning, uint32_t rank,
                                     const struct layout_part *part)
{
    if (part->module >= LOCKSTEP_MAX_MODULES)
        return "is of a module above the limit";
    const struct layout *layout = &learning->layouts[part->module];
    if (part->count == 0 || part->count > LOCKSTEP_LAYOUT_PART)
        return "has an impossible number of words";
    const bool begun = layout->received < layout->total && layout->proposer == rank;
    if (!begun && plans_open(learning, rank))
        return "begins in the middle of another one";
    if (layout->total != 0 && !begun)
        return "was proposed already";
    if (layout->total != 0 && layout->total != part->total)
        return "changes its size";
    if (part->first != layout->received)
        return "does not go on where the last part ended";
    if (part->total > LOCKSTEP_MAX_LAYOUT_WORDS || part->total - part->first < part->count ||
        part->total < part->first)
        return "has more words than it announces";
    if (layout->total == 0 && part->total > LOCKSTEP_MAX_LAYOUT_WORDS - learning->word_count)
        return "does not fit beside the other layouts";
    return NULL;
}

static void layout_append(struct learning *learning, uint32_t rank, const struct layout_part *part)
{
    struct layout *layout = &learning->layouts[part->module];
    if (layout->total == 0) {
        layout->total = part->total;
        layout->proposer = rank;
        layout->offset = learning->word_count;
        learning->word_count += part->total;
    }
    memcpy(&learning->words[layout->offset + part->first], part->words,
           part->count * sizeof(part->words[0]));
    layout->received += part->count;
}

// True if the worker may propose a layout of the module.
static bool layout_is_of(const struct worker *worker, const struct layout_part *part)
{
    const bool grouped =
        part->module < LOCKSTEP_MAX_MODULES && (worker->grouped >> part->module & 1) != 0;
    return grouped ? (worker->absent >> part->module & 1) == 0 : worker->rank == 0;
}

// True if the member has come back in this step, and says this part again.
static bool publish_has(const struct worker *worker, const struct learning *learning,
                        const struct layout_part *part)
{
    const struct layout *layout =
        part->module < LOCKSTEP_MAX_MODULES ? &learning->layouts[part->module] : NULL;
    return layout && worker->back.step != 0 && layout->proposer == worker->rank &&
           part->total == layout->total && part->first + part->count <= layout->received;
}

void publish_layout(struct coordinator *core, struct worker *worker, const struct layout_part *part)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    if (job->state == JOB_STARTING && layout_is_of(worker, part)) {
        verify_parted(core, worker);
        return;
    }
    if (relearn_is_known(learning, worker))
        return;
    if (relearn_is_later(learning, worker))
        relearn_overtaken(learning);
    if (!layout_is_of(worker, part) || (learning->active && worker->ended)) {
        verdict_protocol(core, worker,
                         "proposed a layout, which only rank 0 does, and only before "
                         "it ends a learning step");
        return;
    }
    // The kept layouts belong to a step that is over. Another rank may have proposed them, which
    // had this number before a death.
    if (learning->kept)
        plans_forget(learning);
    if (publish_has(worker, learning, part))
        return;
    const char *fault = layout_part_fault(learning, worker->rank, part);
    if (!fault) {
        layout_append(learning, worker->rank, part);
        const struct layout *layout = &learning->layouts[part->module];
        if (layout->received == layout->total)
            fault = layout_fault(&learning->words[layout->offset], layout->total);
    }
    if (fault)
        verdict_protocol(core, worker, "proposed a layout of module %" PRIu32 " that %s",
                         part->module, fault);
}

static void layout_send(struct coordinator *core, const struct job *job,
                        const struct worker *worker, uint32_t module)
{
    const struct layout *layout = &job->learning.layouts[module];
    for (uint32_t first = 0; first < layout->total; first += LOCKSTEP_LAYOUT_PART) {
        struct layout_part *part = &core_message(core, job, DOWN_LAYOUT_PART)->u.layout_part;
        const uint32_t rest = layout->total - first;
        part->module = module;
        part->total = layout->total;
        part->first = first;
        part->count = rest < LOCKSTEP_LAYOUT_PART ? rest : LOCKSTEP_LAYOUT_PART;
        memcpy(part->words, &job->learning.words[layout->offset + first],
               part->count * sizeof(part->words[0]));
        core_send(core, worker);
    }
}

// ---- Plans -----------------------------------------------------------------------------------

struct plan {
    uint64_t phase;
    uint64_t number;
    uint64_t replaces; // Number of the plan that it replaces; 0: it comes from a learning step.
    uint64_t hash;
    uint32_t count;
    struct plan_slot *slots;
};

static void plan_add_buckets(struct plan *plan, struct call_id call, uint32_t buckets)
{
    for (uint32_t bucket = 0; bucket < buckets; bucket++) {
        const struct plan_slot slot = {
            .id = {.module = call.module, .call = call.call, .bucket = bucket},
            .algorithm = ALGORITHM_BY_SIZE,
        };
        plan->slots[plan->count++] = slot;
    }
}

static void plan_fault(struct coordinator *core, struct job *job, enum halt_kind kind,
                       const char *what, uint32_t number)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "step %" PRIu64 " cannot become a plan: ", job->learning.step);
    text_append(&sentence, "%s %" PRIu32, what, number);
    const struct verdict verdict = {.kind = kind, .step = job->learning.step, .text = text};
    verdict_halt(core, job, &verdict);
}

// Appends the buckets of a call. Returns false if the call cannot be planned; then a verdict was
// made.
static bool plan_add_call(struct coordinator *core, struct job *job, const struct slot_id *id,
                          struct plan *plan)
{
    const struct learning *learning = &job->learning;
    const struct layout *layout = &learning->layouts[id->module];
    if (layout->total == 0) {
        plan_fault(core, job, HALT_LAYOUT, "rank 0 proposed no bucket layout for module",
                   id->module);
        return false;
    }
    const uint32_t buckets = layout_buckets(learning, layout);
    if (plan->count + buckets > LOCKSTEP_MAX_SLOTS) {
        plan_fault(core, job, HALT_LIMIT,
                   "each bucket counts once for each separate call, and its calls have more "
                   "buckets than the limit of",
                   LOCKSTEP_MAX_SLOTS);
        return false;
    }
    plan_add_buckets(plan, (struct call_id){id->module, id->call}, buckets);
    return true;
}

// False if only ranks have made the slot that were lost: such a rank may have ended in the middle
// of the call.
static bool plan_wants(const struct learned_slot *slot)
{
    uint64_t any = 0;
    for (uint32_t word = 0; word < CORE_RANK_WORDS; word++)
        any |= slot->ready[word];
    return any != 0;
}

static bool plan_collect(struct coordinator *core, struct job *job, struct plan *plan)
{
    const struct learning *learning = &job->learning;
    uint64_t seen[LOCKSTEP_MAX_MODULES * LOCKSTEP_MAX_CALLS / 64] = {0};
    for (uint32_t i = 0; i < learning->grant_count; i++) {
        const struct learned_slot *slot = &learning->slots[learning->grants[i]];
        const struct slot_id *id = &slot->id;
        if (!plan_wants(slot))
            continue;
        const uint32_t call = id->module * LOCKSTEP_MAX_CALLS + id->call;
        if (bits_has(seen, call))
            continue;
        bits_add(seen, call);
        if (!plan_add_call(core, job, id, plan))
            return false;
    }
    return true;
}

static uint64_t plan_hash_layout(const struct learning *learning, uint64_t hash, uint32_t module)
{
    const struct layout *layout = &learning->layouts[module];
    hash = hash_number(hash, module, 4);
    hash = hash_number(hash, layout->total, 4);
    for (uint32_t i = 0; i < layout->total; i++)
        hash = hash_number(hash, learning->words[layout->offset + i], 4);
    return hash;
}

static uint64_t plan_hash_slots(const struct plan *plan, uint64_t hash)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct plan_slot *slot = &plan->slots[i];
        hash = hash_number(hash, slot->id.module, 4);
        hash = hash_number(hash, slot->id.call, 4);
        hash = hash_number(hash, slot->id.bucket, 4);
        hash = hash_number(hash, slot->algorithm, 4);
    }
    return hash;
}

static uint64_t plan_hash(const struct learning *learning, const struct plan *plan)
{
    bool seen[LOCKSTEP_MAX_MODULES] = {false};
    uint64_t hash = plan_hash_slots(plan, hash_number(HASH_START, plan->phase, 8));
    for (uint32_t i = 0; i < plan->count; i++) {
        const uint32_t module = plan->slots[i].id.module;
        if (!seen[module])
            hash = plan_hash_layout(learning, hash, module);
        seen[module] = true;
    }
    return hash;
}

static void plan_send(struct coordinator *core, const struct job *job, const struct worker *worker,
                      const struct plan *plan)
{
    uint32_t first = 0;
    do {
        struct down_plan_part *part = &core_message(core, job, DOWN_PLAN_PART)->u.plan_part;
        const uint32_t rest = plan->count - first;
        part->number = plan->number;
        part->phase = plan->phase;
        part->hash = plan->hash;
        part->replaces = plan->replaces;
        part->closes_step = plan->replaces == 0;
        part->step = part->closes_step ? job->learning.step : 0;
        part->slot_total = plan->count;
        part->slot_first = first;
        part->slot_count = rest < LOCKSTEP_PLAN_PART ? rest : LOCKSTEP_PLAN_PART;
        memcpy(part->slots, &plan->slots[first], part->slot_count * sizeof(part->slots[0]));
        first += part->slot_count;
        part->last = first == plan->count;
        part->strict = job->strict;
        core_send(core, worker);
    } while (first < plan->count);
}

// Returns the last plan of a phase, or NULL if it is not known.
static struct published *published_find(struct learning *learning, uint64_t phase)
{
    for (uint32_t i = 0; i < learning->published_count; i++)
        if (learning->published[i].phase == phase)
            return &learning->published[i];
    return NULL;
}

// Returns the entry for a newly learned plan: that of the last plan of its phase, a free entry, or
// that of the oldest plan.
static struct published *published_place(struct learning *learning, uint64_t phase)
{
    struct published *oldest = &learning->published[0];
    struct published *known = published_find(learning, phase);
    if (known)
        return known;
    if (learning->published_count < LOCKSTEP_MAX_PLANS)
        return &learning->published[learning->published_count++];
    for (uint32_t i = 1; i < LOCKSTEP_MAX_PLANS; i++)
        if (learning->published[i].number < oldest->number)
            oldest = &learning->published[i];
    return oldest;
}

static void published_learned(struct learning *learning, const struct plan *plan)
{
    struct published *published = published_place(learning, plan->phase);
    *published = (struct published){
        .phase = plan->phase, .number = plan->number, .before = plan->number, .hash = plan->hash};
    for (uint32_t module = 0; module < LOCKSTEP_MAX_MODULES; module++) {
        const struct layout *layout = &learning->layouts[module];
        if (layout->total != 0)
            published->buckets[module] = (uint16_t)layout_buckets(learning, layout);
    }
}

// Sends the plan of the learning step, with the layouts.
static void publish_to(struct coordinator *core, const struct job *job, const struct worker *worker,
                       const struct plan *plan)
{
    for (uint32_t module = 0; module < LOCKSTEP_MAX_MODULES; module++)
        if (job->learning.layouts[module].total != 0)
            layout_send(core, job, worker, module);
    plan_send(core, job, worker, plan);
}

// Makes the verdict on ranks of which one holds a plan that does not follow from what all say.
static void publish_differs(struct coordinator *core, struct job *job)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, job_worker(core, job, job->learning.decided_rank));
    text_append(&sentence,
                " holds a plan of step %" PRIu64
                ", from a coordinator that was lost, which does not follow from what the ranks "
                "say of that step now",
                job->learning.step);
    const struct verdict verdict = {
        .kind = HALT_PROTOCOL, .step = job->learning.step, .text = text};
    verdict_halt(core, job, &verdict);
}

void publish_plan(struct coordinator *core, struct job *job)
{
    struct learning *learning = &job->learning;
    struct plan plan = {.phase = learning->phase,
                        .number = learning->decided_number != 0 ? learning->decided_number
                                                                : learning->plan_number + 1,
                        .slots = core->plan};
    if (!plan_collect(core, job, &plan))
        return;
    plan.hash = plan_hash(learning, &plan);
    if (learning->decided_number != 0 && learning->decided_hash != plan.hash) {
        publish_differs(core, job);
        return;
    }
    if (learning->plan_number < plan.number)
        learning->plan_number = plan.number;
    for (uint32_t i = 0; i < job->count; i++)
        if (!job_worker(core, job, i)->holds)
            publish_to(core, job, job_worker(core, job, i), &plan);
    published_learned(learning, &plan);
    learning->decided_number = plan.number;
    learning->decided_hash = plan.hash;
    learning->active = false;
    learning->kept = true;
    learning->last_step = learning->step;
    core_log(core, "plan_published",
             "job=%s generation=%" PRIu64 " plan=%" PRIu64 " step=%" PRIu64 " slots=%" PRIu32
             " hash=%016" PRIx64,
             job->name, job->number, plan.number, learning->step, plan.count, plan.hash);
}

void publish_missed(struct coordinator *core, struct job *job, const struct worker *worker)
{
    const struct learning *learning = &job->learning;
    struct plan plan = {.phase = learning->phase,
                        .number = learning->decided_number,
                        .hash = learning->decided_hash,
                        .slots = core->plan};
    if (plan_collect(core, job, &plan))
        publish_to(core, job, worker, &plan);
}

// ---- New plans of a phase --------------------------------------------------------------------

// Returns what is wrong with the calls of a proposed plan, or NULL.
static const char *replan_fault(const struct up_replan *replan, const struct published *published)
{
    uint64_t seen[LOCKSTEP_MAX_MODULES * LOCKSTEP_MAX_CALLS / 64] = {0};
    uint32_t slots = 0;
    if (replan->call_count == 0 || replan->call_count > LOCKSTEP_REPLAN_CALLS)
        return "has an impossible number of calls";
    for (uint32_t i = 0; i < replan->call_count; i++) {
        const struct call_id *id = &replan->calls[i];
        if (id->module >= LOCKSTEP_MAX_MODULES || id->call >= LOCKSTEP_MAX_CALLS ||
            published->buckets[id->module] == 0)
            return "has a call that cannot be";
        const uint32_t call = id->module * LOCKSTEP_MAX_CALLS + id->call;
        if (bits_has(seen, call))
            return "has a call twice";
        bits_add(seen, call);
        slots += published->buckets[id->module];
        if (slots > LOCKSTEP_MAX_SLOTS)
            return "has more slots than there may be";
    }
    return NULL;
}

void publish_again(struct coordinator *core, struct worker *worker, const struct up_replan *replan)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    struct published *published = published_find(learning, replan->phase);
    // Another rank may have proposed it first, or a new round has forgotten the plans of this
    // phase. If the last new plan is not in force although later ones are, all ranks dropped it.
    const bool dropped =
        published && published->before == replan->replaces && published->number <= replan->in_force;
    if (job->state != JOB_RUNNING || !published ||
        (published->number != replan->replaces && !dropped) ||
        published->times == LOCKSTEP_REPLAN_TIMES || replan->in_force < learning->republished)
        return;
    const char *fault = replan_fault(replan, published);
    if (fault) {
        verdict_protocol(core, worker, "wants a plan that %s", fault);
        return;
    }
    struct plan plan = {.phase = replan->phase,
                        .number = learning->plan_number + 1,
                        .replaces = replan->replaces,
                        .slots = core->plan};
    for (uint32_t i = 0; i < replan->call_count; i++)
        plan_add_buckets(&plan, replan->calls[i], published->buckets[replan->calls[i].module]);
    plan.hash = plan_hash_slots(&plan, hash_number(HASH_START, published->hash, 8));
    learning->plan_number = learning->republished = published->number = plan.number;
    published->before = plan.replaces;
    published->hash = plan.hash;
    published->times++;
    for (uint32_t i = 0; i < job->count; i++)
        plan_send(core, job, job_worker(core, job, i), &plan);
    core_log(core, "plan_published",
             "job=%s generation=%" PRIu64 " plan=%" PRIu64 " replaces=%" PRIu64 " rank=%" PRIu32
             " slots=%" PRIu32 " hash=%016" PRIx64,
             job->name, job->number, plan.number, plan.replaces, worker->rank, plan.count,
             plan.hash);
}
