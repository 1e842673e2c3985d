// SPDX-License-Identifier: Apache-2.0
//
// Programs of calls, and what must come of them; see sim_calls.h. The fixpoint is the oracle of the
// order protocol: every thread runs until it must wait, every slot that may complete does, until
// nothing moves. The state then is the end of the step, or a deadlock.

#include "tests/sim/sim_calls.h"

#include <string.h>

// ---- Parts -----------------------------------------------------------------------------------

void parts_add(struct parts *parts, uint32_t rank, uint64_t step, uint32_t number)
{
    const uint64_t bit = (rank * (CALLS_STEPS + 1) + step) * CALLS_NUMBERS + number;
    parts->words[bit / 64] |= UINT64_C(1) << bit % 64;
}

void parts_join(struct parts *into, const struct parts *from)
{
    for (uint32_t i = 0; i < sizeof(into->words) / sizeof(into->words[0]); i++)
        into->words[i] |= from->words[i];
}

bool parts_equal(const struct parts *a, const struct parts *b)
{
    return memcmp(a->words, b->words, sizeof(a->words)) == 0;
}

bool calls_wait(const struct calls *calls, uint32_t step)
{
    for (uint32_t rank = 0; rank < calls->world; rank++) {
        for (uint32_t thread = 0; thread < calls->threads; thread++) {
            const struct calls_thread *ops = &calls->at[rank][step].threads[thread];
            for (uint32_t i = 0; i < ops->count; i++)
                if (ops->ops[i].kind == CALLS_WAIT)
                    return true;
        }
    }
    return false;
}

// ---- The fixpoint ----------------------------------------------------------------------------

// A set of slots, one bit each, in the order of module, call number and bucket.
typedef uint32_t slots;

static_assert(CALLS_SLOTS <= 32, "a set of slots is one word");

struct fixpoint {
    const struct calls *calls;
    uint32_t step;
    const struct calls_known *known;
    struct calls_stash *stash;
    uint32_t position[CALLS_WORLD][CALLS_THREADS];
    bool waits[CALLS_WORLD][CALLS_THREADS]; // True if the thread waits at its position.
    bool ended[CALLS_WORLD];
    bool outside[CALLS_WORLD][CALLS_THREADS]; // Waits for a call outside the plan: it cannot end.
    slots ready[CALLS_WORLD]; // Or zero.
    slots given_up[CALLS_WORLD]; // Zero before their call was made.
    slots made[CALLS_WORLD]; // With data.
    struct parts parts[CALLS_WORLD][CALLS_SLOTS]; // Parts of the calls in `made`.
    slots extra; // Outside the plan.
    slots done;
};

static uint32_t slot_index(const struct slot_id *id)
{
    return (id->module * CALLS_NUMBERS + id->call) * CALLS_BUCKETS + id->bucket;
}

static slots slot_bit(const struct slot_id *id)
{
    return (slots)1 << slot_index(id);
}

static slots call_bits(const struct calls *calls, const struct slot_id *call)
{
    slots set = 0;
    for (uint32_t b = 0; b < calls->buckets[call->module]; b++)
        set |= slot_bit(&(struct slot_id){call->module, call->call, b});
    return set;
}

static slots plan_bits(const struct calls_known *known)
{
    slots set = 0;
    for (uint32_t i = 0; i < known->slot_count; i++)
        set |= slot_bit(&known->slots[i]);
    return set;
}

static const struct calls_op *present_op(const struct fixpoint *fix, uint32_t rank, uint32_t thread)
{
    const struct calls_thread *ops = &fix->calls->at[rank][fix->step].threads[thread];
    const uint32_t position = fix->position[rank][thread];
    return position < ops->count ? &ops->ops[position] : NULL;
}

static void put_off(struct fixpoint *fix, uint32_t rank, const struct slot_id *id)
{
    parts_add(&fix->stash->at[rank][id->module][id->bucket], rank, fix->step, id->call);
}

