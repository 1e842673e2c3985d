// SPDX-License-Identifier: Apache-2.0
//
// The book of a world of worker cores and its checks; see sim_ledger.h.

#include "tests/sim/sim_ledger.h"

#include "worker/order/plan.h"

#include <inttypes.h>
#include <string.h>

static uint32_t everybody(const struct ledger *ledger)
{
    return (1u << ledger->program->world) - 1;
}

static bool same_slot(const struct slot_id *a, const struct slot_id *b)
{
    return a->module == b->module && a->call == b->call && a->bucket == b->bucket;
}

void ledger_begin(struct ledger *ledger, struct sim *sim, const struct program *program)
{
    memset(ledger, 0, sizeof(*ledger));
    ledger->sim = sim;
    ledger->program = program;
    if (!program->has_calls)
        program_expect(program, ledger->outcomes);
}

void ledger_joined(struct ledger *ledger, uint32_t rank, const struct order *order,
                   const struct calls_run *run)
{
    ledger->ranks[rank].order = order;
    ledger->ranks[rank].run = run;
}

static struct ledger_step *step_of(struct ledger *ledger, uint32_t rank)
{
    const uint64_t step = ledger->ranks[rank].order->step;
    return &ledger->steps[step][ledger->program->at[rank][step].phase];
}

// ---- Opening ---------------------------------------------------------------------------------

void ledger_opened(struct ledger *ledger, uint32_t rank, uint64_t step,
                   const struct open_wave *result)
{
    const struct program *program = ledger->program;
    uint32_t exhausted = 0;
    uint32_t first = OPEN_NOBODY;
    for (uint32_t other = program->world; other-- > 0;) {
        if (program->data_of[other] < step)
            exhausted++;
        else
            first = other;
        // A rank that closes instead of beginning the step is in no wave of it.
        if (ledger->ranks[other].settled + 1 < step)
            sim_fail(ledger->sim, "step %" PRIu64 " is open, but rank %" PRIu32 " has not come",
                     step, other);
    }
    if (result->exhausted != exhausted || result->first != first || step > program->steps)
        sim_fail(ledger->sim,
                 "rank %" PRIu32 " opens step %" PRIu64 " with %" PRIu32
                 " exhausted ranks, the programs say %" PRIu32,
                 rank, step, result->exhausted, exhausted);
}

void ledger_no_step(struct ledger *ledger, uint32_t rank, uint64_t step)
{
    if (step != ledger->program->steps + 1)
        sim_fail(ledger->sim, "rank %" PRIu32 " stops before step %" PRIu64, rank, step);
}

// ---- The order -------------------------------------------------------------------------------

static void check_order(struct ledger *ledger, uint32_t rank)
{
    struct ledger_rank *seen = &ledger->ranks[rank];
    struct ledger_step *step = step_of(ledger, rank);
    for (; seen->seen < seen->order->slot_count; seen->seen++) {
        const uint32_t at = seen->seen;
        const struct slot_id *id = &seen->order->slots[at].id;
        if (at >= PROGRAM_SLOTS)
            sim_fail(ledger->sim, "rank %" PRIu32 " has more slots than there are", rank);
        if (at == step->slot_count)
            step->slots[step->slot_count++].id = *id;
        else if (!same_slot(&step->slots[at].id, id))
            sim_fail(ledger->sim,
                     "rank %" PRIu32 " has slot %" PRIu32 ".%" PRIu32 " at position %" PRIu32
                     " of step %" PRIu64 ", another rank %" PRIu32 ".%" PRIu32,
                     rank, id->module, id->bucket, at, seen->order->step, step->slots[at].id.module,
                     step->slots[at].id.bucket);
    }
}

