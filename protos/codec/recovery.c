// SPDX-License-Identifier: Apache-2.0
//
// The messages of recovery: conversion between types.h and the generated structs, and the bounds of
// their fields. No state. Any thread.

#include "protos/codec/recovery.h"

#include "protos/codec/check.h"
#include "protos/codec/codec.h"
#include "protos/redo.h"

#include "protos/control.pb.h"

#include <string.h>

// ---- Out ---------------------------------------------------------------------------------------

void codec_record_out(wire_RecordPart *wire, const struct record_part *part)
{
    wire->kind = (wire_RecordKind)part->kind;
    wire->position = part->position;
    wire->total = part->total;
    wire->first = part->first;
    wire->words_count = (pb_size_t)part->count;
    memcpy(wire->words, part->words, part->count * sizeof(part->words[0]));
}

void codec_report_out(wire_UpReport *wire, const struct up_report *report)
{
    wire->has_ballot = codec_generation_out(&wire->ballot, &report->ballot);
    wire->settled = report->settled;
    wire->step = report->step;
    wire->flags = report->flags;
    wire->phase = report->phase;
    wire->space = report->space;
}

void codec_refuse_out(wire_UpRefuse *wire, const struct up_refuse *refuse)
{
    wire->has_promised = codec_generation_out(&wire->promised, &refuse->promised);
}

uint32_t codec_chain_out(struct _wire_Lineage *wire, const struct lineage *chain, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        wire[i].has_id = codec_generation_out(&wire[i].id, &chain[i].id);
        wire[i].members_count =
            (pb_size_t)codec_words_out(wire[i].members, chain[i].members, LOCKSTEP_RANK_WORDS);
    }
    return count;
}

void codec_prepare_out(wire_DownPrepare *wire, const struct down_prepare *prepare)
{
    wire->has_ballot = codec_generation_out(&wire->ballot, &prepare->ballot);
    wire->suspects_count =
        (pb_size_t)codec_words_out(wire->suspects, prepare->suspects, LOCKSTEP_RANK_WORDS);
    codec_text_out(wire->text, prepare->text, sizeof(wire->text));
}

void codec_decision_out(wire_DownDecision *wire, const struct down_decision *decision)
{
    wire->has_ballot = codec_generation_out(&wire->ballot, &decision->ballot);
    wire->settled = decision->settled;
    wire->step = decision->step;
    wire->flags = decision->flags;
    wire->removed_count =
        (pb_size_t)codec_words_out(wire->removed, decision->removed, LOCKSTEP_RANK_WORDS);
    wire->chain_count =
        (pb_size_t)codec_chain_out(wire->chain, decision->chain, decision->chain_count);
    wire->dead_count = (pb_size_t)codec_words_out(wire->dead, decision->dead, LOCKSTEP_RANK_WORDS);
    codec_text_out(wire->text, decision->text, sizeof(wire->text));
}

void codec_excluded_out(wire_DownExcluded *wire, const struct down_excluded *excluded)
{
    wire->has_ballot = codec_generation_out(&wire->ballot, &excluded->ballot);
    codec_text_out(wire->text, excluded->text, sizeof(wire->text));
}

// ---- In ----------------------------------------------------------------------------------------

void codec_record_in(struct record_part *part, const wire_RecordPart *wire)
{
    part->kind = (enum record_kind)wire->kind;
    part->position = wire->position;
    part->total = wire->total;
    part->first = wire->first;
    part->count = wire->words_count;
    memcpy(part->words, wire->words, part->count * sizeof(part->words[0]));
}

void codec_report_in(struct up_report *report, const wire_UpReport *wire)
{
    codec_generation_in(&report->ballot, &wire->ballot, wire->has_ballot);
    report->settled = wire->settled;
    report->step = wire->step;
    report->flags = wire->flags;
    report->phase = wire->phase;
    report->space = wire->space;
}

void codec_refuse_in(struct up_refuse *refuse, const wire_UpRefuse *wire)
{
    codec_generation_in(&refuse->promised, &wire->promised, wire->has_promised);
}

uint32_t codec_chain_in(struct lineage *chain, const struct _wire_Lineage *wire, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        codec_generation_in(&chain[i].id, &wire[i].id, wire[i].has_id);
        memcpy(chain[i].members, wire[i].members,
               wire[i].members_count * sizeof(wire[i].members[0]));
    }
    return count;
}

