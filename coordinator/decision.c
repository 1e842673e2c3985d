// SPDX-License-Identifier: Apache-2.0
//
// Decides from the reports of a ballot how the members go on (docs/internals/recovery.md).
//
// `settled` is the highest number of committed steps. A member that is one step behind has all
// slots of that step final (rule R2), so the step is committed on it, too: it gets the value of the
// commit wave. If the step was opened and not run, because no rank had data, the value of its open
// wave is handed on instead. The members that are not behind may have a step open. A wave of that
// step that is complete on one of them is complete on all: its value is handed on. Every slot of
// that step is looked at by itself (redo.c).
//
// A rank that has left may be the only one with the last settled step. It said so in its last word.
//
// All of it is done twice: first to find out whether a decision is possible, then to send it.
//
// Cost: with r records and s slots, one pass over the records for each slot: r * s, twice. 1,024
// ranks with 200 slots have some 40,000 records.

#include "coordinator/decision.h"

#include "base/bits.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/redo.h"
#include "coordinator/send.h"

#define DECISION_FLAGS (REPORT_OPENED | REPORT_BEGUN | REPORT_CLOSED | REPORT_SKIPPED)

struct decision {
    struct coordinator *core;
    struct job *job;
    bool sends; // False: only checks.
    uint64_t settled;
    uint64_t step;
    uint32_t flags;
    uint32_t members;
    uint32_t ranks[LOCKSTEP_MAX_WORLD]; // By new rank: the rank in the generation that ends.
    // The final elements of one slot at a time, for each member that has the slot's module.
    uint32_t having;
    uint32_t places[LOCKSTEP_MAX_WORLD]; // [having]: the new rank of that member.
    struct redo_report reports[LOCKSTEP_MAX_WORLD]; // [having]
    uint64_t touched[LOCKSTEP_SLOT_WORDS]; // Positions of which something is final on a member.
    // By kind and old rank: 1 + the place of a whole record; 0: there is none. Of the kinds that
    // each slot has, it has the records of one position. decision_index sets it.
    uint32_t found[RECORD_COMMIT + 1][LOCKSTEP_MAX_WORLD];
};

static bool set_has(const uint64_t *words, uint32_t count, uint32_t bit)
{
    return bit / 64 < count && bits_has(words, bit);
}

bool decision_removes(const struct job *job, uint32_t rank)
{
    return set_has(job->ballot.suspects, LOCKSTEP_RANK_WORDS, rank);
}

static const struct up_report *decision_report(const struct decision *decision, uint32_t member)
{
    return &job_worker(decision->core, decision->job, decision->ranks[member])->report;
}

// Finds the records of a slot, and those that belong to no slot, for decision_find.
static void decision_index(struct decision *decision, uint32_t position)
{
    struct record record;
    uint32_t at = 0;
    memset(decision->found, 0, sizeof(decision->found));
    for (uint32_t next = 0; records_next(&decision->job->ballot.records, &next, &record);
         at = next) {
        const bool of_slot = record.kind == RECORD_RUNS || record.kind == RECORD_USED;
        if (record.whole && record.position == (of_slot ? position : 0))
            decision->found[record.kind][record.rank] = 1 + at;
    }
}

// Finds the whole record of a member. Returns false if there is none.
static bool decision_find(const struct decision *decision, uint32_t member, enum record_kind kind,
                          struct record *record)
{
    uint32_t at = decision->found[kind][decision->ranks[member]];
    if (at == 0)
        return false;
    at--;
    return records_next(&decision->job->ballot.records, &at, record);
}

// True if the member may have slots of the open step: it is not behind.
static bool decision_present(const struct decision *decision, uint32_t member)
{
    return decision_report(decision, member)->settled == decision->settled;
}

// ---- Sending -----------------------------------------------------------------------------------

// Sends the message in core->out to every member.
static void decision_tell(const struct decision *decision)
{
    for (uint32_t i = 0; i < decision->members; i++)
        core_send(decision->core, job_worker(decision->core, decision->job, decision->ranks[i]));
}