static void make(struct fixpoint *fix, uint32_t rank, const struct slot_id *id)
{
    const slots bit = slot_bit(id);
    const bool planned = fix->known->learning || (plan_bits(fix->known) & bit) != 0;
    struct parts *stash = &fix->stash->at[rank][id->module][id->bucket];
    if ((fix->given_up[rank] & bit) != 0 ||
        (!planned && fix->calls->options.unplanned == UNPLANNED_DEFER)) {
        put_off(fix, rank, id);
        return;
    }
    if (!planned)
        fix->extra |= bit;
    fix->ready[rank] |= bit;
    fix->made[rank] |= bit;
    parts_join(&fix->parts[rank][slot_index(id)], stash);
    parts_add(&fix->parts[rank][slot_index(id)], rank, fix->step, id->call);
    memset(stash, 0, sizeof(*stash));
}

static void give_up(struct fixpoint *fix, uint32_t rank, slots set)
{
    const slots lost = set & ~fix->ready[rank];
    fix->ready[rank] |= lost;
    fix->given_up[rank] |= lost;
}

// The slots that a wait for this call gives up: all slots planned before the call.
static slots planned_before(const struct fixpoint *fix, slots call)
{
    slots before = 0;
    slots all = 0;
    for (uint32_t i = 0; i < fix->known->slot_count; i++) {
        const slots bit = slot_bit(&fix->known->slots[i]);
        all |= bit;
        if ((bit & call) != 0)
            before = all;
    }
    return before & ~call;
}

// True if this thread's wait is over.
static bool wait_ends(struct fixpoint *fix, uint32_t rank, uint32_t thread,
                      const struct slot_id *call)
{
    const slots set = call_bits(fix->calls, call);
    if (!fix->known->learning && (plan_bits(fix->known) & set) == 0) {
        if (fix->calls->options.unplanned == UNPLANNED_DEFER)
            return true;
        fix->outside[rank][thread] = true;
        return false;
    }
    if ((fix->given_up[rank] & set) != 0)
        return true;
    if (!fix->known->learning && fix->calls->options.zero_defer)
        give_up(fix, rank, planned_before(fix, set));
    return (set & ~fix->done) == 0;
}

static bool run_thread(struct fixpoint *fix, uint32_t rank, uint32_t thread)
{
    const uint32_t before = fix->position[rank][thread];
    const struct calls_op *op;
    fix->waits[rank][thread] = false;
    while ((op = present_op(fix, rank, thread))) {
        if (op->kind == CALLS_READY)
            make(fix, rank, &op->slot);
        fix->waits[rank][thread] =
            op->kind == CALLS_WAIT && !wait_ends(fix, rank, thread, &op->slot);
        if (fix->waits[rank][thread])
            break;
        fix->position[rank][thread]++;
    }
    return fix->position[rank][thread] != before;
}

static bool run_rank(struct fixpoint *fix, uint32_t rank)
{
    const slots before = fix->ready[rank];
    bool moved = false;
    bool over = true;
    for (uint32_t thread = 0; thread < fix->calls->threads; thread++) {
        moved |= run_thread(fix, rank, thread);
        over &= !present_op(fix, rank, thread);
    }
    moved |= over && !fix->ended[rank];
    fix->ended[rank] = over;
    return moved || fix->ready[rank] != before;
}

// The slots of the plan that this rank has launched. A rank that pairs by position launches a slot
// only when the slot before it is done.
static slots launched(const struct fixpoint *fix, uint32_t rank)
{
    const bool strict = (fix->calls->strict >> rank & 1) != 0;
    slots set = 0;
    uint32_t low = 0;
    while (low < fix->known->slot_count && (fix->done & slot_bit(&fix->known->slots[low])) != 0)
        low++;
    for (uint32_t i = 0; i < fix->known->slot_count; i++) {
        const slots bit = slot_bit(&fix->known->slots[i]);
        const bool ready = (fix->ready[rank] & bit) != 0 || fix->ended[rank];
        if (i >= low + (strict ? 1 : fix->calls->options.window))
            break;
        set |= ready ? bit : 0;
    }
    return set | fix->done;
}

