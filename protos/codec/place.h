// SPDX-License-Identifier: Apache-2.0
//
// Conversion of heartbeats, blocked waits, new plans, module names and answers to and from the
// generated structs. Any thread.

#ifndef LOCKSTEP_PROTOS_CODEC_PLACE_H
#define LOCKSTEP_PROTOS_CODEC_PLACE_H

struct _wire_UpAnswer;
struct _wire_UpBlocked;
struct _wire_UpHeartbeat;
struct _wire_UpModules;
struct _wire_UpReplan;
struct codec_fault;
struct up_answer;
struct up_blocked;
struct up_heartbeat;
struct up_modules;
struct up_replan;

// Convert the fields of a heartbeat that follow its totals.
void codec_heartbeat_out(struct _wire_UpHeartbeat *wire, const struct up_heartbeat *heartbeat);
void codec_heartbeat_in(struct up_heartbeat *heartbeat, const struct _wire_UpHeartbeat *wire,
                        struct codec_fault *fault);
void codec_blocked_out(struct _wire_UpBlocked *wire, const struct up_blocked *blocked);
void codec_blocked_in(struct up_blocked *blocked, const struct _wire_UpBlocked *wire,
                      struct codec_fault *fault);
void codec_replan_out(struct _wire_UpReplan *wire, const struct up_replan *replan);
void codec_replan_in(struct up_replan *replan, const struct _wire_UpReplan *wire);
void codec_modules_out(struct _wire_UpModules *wire, const struct up_modules *modules);
void codec_modules_in(struct up_modules *modules, const struct _wire_UpModules *wire,
                      struct codec_fault *fault);
void codec_answer_out(struct _wire_UpAnswer *wire, const struct up_answer *answer);
void codec_answer_in(struct up_answer *answer, const struct _wire_UpAnswer *wire,
                     struct codec_fault *fault);

#endif