static void decision_send_record(const struct decision *decision, enum record_kind kind,
                                 uint32_t position, const uint64_t *words, uint32_t total)
{
    uint32_t first = 0;
    do {
        struct record_part *part =
            &core_message(decision->core, decision->job, DOWN_RECORD_PART)->u.record_part;
        part->kind = kind;
        part->position = position;
        part->total = total;
        part->first = first;
        part->count =
            total - first < LOCKSTEP_RECORD_PART ? total - first : (uint32_t)LOCKSTEP_RECORD_PART;
        memcpy(part->words, words + first, part->count * sizeof(words[0]));
        first += part->count;
        decision_tell(decision);
    } while (first < total);
}

// ---- The open step -----------------------------------------------------------------------------

// True if a member that is behind can be told that `settled` is over: it has joined the commit
// wave, or the open wave of a step that is not run.
static bool decision_follows(const struct decision *decision, const struct up_report *report)
{
    const bool waits = report->step == decision->settled && (report->flags & REPORT_BEGUN) == 0;
    if (report->settled + 1 != decision->settled)
        return false;
    return (decision->flags & REPORT_SKIPPED) != 0 ? waits
                                                   : (report->flags & REPORT_ALL_FINAL) != 0;
}

// Returns the last word of a rank that has left, if it tells of a wave that no member knows; NULL:
// it does not, or there is none.
static const struct parting *decision_parting(const struct decision *decision)
{
    const struct parting *parting = &decision->job->ballot.parting;
    for (uint32_t i = 0; i < decision->members; i++) {
        const struct up_report *report = decision_report(decision, i);
        const bool knows =
            report->settled == parting->settled &&
            ((parting->flags & REPORT_OPENED) == 0 || (report->flags & REPORT_OPENED) != 0);
        if (knows || report->settled > parting->settled)
            return NULL;
    }
    return parting->word_count > 0 ? parting : NULL;
}

static const char *decision_look(struct decision *decision)
{
    const struct parting *parting = decision_parting(decision);
    if (parting) {
        decision->settled = parting->settled;
        decision->flags = parting->flags;
    }
    for (uint32_t i = 0; i < decision->members; i++) {
        const uint64_t settled = decision_report(decision, i)->settled;
        if (settled > decision->settled)
            decision->settled = settled;
    }
    decision->step = decision->settled;
    for (uint32_t i = 0; i < decision->members; i++) {
        const struct up_report *report = decision_report(decision, i);
        if (report->settled == decision->settled) {
            if (report->step > decision->step)
                decision->step = report->step;
            decision->flags |= report->flags & DECISION_FLAGS;
        }
    }
    // An open wave of the next step is complete, so all members have joined it: nobody is behind.
    if ((decision->flags & REPORT_OPENED) != 0)
        decision->flags &= ~(uint32_t)REPORT_SKIPPED;
    for (uint32_t i = 0; i < decision->members; i++) {
        const struct up_report *report = decision_report(decision, i);
        if (report->settled != decision->settled && !decision_follows(decision, report)) {
            return "their reports contradict each other: a step is committed on one rank and not "
                   "final on another";
        }
    }
    return NULL;
}

// Hands on the value of a wave that is complete on some member.
static const char *decision_wave(const struct decision *decision, enum record_kind kind,
                                 uint32_t flag)
{
    const struct parting *parting = decision_parting(decision);
    struct record record;
    if (parting && kind == (parting->flags != 0 ? RECORD_OPENING : RECORD_COMMIT)) {
        if (decision->sends)
            decision_send_record(decision, kind, 0, parting->words, parting->word_count);
        return NULL;
    }
    for (uint32_t i = 0; i < decision->members; i++) {
        if (!decision_present(decision, i) || !decision_find(decision, i, kind, &record))
            continue;
        if (kind == RECORD_OPENING && (decision_report(decision, i)->flags & flag) == 0)
            continue; // The record belongs to the step before.
        if (decision->sends)
            decision_send_record(decision, kind, 0, record.words, record.total);
        return NULL;
    }
    return flag == 0 || (decision->flags & flag) != 0
               ? "their reports lack the result of a wave that is complete"
               : NULL;
}