// Computes the required outcome of a step when the first rank begins it: from then on the step's
// plan is known, or that it has none.
static void expect_calls(struct ledger *ledger, const struct order *order)
{
    struct program_outcome *outcome = &ledger->outcomes[order->step];
    struct calls_stash *stash = &ledger->stashes[order->step];
    struct calls_known known = {.learning = order->learning, .slot_count = order->slot_count};
    struct calls_outcome calls;
    if (order->slot_count > CALLS_SLOTS)
        sim_fail(ledger->sim, "a plan has %" PRIu32 " slots", order->slot_count);
    for (uint32_t i = 0; i < order->slot_count; i++)
        known.slots[i] = order->slots[i].id;
    const struct order_plan *plan = order_plan_of(order, order->phase);
    ledger->replaced += plan && plan->replaces != 0;
    *stash = ledger->stashes[order->step - 1];
    calls_expect(&ledger->program->calls, (uint32_t)order->step, &known, stash, &calls);
    outcome->learning = known.learning;
    outcome->verdicts = calls.verdicts;
    outcome->slot_count = calls.slot_count;
    for (uint32_t i = 0; i < calls.slot_count; i++)
        outcome->slots[i] = (struct program_slot){calls.slots[i].id, calls.slots[i].parts};
    sim_trace(ledger->sim,
              "the programs say of step %" PRIu64 ": %" PRIu32 " slots, verdicts %" PRIx32 "%s",
              order->step, calls.slot_count, calls.verdicts, calls.hangs ? ", hangs" : "");
    ledger->hangs_in = calls.hangs ? order->step : 0;
    ledger->expected_to = order->step;
}

void ledger_step_begun(struct ledger *ledger, uint32_t rank)
{
    const struct order *order = ledger->ranks[rank].order;
    struct ledger_step *step = step_of(ledger, rank);
    ledger->ranks[rank].seen = 0;
    if (order->step != ledger->ranks[rank].settled + 1)
        sim_fail(ledger->sim, "rank %" PRIu32 " begins step %" PRIu64 " after step %" PRIu64, rank,
                 order->step, ledger->ranks[rank].settled);
    if (step->begun == 0) {
        step->space = order->space;
        step->learning = order->learning;
    } else if (step->space != order->space || step->learning != order->learning) {
        sim_fail(ledger->sim, "rank %" PRIu32 " begins step %" PRIu64 " on another plan", rank,
                 order->step);
    }
    step->begun |= 1u << rank;
    if (ledger->program->has_calls && ledger->expected_to < order->step)
        expect_calls(ledger, order);
}

void ledger_step_ended(struct ledger *ledger, uint32_t rank)
{
    step_of(ledger, rank)->ended |= 1u << rank;
}

// ---- Launches --------------------------------------------------------------------------------

static void check_distance(struct ledger *ledger, uint32_t rank, uint32_t index)
{
    const struct order *order = ledger->ranks[rank].order;
    for (uint32_t other = 0; other < ledger->program->world; other++) {
        const struct order *behind = ledger->ranks[other].order;
        const bool here = behind && behind->step == order->step;
        const uint32_t low = here ? behind->low : 0;
        if ((here && !behind->open) || (behind && behind->options.strict))
            continue; // Settled, or its session is over; or nothing comes early there.
        if (index >= low + 2 * order->options.window)
            sim_fail(ledger->sim,
                     "rank %" PRIu32 " launches position %" PRIu32 ", but rank %" PRIu32
                     " is at %" PRIu32,
                     rank, index, other, low);
    }
}

void ledger_launched(struct ledger *ledger, uint32_t rank, const struct order_action *action)
{
    struct ledger_step *step = step_of(ledger, rank);
    const uint32_t me = 1u << rank;
    uint32_t low = 0;
    check_order(ledger, rank);
    struct ledger_slot *slot = &step->slots[action->index];
    if (!same_slot(&slot->id, &action->slot->id) || (slot->launched & me) != 0)
        sim_fail(ledger->sim, "rank %" PRIu32 " launches position %" PRIu32 " wrongly", rank,
                 action->index);
    while (low < step->slot_count && (step->slots[low].final & me) != 0)
        low++;
    const struct order_options *options = &ledger->ranks[rank].order->options;
    if (!options->strict && action->index >= low + options->window)
        sim_fail(ledger->sim,
                 "rank %" PRIu32 " launches position %" PRIu32 " outside its window, which begins "
                 "at %" PRIu32,
                 rank, action->index, low);
    if (ledger->ranks[rank].settled + 1 != action->step)
        sim_fail(ledger->sim,
                 "rank %" PRIu32 " launches in step %" PRIu64 " before the one before is settled",
                 rank, action->step);
    for (uint32_t i = 0; options->strict && i < action->index; i++)
        if ((step->slots[i].launched & me) == 0)
            sim_fail(ledger->sim,
                     "rank %" PRIu32 " pairs by position, and launches position %" PRIu32
                     " before position %" PRIu32,
                     rank, action->index, i);
    check_distance(ledger, rank, action->index);
    slot->launched |= me;
}

