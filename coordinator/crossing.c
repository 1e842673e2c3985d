// SPDX-License-Identifier: Apache-2.0
//
// Finds ranks that wait in different functions, so that none of them can go on. The search uses
// only the heartbeats (struct await). Runs inside coordinator_step.
//
// Words. A *party* is a rank whose heartbeat says that its only trainer thread is blocked. A party
// waits for a *key*: something that every rank must do before the wait can end, such as "end step
// 60" or "begin use 1 of the collective 'epoch'". The key of a group's collective concerns only the
// members of the group. A party *lacks* a key if the key concerns it, it was asked about the key,
// and it has not done it. The *crossing* is the largest set of parties in which the key of every
// party is lacked by some party of the set.
//
// No party of a crossing ever goes on. Proof: let r be the first party that goes on. Some party q
// of the crossing lacked the key of r while q was blocked in the reported wait, and has done it
// since. A blocked rank does nothing, so q went on before r, which contradicts that r was the
// first. The heartbeats may be old, and may be from different moments. The proof needs three
// properties of a worker (worker/session/await.h): its key and lacks are from one moment inside the
// wait, only one thread of the trainer does the things that keys name, and the worker does not
// report a wait that may end by its timeout.
//
// Under LOCKSTEP_ORDER_ZERO_DEFER a rank that waits for a call gives up calls that it has not made,
// so other ranks go on without them. So such a rank reports no call as lacking (await_call_lacks).
// Its other lacks count as always. A rank that is blocked in any other function gives up nothing.
//
// A heartbeat changes only its own party. When a second key comes into use, the coordinator asks
// all ranks which of the keys they lack. The ranks answer with their next heartbeat, which blocked
// ranks send at once.
//
// A crossing is HALT_ORDER for all ranks: at once if all ranks are blocked, else LOCKSTEP_AWAIT_MS
// later, so that the sentence names the ranks that become blocked in that time, too.

#include "coordinator/crossing.h"

#include "coordinator/awaited.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/names.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

#define CROSSING_RANKS 8 // Ranks of one group that the sentence names.
#define CROSSING_GROUPS 6 // Groups of ranks that the sentence describes.

// ---- Keys --------------------------------------------------------------------------------------

// Returns the index of a key in crossing->keys; LOCKSTEP_MAX_AWAITED: the key is not there.
static uint32_t crossing_key(const struct crossing *crossing, const struct await_key *key)
{
    uint32_t i = 0;
    while (i < LOCKSTEP_MAX_AWAITED && !await_key_equal(&crossing->keys[i], key))
        i++;
    return i;
}

// Returns the index of a key, and stores a new key at a free index. The lacks that parties reported
// of the old key at that index are forgotten. LOCKSTEP_MAX_AWAITED: no index is free.
static uint32_t crossing_place(struct coordinator *core, struct job *job, const struct await *await)
{
    struct crossing *crossing = &job->crossing;
    const struct await_key *key = &await->key;
    uint32_t place = crossing_key(crossing, key);
    if (place < LOCKSTEP_MAX_AWAITED)
        return place;
    place = 0;
    while (place < LOCKSTEP_MAX_AWAITED && crossing->users[place] > 0)
        place++;
    if (place == LOCKSTEP_MAX_AWAITED)
        return place;
    crossing->keys[place] = *key;
    memcpy(crossing->members[place], await->members, sizeof(crossing->members[place]));
    for (uint32_t i = 0; i < job->count; i++)
        job_worker(core, job, i)->lacks &= ~(UINT32_C(1) << place);
    return place;
}

static uint32_t crossing_keys_in_use(const struct crossing *crossing)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_AWAITED; i++)
        count += crossing->users[i] > 0;
    return count;
}

static void crossing_query(struct coordinator *core, const struct job *job)
{
    const struct crossing *crossing = &job->crossing;
    struct down_query *query = &core_message(core, job, DOWN_QUERY)->u.query;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_AWAITED; i++) {
        if (crossing->users[i] > 0)
            query->keys[query->key_count++] = crossing->keys[i];
    }
    core_send_all(core, job);
}

// ---- Parties -----------------------------------------------------------------------------------