static bool decision_is_behind(const struct decision *decision)
{
    for (uint32_t i = 0; i < decision->members; i++)
        if (!decision_present(decision, i))
            return true;
    return false;
}

static const char *decision_waves(const struct decision *decision)
{
    const uint32_t opening =
        (decision->flags & REPORT_SKIPPED) != 0 ? REPORT_SKIPPED : REPORT_OPENED;
    const char *why = decision_wave(decision, RECORD_OPENING, opening);
    if (!why)
        why = decision_wave(decision, RECORD_CLOSING, REPORT_CLOSED);
    if (!why && (decision->flags & REPORT_SKIPPED) == 0 && decision_is_behind(decision))
        why = decision_wave(decision, RECORD_COMMIT, 0);
    return why;
}

// ---- Slots -------------------------------------------------------------------------------------

static void decision_touch(struct decision *decision)
{
    struct record record;
    bool present[LOCKSTEP_MAX_WORLD] = {false}; // By old rank.
    uint32_t at = 0;
    for (uint32_t i = 0; i < decision->members; i++)
        present[decision->ranks[i]] = decision_present(decision, i);
    while (records_next(&decision->job->ballot.records, &at, &record)) {
        if (!present[record.rank])
            continue;
        for (uint32_t w = 0; record.kind == RECORD_FINAL && w < record.total; w++)
            decision->touched[w] |= record.words[w];
        if (record.kind == RECORD_RUNS && record.total > 1)
            bits_add(decision->touched, record.position);
    }
}

static bool decision_says(const struct decision *decision, uint32_t member, enum record_kind kind,
                          uint32_t position)
{
    struct record record;
    return decision_present(decision, member) && decision_find(decision, member, kind, &record) &&
           set_has(record.words, record.total, position);
}

// True if the member does not have the slot's module: a member that has all modules has given its
// gradients when anything of the slot is final, and one that lacks modules may not have begun the
// step.
static bool decision_lacks(const struct decision *decision, uint32_t member, uint32_t position)
{
    return job_worker(decision->core, decision->job, decision->ranks[member])->absent != 0 &&
           !decision_says(decision, member, RECORD_GIVEN, position);
}

// Sets what is final of a slot on each member that has its module (rule M13). *whole is used for
// members on which all of it is final. *sized: true if a member said the slot's length, which is
// *elements and may be 0; false if the slot is final on every such member. Returns false if the
// reports contradict each other.
static bool decision_gather(struct decision *decision, uint32_t position, struct redo_run *whole,
                            bool *sized, uint64_t *elements)
{
    uint32_t final = 0;
    *sized = false;
    *elements = 0;
    decision->having = 0;
    for (uint32_t i = 0; i < decision->members; i++) {
        struct redo_report *report = &decision->reports[decision->having];
        struct record record;
        if (decision_lacks(decision, i, position))
            continue;
        decision->places[decision->having++] = i;
        *report =
            (struct redo_report){.contributed = decision_says(decision, i, RECORD_GIVEN, position)};
        if (decision_says(decision, i, RECORD_FINAL, position)) {
            *report = (struct redo_report){.contributed = true, .run_count = 1, .runs = whole};
            final++;
        } else if (decision_present(decision, i) &&
                   decision_find(decision, i, RECORD_RUNS, &record) && record.total > 0) {
            if (*sized && *elements != record.words[0])
                return false;
            // The words behind the first one are pairs, as struct redo_run is.
            report->run_count = (record.total - 1) / 2;
            report->runs = (const struct redo_run *)(record.words + 1);
            *elements = record.words[0];
            *sized = true;
        }
    }
    *whole = (struct redo_run){.first = 0, .end = *elements};
    return final == 0 || final == decision->having || *sized;
}

static void decision_send_rows(const struct decision *decision, uint32_t position,
                               const struct redo_row *rows, uint32_t count)
{
    uint64_t *words = decision->core->redo.words;
    for (uint32_t i = 0; i < count; i++) {
        words[LOCKSTEP_ROW_WORDS * i] = rows[i].first;
        words[LOCKSTEP_ROW_WORDS * i + 1] = rows[i].end;
        words[LOCKSTEP_ROW_WORDS * i + 2] = (uint64_t)rows[i].owner << 1 | rows[i].kind;
    }
    decision_send_record(decision, RECORD_ROWS, position, words, LOCKSTEP_ROW_WORDS * count);
}

