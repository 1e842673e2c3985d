// SPDX-License-Identifier: Apache-2.0
//
// The messages of recovery, in both directions: conversion and bounds. Only the files of the codec
// include this header.

#ifndef LOCKSTEP_PROTOS_CODEC_RECOVERY_H
#define LOCKSTEP_PROTOS_CODEC_RECOVERY_H

#include "protos/codec/internal.h"

void codec_record_out(struct _wire_RecordPart *wire, const struct record_part *part);
void codec_record_in(struct record_part *part, const struct _wire_RecordPart *wire);
void codec_report_out(struct _wire_UpReport *wire, const struct up_report *report);
void codec_report_in(struct up_report *report, const struct _wire_UpReport *wire);
void codec_refuse_out(struct _wire_UpRefuse *wire, const struct up_refuse *refuse);
void codec_refuse_in(struct up_refuse *refuse, const struct _wire_UpRefuse *wire);
void codec_prepare_out(struct _wire_DownPrepare *wire, const struct down_prepare *prepare);
void codec_prepare_in(struct down_prepare *prepare, const struct _wire_DownPrepare *wire,
                      struct codec_fault *fault);
void codec_decision_out(struct _wire_DownDecision *wire, const struct down_decision *decision);
void codec_decision_in(struct down_decision *decision, const struct _wire_DownDecision *wire,
                       struct codec_fault *fault);
void codec_excluded_out(struct _wire_DownExcluded *wire, const struct down_excluded *excluded);
void codec_excluded_in(struct down_excluded *excluded, const struct _wire_DownExcluded *wire,
                       struct codec_fault *fault);

// Return the number of generations.
uint32_t codec_chain_out(struct _wire_Lineage *wire, const struct lineage *chain, uint32_t count);
uint32_t codec_chain_in(struct lineage *chain, const struct _wire_Lineage *wire, uint32_t count);
void codec_check_chain(const struct lineage *chain, uint32_t count, struct codec_fault *fault);

// up: true for a part of a report, false for a part of a decision.
void codec_check_record(const struct record_part *part, bool up, struct codec_fault *fault);
void codec_check_report(const struct up_report *report, struct codec_fault *fault);
void codec_check_refuse(const struct up_refuse *refuse, struct codec_fault *fault);
void codec_check_prepare(const struct down_prepare *prepare, struct codec_fault *fault);
void codec_check_decision(const struct down_decision *decision, struct codec_fault *fault);
void codec_check_excluded(const struct down_excluded *excluded, struct codec_fault *fault);

#endif