// The required outcome of a slot of a step.
static const struct program_slot *expected_slot(const struct ledger *ledger, uint64_t step,
                                                const struct slot_id *id)
{
    const struct program_outcome *outcome = &ledger->outcomes[step];
    for (uint32_t i = 0; i < outcome->slot_count; i++)
        if (same_slot(&outcome->slots[i].id, id))
            return &outcome->slots[i];
    return NULL;
}

void ledger_final(struct ledger *ledger, uint32_t rank, uint32_t index, const struct parts *parts)
{
    struct ledger_slot *slot = &step_of(ledger, rank)->slots[index];
    const uint64_t step = ledger->ranks[rank].order->step;
    const struct program_slot *expected = expected_slot(ledger, step, &slot->id);
    if (slot->launched != everybody(ledger))
        sim_fail(ledger->sim, "position %" PRIu32 " is final, but not launched everywhere", index);
    if (expected && !parts_equal(&expected->parts, parts))
        sim_fail(ledger->sim,
                 "slot %" PRIu32 "#%" PRIu32 ".%" PRIu32 " of step %" PRIu64 " has parts %" PRIx64
                 ".%" PRIx64 ".%" PRIx64 ", the programs say %" PRIx64 ".%" PRIx64 ".%" PRIx64,
                 slot->id.module, slot->id.call, slot->id.bucket, step, parts->words[2],
                 parts->words[1], parts->words[0], expected->parts.words[2],
                 expected->parts.words[1], expected->parts.words[0]);
    slot->parts = *parts;
    slot->final |= 1u << rank;
}

// ---- Waves and settling ----------------------------------------------------------------------

void ledger_closed(struct ledger *ledger, uint32_t rank, const struct close_wave *result)
{
    struct ledger_step *step = step_of(ledger, rank);
    const uint64_t number = ledger->ranks[rank].order->step;
    if (step->ended != everybody(ledger))
        sim_fail(ledger->sim, "step %" PRIu64 " is closed on rank %" PRIu32 ", but not ended",
                 number, rank);
    if ((ledger->outcomes[number].verdicts & 1u << HALT_PHASE) != 0)
        sim_fail(ledger->sim, "step %" PRIu64 " is closed, but ranks are in different phases",
                 number);
    if (step->closed == 0)
        step->close = *result;
    else if (memcmp(&step->close, result, sizeof(*result)) != 0)
        sim_fail(ledger->sim, "rank %" PRIu32 " has another close result of step %" PRIu64, rank,
                 number);
    step->closed |= 1u << rank;
}

void ledger_commits(struct ledger *ledger, uint32_t rank)
{
    const struct order *order = ledger->ranks[rank].order;
    const struct ledger_step *step = step_of(ledger, rank);
    for (uint32_t i = 0; i < order->slot_count; i++)
        if ((step->slots[i].final & 1u << rank) == 0)
            sim_fail(ledger->sim,
                     "rank %" PRIu32 " joins the commit of step %" PRIu64 ", but position %" PRIu32
                     " is not final there",
                     rank, order->step, i);
    if (!order->learning && (step->closed & 1u << rank) == 0)
        sim_fail(ledger->sim, "rank %" PRIu32 " joins the commit before the close", rank);
}