// Rule R7: a unit that was used for one final element is used in the repetition.
static void decision_send_used(const struct decision *decision, uint32_t position)
{
    uint64_t *words = decision->core->redo.words;
    uint32_t total = 0;
    for (uint32_t i = 0; i < decision->members; i++) {
        struct record record;
        if (!decision_find(decision, i, RECORD_USED, &record))
            continue;
        while (total < record.total)
            words[total++] = 0;
        for (uint32_t w = 0; w < record.total; w++)
            words[w] |= record.words[w];
    }
    if (total > 0)
        decision_send_record(decision, RECORD_USED, position, words, total);
}

static const char *decision_slot(struct decision *decision, uint32_t position)
{
    struct redo_run whole;
    struct redo_row *rows = decision->core->redo.rows;
    enum redo_status status = REDO_IMPOSSIBLE;
    bool sized;
    uint64_t elements;
    uint32_t count = 0;
    decision_index(decision, position);
    if (decision_gather(decision, position, &whole, &sized, &elements)) {
        if (!sized)
            return NULL;
        status = redo_decide(decision->reports, decision->having, elements, rows,
                             LOCKSTEP_REDO_ROWS, &count);
    }
    for (uint32_t i = 0; i < count; i++)
        rows[i].owner = decision->places[rows[i].owner];
    if (status == REDO_IMPOSSIBLE)
        return "their reports contradict each other: a slot is final on one rank, and another has "
               "not given its gradients";
    if (status == REDO_NO_ROOM)
        return "what is final is too scattered";
    if (status == REDO_ROWS && decision->sends) {
        decision_send_rows(decision, position, rows, count);
        decision_send_used(decision, position);
    }
    return NULL;
}

static const char *decision_slots(struct decision *decision)
{
    const char *why = NULL;
    decision_touch(decision);
    for (uint32_t at = 0; at < LOCKSTEP_MAX_SLOTS && !why; at++)
        if (bits_has(decision->touched, at))
            why = decision_slot(decision, at);
    return why;
}

// ---- The decision ------------------------------------------------------------------------------

static const char *decision_make(struct decision *decision)
{
    for (uint32_t rank = 0; rank < decision->job->count; rank++)
        if (!decision_removes(decision->job, rank))
            decision->ranks[decision->members++] = rank;
    decision_index(decision, 0);
    // Before the first round of lockstep_start is complete, no member has begun a step. Some of
    // them know the number of the last step of a file already.
    const bool begun = decision->job->rounds > 0;
    const char *why = begun ? decision_look(decision) : NULL;
    if (!why && begun)
        why = decision_waves(decision);
    if (!why && begun)
        why = decision_slots(decision);
    if (why || !decision->sends)
        return why;
    struct down_decision *out =
        &core_message(decision->core, decision->job, DOWN_DECISION)->u.decision;
    out->ballot = (struct generation_id){.number = decision->job->ballot.number,
                                         .incarnation = decision->core->config.incarnation};
    out->settled = decision->settled;
    out->step = decision->step;
    out->flags = decision->flags;
    memcpy(out->removed, decision->job->ballot.suspects, sizeof(out->removed));
    out->chain_count = decision->job->ballot.descent.count;
    memcpy(out->chain, decision->job->ballot.descent.chain, sizeof(out->chain));
    memcpy(out->dead, decision->job->ballot.descent.dead, sizeof(out->dead));
    memcpy(out->text, decision->job->ballot.text, sizeof(out->text));
    decision_tell(decision);
    return NULL;
}

const char *decision_send(struct coordinator *core, struct job *job)
{
    struct decision decision = {.core = core, .job = job};
    const char *why = decision_make(&decision);
    if (why)
        return why;
    decision = (struct decision){.core = core, .job = job, .sends = true};
    return decision_make(&decision);
}