// In a learning step: the slots that can be granted, because each rank has made them or will not.
static slots grantable(const struct fixpoint *fix, uint32_t rank)
{
    return fix->ended[rank] ? ~(slots)0 : fix->ready[rank];
}

static bool complete(struct fixpoint *fix)
{
    slots all = ~(slots)0;
    slots any = 0;
    for (uint32_t rank = 0; rank < fix->calls->world; rank++) {
        all &= fix->known->learning ? grantable(fix, rank) : launched(fix, rank);
        any |= fix->ready[rank];
    }
    const slots now = all & (fix->known->learning ? any : plan_bits(fix->known)) & ~fix->done;
    fix->done |= now;
    return now != 0;
}

// ---- Deadlocks -------------------------------------------------------------------------------

// True if all threads of the rank wait. outside: all of them must wait for calls outside the plan.
// Without it, at least one must wait for a call of the plan.
static bool rank_blocked(const struct fixpoint *fix, uint32_t rank, bool outside)
{
    bool all_outside = true;
    for (uint32_t thread = 0; thread < fix->calls->threads; thread++) {
        if (!fix->waits[rank][thread])
            return false;
        all_outside &= fix->outside[rank][thread];
    }
    return all_outside == outside;
}

static slots needs(const struct fixpoint *fix, const struct slot_id *call)
{
    const slots set = call_bits(fix->calls, call);
    const uint32_t window = fix->calls->strict != 0 ? 1 : fix->calls->options.window;
    slots needed = set;
    for (uint32_t x = 0; x < fix->known->slot_count; x++) {
        const bool mine = (set & slot_bit(&fix->known->slots[x])) != 0;
        for (uint32_t i = 0; mine && i + window <= x; i++)
            needed |= slot_bit(&fix->known->slots[i]);
    }
    return needed & ~fix->done;
}

// The greatest set of blocked ranks each of whose waits needs what some rank of the set lacks.
static uint32_t deadlocked(const struct fixpoint *fix)
{
    uint32_t set = 0;
    bool again = true;
    for (uint32_t rank = 0; rank < fix->calls->world; rank++)
        set |= (uint32_t)rank_blocked(fix, rank, false) << rank;
    while (again) {
        slots lacking = 0;
        again = false;
        for (uint32_t rank = 0; rank < fix->calls->world; rank++)
            lacking |= (set >> rank & 1) != 0 ? ~fix->ready[rank] : 0;
        for (uint32_t rank = 0; rank < fix->calls->world; rank++) {
            for (uint32_t t = 0; (set >> rank & 1) != 0 && t < fix->calls->threads; t++) {
                if (fix->outside[rank][t] ||
                    (needs(fix, &present_op(fix, rank, t)->slot) & lacking) != 0)
                    continue;
                set &= ~(1u << rank);
                again = true;
            }
        }
    }
    return set;
}

// In a learning step in which no rank moves and zero_defer holds, the smallest slot that a rank
// waits for is granted, and ranks that have not made it give it up. False: some rank is not
// blocked.
static bool force(struct fixpoint *fix)
{
    slots smallest = 0;
    uint32_t least = UINT32_MAX;
    for (uint32_t rank = 0; rank < fix->calls->world; rank++) {
        if (fix->ended[rank])
            continue;
        if (!rank_blocked(fix, rank, false))
            return false;
        const slots waited = call_bits(fix->calls, &present_op(fix, rank, 0)->slot) & ~fix->done;
        const slots lowest = waited & (~waited + 1);
        if (lowest < least)
            least = smallest = lowest;
    }
    for (uint32_t rank = 0; rank < fix->calls->world; rank++)
        if (!fix->ended[rank])
            give_up(fix, rank, smallest);
    return true;
}