static void check_all_final(const struct ledger *ledger, uint32_t rank, uint64_t number)
{
    const uint32_t phase = ledger->program->at[rank][number].phase;
    const struct ledger_step *step = &ledger->steps[number][phase];
    const struct program_outcome *outcome = &ledger->outcomes[number];
    for (uint32_t i = 0; i < step->slot_count; i++)
        if (step->slots[i].final != everybody(ledger))
            sim_fail(ledger->sim,
                     "step %" PRIu64 " is committed on rank %" PRIu32 ", but position %" PRIu32
                     " is final only on ranks %" PRIx32,
                     number, rank, i, step->slots[i].final);
    if (step->slot_count != outcome->slot_count)
        sim_fail(ledger->sim, "step %" PRIu64 " has %" PRIu32 " slots, the programs say %" PRIu32,
                 number, step->slot_count, outcome->slot_count);
}

void ledger_committed(struct ledger *ledger, uint32_t rank, const struct commit_wave *result)
{
    struct ledger_step *step = step_of(ledger, rank);
    const uint64_t number = ledger->ranks[rank].order->step;
    check_all_final(ledger, rank, number);
    if (memcmp(result, &ledger->outcomes[number].commit, sizeof(*result)) != 0)
        sim_fail(ledger->sim,
                 "rank %" PRIu32 " gets another commit payload of step %" PRIu64
                 " than the programs say",
                 rank, number);
    step->commit = *result;
    step->committed = true;
}

static void check_stash(const struct ledger *ledger, uint32_t rank, uint64_t step)
{
    const struct calls_run *run = ledger->ranks[rank].run;
    for (uint32_t m = 0; m < CALLS_MODULES; m++)
        for (uint32_t b = 0; b < CALLS_BUCKETS; b++)
            if (!parts_equal(&run->stash[m][b], &ledger->stashes[step].at[rank][m][b]))
                sim_fail(ledger->sim,
                         "rank %" PRIu32 " has put off other parts of bucket %" PRIu32
                         " of module %" PRIu32 " after step %" PRIu64 " than the programs say",
                         rank, b, m, step);
}

void ledger_settled(struct ledger *ledger, uint32_t rank, uint64_t step)
{
    const uint32_t verdicts = ledger->outcomes[step].verdicts;
    if (verdicts != 0)
        sim_fail(ledger->sim, "step %" PRIu64 " settles on rank %" PRIu32 ", but cannot", step,
                 rank);
    if (ledger->halted_step != 0 && step >= ledger->halted_step)
        sim_fail(ledger->sim, "step %" PRIu64 " settles on rank %" PRIu32 " after it was halted",
                 step, rank);
    ledger->ranks[rank].settled = step;
    step_of(ledger, rank)->settled |= 1u << rank;
    if (ledger->program->has_calls)
        check_stash(ledger, rank, step);
}

// ---- Messages and ends -----------------------------------------------------------------------

void ledger_says(struct ledger *ledger, uint32_t rank, const struct up_message *message)
{
    const struct order *order = ledger->ranks[rank].order;
    const bool wrong =
        ledger->faults || ledger->outcomes[order->step].verdicts != 0 || ledger->halted_step != 0;
    const bool waits =
        ledger->program->has_calls && calls_wait(&ledger->program->calls, (uint32_t)order->step);
    if (order->open && !order->learning && !wrong && !waits)
        sim_fail(ledger->sim, "rank %" PRIu32 " speaks to the coordinator in planned step %" PRIu64,
                 rank, order->step);
    if (order->open && !order->learning &&
        (message->kind == UP_READY || message->kind == UP_END || message->kind == UP_LAYOUT_PART))
        sim_fail(ledger->sim, "rank %" PRIu32 " learns planned step %" PRIu64, rank, order->step);
}

static bool settled_by_another(const struct ledger *ledger, uint64_t step)
{
    for (uint32_t other = 0; other < ledger->program->world; other++)
        if (ledger->ranks[other].settled >= step)
            return true;
    return false;
}

void ledger_halted(struct ledger *ledger, uint32_t rank, uint64_t step, bool own)
{
    struct ledger_rank *here = &ledger->ranks[rank];
    here->own_verdict = own;
    if (step == 0)
        return;
    if (here->settled + 1 < step)
        sim_fail(ledger->sim,
                 "rank %" PRIu32 " is halted in step %" PRIu64 ", but has settled only %" PRIu64,
                 rank, step, here->settled);
    // A rank that dies inside a commit wave leaves some with the step settled, and others who lack
    // its part; a verdict of the next step comes down to this one for them.
    if (!ledger->faults && settled_by_another(ledger, step))
        sim_fail(ledger->sim,
                 "rank %" PRIu32 " is halted in step %" PRIu64 ", which another has settled", rank,
                 step);
    if (ledger->halted_step == 0 || step < ledger->halted_step)
        ledger->halted_step = step;
}

