// SPDX-License-Identifier: Apache-2.0
//
// Declarations that the files of a small world share; the rest of the world includes world.h.
//
//   world.c           the events and their effects: slots, waves, arrivals, disasters
//   world_core.c      the coordinator and its streams, and the begin of a world
//   world_rank.c      a trainer, and the actions of its order core
//   world_check.c     invariants, and the outcome
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

// True if the trainer and the engine of this rank still run.
static inline bool world_lives(const struct world_rank *rank)
{
    return rank->mode == MODE_RUNS || rank->mode == MODE_ENDS;
}

// Passes a line to world->say, if it is not NULL.
void world_say(const struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// ---- world_core.c -------------------------------------------------------------------------------

uint64_t world_phase(char letter);
// A rank fails with a verdict. text NULL: the verdict comes from the close wave.
void world_rank_fails(struct world *world, uint32_t r, enum halt_kind halt, const char *text);
void world_stream_up(struct world *world, uint32_t r, const struct up_message *message);
void world_stream_down(struct world *world, uint32_t r, const struct down_message *message);
// Removes the first number of a channel.
void world_channel_pop(uint32_t *numbers, uint8_t *count);
// The coordinator gets a message; the coordinator learns that a stream has ended.
void world_core_hears(struct world *world, uint32_t r, const struct up_message *message);
void world_core_ended(struct world *world, uint32_t r);
// Another coordinator takes the place of this one, and knows nothing.
void world_core_restarts(struct world *world);
// The hello of a rank that comes back.
void world_says_hello(struct world *world, uint32_t r);

// ---- world_rank.c -------------------------------------------------------------------------------

// Moves the contribution that travels in this slot, and the deferred ones that travel with it, from
// one place to another.
void world_made_move(struct world_rank *rank, const struct slot_id *id, enum made_where from,
                     enum made_where to);
// Handles an action of a rank's order core.
void world_order_acts(void *context, const struct order_action *action);
const struct world_part *world_part_of(const struct world *world, uint32_t r, uint32_t t);
// world_trainer_can: true if a thread can do its next op. world_trainer_steps does it.
void world_layouts(struct world *world, uint32_t r); // Proposes the layouts of all modules.
bool world_trainer_can(const struct world *world, uint32_t r, uint32_t t);
void world_trainer_steps(struct world *world, uint32_t r, uint32_t t);

#endif