static bool crossing_is_party(const struct worker *worker)
{
    return worker->awaits != 0 && !worker->left && worker->connected;
}

void crossing_forget(struct job *job, struct worker *worker)
{
    if (worker->awaits != 0)
        job->crossing.users[worker->awaits - 1]--;
    worker->awaits = 0;
    worker->lacks = 0;
}

// Makes the worker a party. Returns true if no other party waits for the same key.
static bool crossing_take(struct coordinator *core, struct job *job, struct worker *worker)
{
    const uint32_t place = crossing_place(core, job, &worker->heartbeat.await);
    if (place == LOCKSTEP_MAX_AWAITED)
        return false; // The table of keys is full: the worker does not become a party.
    worker->awaits = place + 1;
    return job->crossing.users[place]++ == 0;
}

static uint32_t crossing_lacks(const struct crossing *crossing, const struct worker *worker)
{
    const struct await *await = &worker->heartbeat.await;
    uint32_t lacks = 0;
    for (uint32_t i = 0; i < await->lack_count; i++) {
        const uint32_t place = crossing_key(crossing, &await->lacks[i]);
        if (place < LOCKSTEP_MAX_AWAITED && awaited_member(crossing->members[place], worker->rank))
            lacks |= UINT32_C(1) << place;
    }
    return lacks;
}

// ---- The search --------------------------------------------------------------------------------

// A set of parties.
struct crossing_set {
    uint32_t count;
    bool in[LOCKSTEP_MAX_WORLD]; // By rank: true if the rank is in the set.
    uint32_t lackers[LOCKSTEP_MAX_AWAITED]; // By key: number of parties in the set that lack it.
};

static void crossing_count(struct crossing_set *set, const struct worker *worker, bool in)
{
    for (uint32_t bits = worker->lacks; bits != 0; bits &= bits - 1)
        set->lackers[__builtin_ctz(bits)] += in ? 1u : UINT32_MAX;
    set->count += in ? 1u : UINT32_MAX;
}

// True if some party of the set lacks the worker's key. A broadcast that the library makes waits
// only for its root.
static bool crossing_holds(struct coordinator *core, const struct job *job,
                           const struct crossing_set *set, const struct worker *worker)
{
    const struct await *await = &worker->heartbeat.await;
    const uint32_t key = worker->awaits - 1;
    if (!await->rooted)
        return set->lackers[key] > 0;
    return await->root < job->count && set->in[await->root] &&
           (job_worker(core, job, await->root)->lacks >> key & 1) != 0;
}

static bool crossing_find(struct coordinator *core, const struct job *job, struct crossing_set *set)
{
    bool changed = true;
    memset(set, 0, sizeof(*set));
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        set->in[i] = crossing_is_party(worker);
        if (set->in[i])
            crossing_count(set, worker, true);
    }
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < job->count; i++) {
            const struct worker *worker = job_worker(core, job, i);
            if (!set->in[i] || crossing_holds(core, job, set, worker))
                continue;
            set->in[i] = false;
            crossing_count(set, worker, false);
            changed = true;
        }
    }
    return set->count > 0;
}

// ---- The sentence ------------------------------------------------------------------------------

static bool crossing_alike(const struct worker *a, const struct worker *b)
{
    const struct await *p = &a->heartbeat.await;
    const struct await *q = &b->heartbeat.await;
    const bool named = p->name[0] != '\0' || p->key.kind != AWAIT_COLLECTIVE;
    return p->function == q->function && p->module == q->module && p->step == q->step &&
           p->open == q->open && strcmp(p->name, q->name) == 0 &&
           strcmp(p->detail, q->detail) == 0 && (!named || await_key_equal(&p->key, &q->key));
}

struct crossing_group {
    const struct worker *first;
    uint32_t count;
};

