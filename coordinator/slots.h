// SPDX-License-Identifier: Apache-2.0
//
// The table of slots of a learning step, and facts about one slot. Runs inside coordinator_step.

#ifndef COORDINATOR_SLOTS_H
#define COORDINATOR_SLOTS_H

#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct learned_slot;
struct learning;
struct text;
struct up_ready;
struct worker;

bool slot_valid(const struct slot_id *id);
// True if the worker does not have the slot's module.
bool slot_absent(const struct worker *worker, const struct slot_id *id);
// True if the rank has made the slot.
bool slot_made(const struct learned_slot *slot, uint32_t rank);
struct learned_slot *slot_find(struct learning *learning, const struct slot_id *id);
// Adds a slot to the step. Returns NULL if the step has LOCKSTEP_MAX_SLOTS already.
struct learned_slot *slot_add(struct coordinator *core, struct job *job,
                              const struct up_ready *ready, uint32_t rank);
void slot_name(struct text *sentence, const struct slot_id *id);

#endif
