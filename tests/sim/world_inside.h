// SPDX-License-Identifier: Apache-2.0
//
// Declarations that the files of a small world share; the rest of the world includes world.h.
//
//   world.c           what can happen, and what it does: slots, waves, arrivals, disasters
//   world_core.c      the coordinator and its streams, and how a world begins
//   world_rank.c      a trainer, and what its order core decides
//   world_check.c     invariants, and what has come of it
//   world_snapshot.c  states: copies and hashes
//   world_message.c   messages by number
//   world_program.c   programs from text

#ifndef TESTS_SIM_WORLD_INSIDE_H
#define TESTS_SIM_WORLD_INSIDE_H

#include "tests/sim/world.h"

static inline bool world_in_set(uint32_t set, uint32_t rank)
{
    return (set >> rank & 1) != 0;
}

// The trainer and the engine of this rank go on.
static inline bool world_lives(const struct world_rank *rank)
{
    return rank->mode == MODE_RUNS || rank->mode == MODE_ENDS;
}

// Writes a line for listeners.
void world_say(const struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// ---- world_core.c -------------------------------------------------------------------------------

uint64_t world_phase(char letter);
// text NULL: the verdict of the close wave.
void world_rank_fails(struct world *world, uint32_t r, enum halt_kind halt, const char *text);
void world_stream_up(struct world *world, uint32_t r, const struct up_message *message);
void world_stream_down(struct world *world, uint32_t r, const struct down_message *message);
// Takes the first number out.
void world_channel_pop(uint32_t *numbers, uint8_t *count);
// The coordinator hears a message; the end of a stream.
void world_core_hears(struct world *world, uint32_t r, const struct up_message *message);
void world_core_ended(struct world *world, uint32_t r);

// ---- world_rank.c -------------------------------------------------------------------------------

// Moves the contribution that travels by this slot, with what was deferred before, from one place
// to another.
void world_made_move(struct world_rank *rank, const struct slot_id *id, enum made_where from,
                     enum made_where to);
void world_order_acts(void *context, const struct order_action *action); // A sink.
const struct world_part *world_part_of(const struct world *world, uint32_t r, uint32_t t);
// A thread that can take its next step; takes it.
bool world_trainer_can(const struct world *world, uint32_t r, uint32_t t);
void world_trainer_steps(struct world *world, uint32_t r, uint32_t t);

#endif