// Groups the ranks that wait in the same function for the same thing; small groups come first.
// Returns the number of groups.
static uint32_t crossing_groups(struct coordinator *core, const struct job *job,
                                const struct crossing_set *set,
                                struct crossing_group groups[CROSSING_GROUPS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        uint32_t g = 0;
        if (!set->in[i])
            continue;
        while (g < count && !crossing_alike(groups[g].first, worker))
            g++;
        if (g == CROSSING_GROUPS)
            continue;
        if (g == count)
            groups[count++] = (struct crossing_group){.first = worker};
        groups[g].count++;
    }
    for (uint32_t i = 1; i < count; i++) {
        const struct crossing_group group = groups[i];
        uint32_t at = i;
        for (; at > 0 && groups[at - 1].count > group.count; at--)
            groups[at] = groups[at - 1];
        groups[at] = group;
    }
    return count;
}

// Adds "rank 2" or "ranks 0, 1, 3": the ranks of the set that wait like `like`, or, if like is
// NULL, the ranks that lack key `lacked`. Returns their number.
static uint32_t crossing_ranks(struct coordinator *core, struct text *sentence,
                               const struct job *job, const struct crossing_set *set,
                               const struct worker *like, uint32_t lacked)
{
    uint32_t count = 0;
    uint32_t ranks[CROSSING_RANKS];
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (!set->in[i] ||
            (like ? !crossing_alike(like, worker) : (worker->lacks >> lacked & 1) == 0))
            continue;
        if (count < CROSSING_RANKS)
            ranks[count] = i;
        count++;
    }
    for (uint32_t i = 0; i < count && i < CROSSING_RANKS; i++)
        text_append(sentence, "%s%" PRIu32,
                    i > 0        ? ", "
                    : count == 1 ? "rank "
                                 : "ranks ",
                    ranks[i]);
    if (count > CROSSING_RANKS)
        text_append(sentence, " and %" PRIu32 " more", count - CROSSING_RANKS);
    return count;
}

// Adds "lockstep_barrier 'epoch' (use 1) after step 59".
static void crossing_where(struct text *sentence, const struct job *job, const struct await *await)
{
    char name[LOCKSTEP_NAME_BYTES];
    char detail[LOCKSTEP_DETAIL_BYTES];
    sentence_clean(name, sizeof(name), await->name, sizeof(await->name));
    sentence_clean(detail, sizeof(detail), await->detail, sizeof(await->detail));
    text_append(sentence, "lockstep_%s", api_function_name(await->function));
    if (await->key.kind == AWAIT_STEP || await->key.kind == AWAIT_OPENING) {
        text_append(sentence, " of step %" PRIu64, await->key.number);
        return;
    }
    if (await->function == API_CALL_WAIT) {
        text_append(sentence, " of ");
        core_call_name(
            sentence, job,
            (struct call_id){.module = await->module, .call = (uint32_t)(await->key.space >> 32)});
    } else if (await->module < LOCKSTEP_MAX_MODULES) {
        text_append(sentence, " of ");
        core_module_name(sentence, job, await->module);
    }
    if (name[0] != '\0')
        text_append(sentence, " '%s' (use %" PRIu64 "%s%s)", name, await->key.number + 1,
                    detail[0] != '\0' ? ", " : "", detail);
    if (await->open)
        text_append(sentence, " in step %" PRIu64, await->step);
    else if (await->step > 0)
        text_append(sentence, " after step %" PRIu64, await->step);
    else
        text_append(sentence, " before the first step");
}

static const char *crossing_not_done(struct coordinator *core, const struct job *job,
                                     const struct crossing_set *set, const struct await *await,
                                     uint32_t key)
{
    bool begun = false;
    switch (await->key.kind) {
    case AWAIT_STEP:
        for (uint32_t i = 0; i < job->count; i++) {
            const struct worker *worker = job_worker(core, job, i);
            if (set->in[i] && (worker->lacks >> key & 1) != 0 &&
                worker->heartbeat.await.step >= await->key.number)
                begun = true;
        }
        return begun ? "ended" : "begun";
    case AWAIT_OPENING:
        return "begun";
    case AWAIT_CALL:
        return "made";
    case AWAIT_START:
    case AWAIT_COLLECTIVE:
    case AWAIT_NONE:
        break;
    }
    return "called";
}