// ---- Outcomes --------------------------------------------------------------------------------

static void add_slot(const struct fixpoint *fix, struct calls_outcome *outcome,
                     const struct slot_id *id)
{
    struct calls_slot *slot = &outcome->slots[outcome->slot_count++];
    slot->id = *id;
    for (uint32_t rank = 0; rank < fix->calls->world; rank++)
        if ((fix->made[rank] & slot_bit(id)) != 0)
            parts_join(&slot->parts, &fix->parts[rank][slot_index(id)]);
}

// Slots of a set, by number of the call, module, bucket. Returns how many calls they are.
static uint32_t add_set(const struct fixpoint *fix, struct calls_outcome *outcome, slots set)
{
    uint32_t calls = 0;
    for (uint32_t number = 0; number < CALLS_NUMBERS; number++) {
        for (uint32_t m = 0; m < fix->calls->modules; m++) {
            const struct slot_id first = {m, number, 0};
            const bool has = (set & call_bits(fix->calls, &first)) != 0;
            calls += has;
            for (uint32_t b = 0; has && b < fix->calls->buckets[m]; b++)
                add_slot(fix, outcome, &(struct slot_id){m, number, b});
        }
    }
    return calls;
}

static void outcome_of_success(const struct fixpoint *fix, struct calls_outcome *outcome)
{
    if (fix->known->learning) {
        add_set(fix, outcome, fix->done);
        return;
    }
    for (uint32_t i = 0; i < fix->known->slot_count; i++)
        add_slot(fix, outcome, &fix->known->slots[i]);
    const uint32_t planned = outcome->slot_count;
    const uint32_t extras = add_set(fix, outcome, fix->extra);
    if (extras <= LOCKSTEP_MAX_EXTRA_CALLS &&
        (extras == 0 || fix->calls->options.unplanned == UNPLANNED_EXTEND))
        return;
    outcome->verdicts = 1u << HALT_UNPLANNED;
    outcome->slot_count = planned;
}

static void outcome_of_deadlock(const struct fixpoint *fix, struct calls_outcome *outcome)
{
    for (uint32_t rank = 0; rank < fix->calls->world; rank++)
        if (rank_blocked(fix, rank, true))
            outcome->verdicts |= 1u << HALT_UNPLANNED;
    if (deadlocked(fix) != 0)
        outcome->verdicts |= 1u << HALT_ORDER;
    outcome->hangs = outcome->verdicts == 0;
}

static bool phases_differ(const struct calls *calls, uint32_t step)
{
    for (uint32_t rank = 1; rank < calls->world; rank++)
        if (calls->at[rank][step].phase != calls->at[0][step].phase)
            return true;
    return false;
}

void calls_expect(const struct calls *calls, uint32_t step, const struct calls_known *known,
                  struct calls_stash *stash, struct calls_outcome *outcome)
{
    struct fixpoint fix = {.calls = calls, .step = step, .known = known, .stash = stash};
    bool again = true;
    memset(outcome, 0, sizeof(*outcome));
    // This wins over anything that the ranks of one phase find meanwhile.
    if (phases_differ(calls, step)) {
        outcome->verdicts = 1u << HALT_PHASE | 1u << HALT_ORDER | 1u << HALT_UNPLANNED;
        return;
    }
    while (again) {
        uint32_t ended = 0;
        again = false;
        for (uint32_t rank = 0; rank < calls->world; rank++) {
            again |= run_rank(&fix, rank);
            ended += fix.ended[rank];
        }
        again |= complete(&fix);
        if (again)
            continue;
        if (ended == calls->world)
            outcome_of_success(&fix, outcome);
        else if (known->learning && calls->options.zero_defer && force(&fix))
            again = true;
        else
            outcome_of_deadlock(&fix, outcome);
    }
}