void ledger_ended(struct ledger *ledger, uint32_t rank, enum session_end end,
                  enum halt_kind verdict, const char *text)
{
    struct ledger_rank *here = &ledger->ranks[rank];
    if (here->end != SESSION_RUNS)
        return;
    here->end = end;
    here->verdict = verdict;
    strncpy(here->text, text, sizeof(here->text) - 1);
}

// ---- After each event ------------------------------------------------------------------------

void ledger_check(struct ledger *ledger, uint32_t rank)
{
    const struct order *order = ledger->ranks[rank].order;
    if (!order || !order->open || order->failed)
        return;
    check_order(ledger, rank);
    const bool gated = order->options.strict && !order->header_equal;
    if (!gated && order->low < order->slot_count &&
        (order->slots[order->low].state == SLOT_READY ||
         order->slots[order->low].state == SLOT_ZERO))
        sim_fail(ledger->sim, "rank %" PRIu32 " does not launch its lowest slot, position %" PRIu32,
                 rank, order->low);
    for (uint32_t i = 0; order->ended && !order->learning && i < order->slot_count; i++)
        if (order->slots[i].state == SLOT_UNREADY)
            sim_fail(ledger->sim,
                     "rank %" PRIu32 " has ended step %" PRIu64 ", but position %" PRIu32
                     " is not ready",
                     rank, order->step, i);
}

// ---- When all is over ------------------------------------------------------------------------

static void check_rank(const struct ledger *ledger, uint32_t rank, uint64_t last)
{
    const struct ledger_rank *here = &ledger->ranks[rank];
    const uint32_t leaves = ledger->program->steps_of[rank];
    const bool left = leaves < ledger->program->steps;
    const uint64_t settles = leaves < last ? leaves : last;
    if (here->settled != settles)
        sim_fail(ledger->sim,
                 "rank %" PRIu32 " has settled %" PRIu64 " steps, the programs say %" PRIu64, rank,
                 here->settled, settles);
    if (last == ledger->program->steps || (left && settles == leaves)) {
        // A rank that leaves may be told before it goes that the others cannot go on without it.
        if (here->end != SESSION_LEFT && !(left && here->end == SESSION_HALTED))
            sim_fail(ledger->sim, "rank %" PRIu32 " fails, but cannot: %s", rank, here->text);
        return;
    }
    if (here->end != SESSION_HALTED ||
        (ledger->outcomes[last + 1].verdicts & 1u << here->verdict) == 0)
        sim_fail(ledger->sim, "rank %" PRIu32 " ends otherwise than the programs say: %d, %s", rank,
                 (int)here->verdict, here->text);
}

static void check_same_verdict(const struct ledger *ledger)
{
    const struct ledger_rank *first = NULL;
    for (uint32_t rank = 0; rank < ledger->program->world; rank++) {
        const struct ledger_rank *here = &ledger->ranks[rank];
        // The ranks agree on calls outside the plan; a death may come between.
        const bool between = ledger->faults && here->verdict == HALT_UNPLANNED;
        if (here->end != SESSION_HALTED || here->own_verdict || between)
            continue;
        if (!first)
            first = here;
        else if (first->verdict != here->verdict || strcmp(first->text, here->text) != 0)
            sim_fail(ledger->sim, "rank %" PRIu32 " ends with \"%s\", another with \"%s\"", rank,
                     here->text, first->text);
    }
}

void ledger_finished(const struct ledger *ledger)
{
    uint64_t last = 0;
    check_same_verdict(ledger);
    if (ledger->faults || ledger->hangs_in != 0)
        return;
    while (last < ledger->program->steps && ledger->outcomes[last + 1].verdicts == 0)
        last++;
    for (uint32_t rank = 0; rank < ledger->program->world; rank++)
        check_rank(ledger, rank, last);
}