// Returns the number of blocked ranks that are not in the groups, which are the first `count`
// groups that the sentence describes.
static uint32_t crossing_unnamed(struct coordinator *core, const struct job *job,
                                 const struct crossing_group *groups, uint32_t count)
{
    uint32_t unnamed = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        unnamed +=
            worker->connected && !worker->left && worker->heartbeat.await.key.kind != AWAIT_NONE;
    }
    for (uint32_t g = 0; g < count; g++)
        unnamed -= groups[g].count;
    return unnamed;
}

static void crossing_halt(struct coordinator *core, struct job *job, const struct crossing_set *set)
{
    struct crossing_group groups[CROSSING_GROUPS];
    const uint32_t count = crossing_groups(core, job, set, groups);
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    uint64_t settled = UINT64_MAX;
    text_init(&sentence, text, sizeof(text));
    for (uint32_t g = 0; g < count; g++) {
        const struct worker *first = groups[g].first;
        const struct await *await = &first->heartbeat.await;
        const uint32_t ranks = crossing_ranks(core, &sentence, job, set, first, 0);
        text_append(&sentence, " wait%s in ", ranks == 1 ? "s" : "");
        crossing_where(&sentence, job, await);
        if (g > 0) {
            text_append(&sentence, ", which ");
            const uint32_t lackers =
                crossing_ranks(core, &sentence, job, set, NULL, first->awaits - 1);
            text_append(&sentence, " ha%s not %s", lackers == 1 ? "s" : "ve",
                        crossing_not_done(core, job, set, await, first->awaits - 1));
        }
        text_append(&sentence, "; ");
    }
    const uint32_t unnamed =
        count == CROSSING_GROUPS ? crossing_unnamed(core, job, groups, count) : 0;
    if (unnamed > 0)
        text_append(&sentence, "%" PRIu32 " more rank%s in other calls; ", unnamed,
                    unnamed == 1 ? " waits" : "s wait");
    text_append(&sentence, "call these functions in the same order on every rank");
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (set->in[i] && worker->heartbeat.settled < settled)
            settled = worker->heartbeat.settled;
    }
    const struct verdict verdict = {.kind = HALT_ORDER, .step = settled + 1, .text = text};
    job->crossing.due_ms = 0;
    verdict_halt(core, job, &verdict);
}

// ---- Facts -------------------------------------------------------------------------------------

static bool crossing_all_wait(struct coordinator *core, const struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (!worker->left && !crossing_is_party(worker))
            return false;
    }
    return true;
}

static void crossing_judge(struct coordinator *core, struct job *job)
{
    struct crossing *crossing = &job->crossing;
    struct crossing_set set;
    if (crossing_keys_in_use(crossing) < 2 || !crossing_find(core, job, &set)) {
        crossing->due_ms = 0;
        return;
    }
    if (crossing->due_ms == 0)
        crossing->due_ms = core->now + LOCKSTEP_AWAIT_MS;
    if (core->now >= crossing->due_ms || crossing_all_wait(core, job))
        crossing_halt(core, job, &set);
}

void crossing_heartbeat(struct coordinator *core, struct worker *worker, const struct await *last)
{
    struct job *job = core_job_of(core, worker);
    const struct await *await = &worker->heartbeat.await;
    bool changed = false;
    if (!await_key_equal(&await->key, &last->key) || worker->left) {
        crossing_forget(job, worker);
        changed = true;
    }
    if (await->key.kind == AWAIT_NONE || worker->left)
        return;
    if (worker->awaits == 0 && crossing_take(core, job, worker) &&
        crossing_keys_in_use(&job->crossing) >= 2)
        crossing_query(core, job);
    const uint32_t lacks = crossing_lacks(&job->crossing, worker);
    changed = changed || lacks != worker->lacks;
    worker->lacks = lacks;
    if (changed)
        crossing_judge(core, job);
}

void crossing_tick(struct coordinator *core, struct job *job)
{
    if (job_running(job) && job->crossing.due_ms != 0 && core->now >= job->crossing.due_ms)
        crossing_judge(core, job);
}

uint64_t crossing_deadline(const struct job *job)
{
    return job_running(job) && job->crossing.due_ms != 0 ? job->crossing.due_ms : UINT64_MAX;
}

void crossing_reset(struct job *job)
{
    memset(&job->crossing, 0, sizeof(job->crossing));
}