void codec_prepare_in(struct down_prepare *prepare, const wire_DownPrepare *wire,
                      struct codec_fault *fault)
{
    codec_generation_in(&prepare->ballot, &wire->ballot, wire->has_ballot);
    memcpy(prepare->suspects, wire->suspects, wire->suspects_count * sizeof(wire->suspects[0]));
    codec_text_in(prepare->text, wire->text, sizeof(prepare->text), fault);
}

void codec_decision_in(struct down_decision *decision, const wire_DownDecision *wire,
                       struct codec_fault *fault)
{
    codec_generation_in(&decision->ballot, &wire->ballot, wire->has_ballot);
    decision->settled = wire->settled;
    decision->step = wire->step;
    decision->flags = wire->flags;
    memcpy(decision->removed, wire->removed, wire->removed_count * sizeof(wire->removed[0]));
    decision->chain_count = codec_chain_in(decision->chain, wire->chain, wire->chain_count);
    memcpy(decision->dead, wire->dead, wire->dead_count * sizeof(wire->dead[0]));
    codec_text_in(decision->text, wire->text, sizeof(decision->text), fault);
}

void codec_excluded_in(struct down_excluded *excluded, const wire_DownExcluded *wire,
                       struct codec_fault *fault)
{
    codec_generation_in(&excluded->ballot, &wire->ballot, wire->has_ballot);
    codec_text_in(excluded->text, wire->text, sizeof(excluded->text), fault);
}

// ---- Bounds ------------------------------------------------------------------------------------

static void check_ballot(const struct generation_id *ballot, struct codec_fault *fault)
{
    if (ballot->number == 0)
        codec_fault_set(fault, CODEC_INVALID, "a ballot has no number");
}

void codec_check_chain(const struct lineage *chain, uint32_t count, struct codec_fault *fault)
{
    codec_check_count(count, LOCKSTEP_CHAIN, "too many open generations", fault);
    for (uint32_t i = 0; i < count && fault->status == CODEC_OK; i++)
        check_ballot(&chain[i].id, fault);
}

void codec_check_record(const struct record_part *part, bool up, struct codec_fault *fault)
{
    const uint32_t bound = record_bound(part->kind, up);
    if (bound == 0) {
        codec_fault_set(fault, CODEC_INVALID, "the kind of a record is unknown in this direction");
        return;
    }
    codec_check_number(part->position, LOCKSTEP_MAX_SLOTS - 1,
                       "a position is above LOCKSTEP_MAX_SLOTS", fault);
    codec_check_number(part->total, bound, "a record is longer than its kind may be", fault);
    codec_check_count(part->count, LOCKSTEP_RECORD_PART, "too many words in a part of a record",
                      fault);
    codec_check_part(part->first, part->count, part->total, "a part lies outside its record",
                     fault);
}

static void check_flags(uint32_t flags, struct codec_fault *fault)
{
    codec_check_number(flags, REPORT_FLAGS, "a report has unknown flags", fault);
}

void codec_check_report(const struct up_report *report, struct codec_fault *fault)
{
    check_ballot(&report->ballot, fault);
    check_flags(report->flags, fault);
    if (report->step < report->settled || report->step - report->settled > 1)
        codec_fault_set(fault, CODEC_INVALID, "a report is of a step that cannot be open");
}

void codec_check_refuse(const struct up_refuse *refuse, struct codec_fault *fault)
{
    check_ballot(&refuse->promised, fault);
}

void codec_check_prepare(const struct down_prepare *prepare, struct codec_fault *fault)
{
    check_ballot(&prepare->ballot, fault);
    codec_check_text(prepare->text, sizeof(prepare->text), fault);
}

void codec_check_decision(const struct down_decision *decision, struct codec_fault *fault)
{
    check_ballot(&decision->ballot, fault);
    check_flags(decision->flags, fault);
    codec_check_chain(decision->chain, decision->chain_count, fault);
    codec_check_text(decision->text, sizeof(decision->text), fault);
}

void codec_check_excluded(const struct down_excluded *excluded, struct codec_fault *fault)
{
    check_ballot(&excluded->ballot, fault);
    codec_check_text(excluded->text, sizeof(excluded->text), fault);
}
