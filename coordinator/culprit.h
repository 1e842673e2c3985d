// SPDX-License-Identifier: Apache-2.0
//
// The sentence about a stall, and the answers of culprits. Runs inside coordinator_step, and in
// views.

#ifndef COORDINATOR_CULPRIT_H
#define COORDINATOR_CULPRIT_H

#include "coordinator/coordinator.h"

#include <stdint.h>

struct coordinator;
struct culprit;
struct job;
struct place;
struct text;
struct up_answer;
struct worker;

const char *coordinator_stall_kind_name(enum stall_kind kind); // "in_call"
// Adds "rank 3 (gpu-node-2, pid 912)".
void culprit_name(struct text *sentence, const struct worker *worker);
// Adds the command that shows a rank's stacks: "lockstep stacks 3 --job x".
void culprit_stacks(const struct coordinator *core, const struct job *job, struct text *sentence,
                    uint32_t rank);
// Adds the sentence about the present stall of a job, with times as of now_ms.
void culprit_sentence(const struct coordinator *core, const struct job *job, uint64_t now_ms,
                      struct text *sentence);
// Adds the function that a place names: "lockstep_call_end of 'actor' (call 3)".
void culprit_api(struct text *sentence, const struct job *job, const struct place *place);
// Stores a part of this culprit's answer to an inspection.
void culprit_answer(struct culprit *culprit, const struct up_answer *answer);

#endif
