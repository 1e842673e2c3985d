// SPDX-License-Identifier: Apache-2.0
//
// Random trainer programs for worlds of real worker cores, and what must come of each of their
// steps, told from the programs alone: no timing, no messages. Pure but for memory that the caller
// gives.
//
// A program says for every rank and step: the phase, the modules that are called and in which order
// their buckets become ready, the unused parameters and counters that are said in the commit wave,
// and when the rank calls lockstep_start again, leaves or aborts. A phase trains one of two sets of
// parameters of each module; each set has a layout of its own.

#ifndef TESTS_SIM_SIM_PROGRAM_H
#define TESTS_SIM_SIM_PROGRAM_H

#include "tests/sim/sim_calls.h"
#include "worker/order/order.h"

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stdint.h>

enum program_limit {
    PROGRAM_WORLD = 16,
    PROGRAM_STEPS = 8,
    PROGRAM_MODULES = 12,
    PROGRAM_BUCKETS = 6,
    PROGRAM_PHASES = 4,
    PROGRAM_SETS = 2,
    PROGRAM_SLOTS = PROGRAM_MODULES * PROGRAM_BUCKETS
};

// One step of one rank.
struct program_step {
    uint32_t phase;
    uint32_t called; // Set of modules.
    struct slot_id ready[2 * PROGRAM_SLOTS]; // Whichever exists in the layout in force, in order.
    uint32_t ready_count;
    struct commit_wave said;
};

struct program {
    uint32_t world;
    uint32_t steps;
    uint32_t modules;
    uint32_t plan_room; // Plans that a rank remembers.
    bool one_set; // A rank remembers the layout of one set of a module only.
    uint32_t set_of[PROGRAM_PHASES][PROGRAM_MODULES];
    uint32_t first_buckets[PROGRAM_MODULES][PROGRAM_SETS]; // Buckets until a layout was learned.
    uint32_t buckets[PROGRAM_MODULES][PROGRAM_SETS]; // As rank 0 proposes them.
    uint32_t steps_of[PROGRAM_WORLD]; // Then the rank leaves,
    bool midway[PROGRAM_WORLD]; // or in the middle of the step after.
    uint32_t aborts_in[PROGRAM_WORLD]; // Step; 0: never.
    lockstep_uneven uneven; // Then `steps` follows from data_of.
    uint32_t data_of[PROGRAM_WORLD]; // Steps for which a rank has data.
    uint32_t starts_after[PROGRAM_WORLD]; // Calls lockstep_start again after this step; 0: never.
    struct program_step at[PROGRAM_WORLD][PROGRAM_STEPS + 1]; // By rank and step, from step 1.
    bool has_calls; // The ranks do what `calls` says instead of at[..].ready; phases are in both.
    struct calls calls;
};

// Faults of a program, besides calls that some ranks do not make.
struct program_faults {
    bool extra; // A call outside the plan.
    bool phase; // Ranks in different phases.
    bool leave; // A rank leaves early.
    bool abort;
    bool uneven; // Ranks run out of data, which they may.
    bool start; // Some ranks call lockstep_start again, and others do not.
};

struct program_slot {
    struct slot_id id;
    struct parts parts; // The parts in its result.
};

// The required outcome of a step.
struct program_outcome {
    bool learning;
    uint32_t verdicts; // Set of enum halt_kind, as bits; 0: the step settles on every rank.
    uint32_t slot_count;
    struct program_slot slots[PROGRAM_SLOTS];
    struct commit_wave commit;
};

void program_draw(struct program *program, uint64_t seed, const struct program_faults *faults);
// A program of calls that are waited for. Nothing is wrong in it but their order.
void program_draw_calls(struct program *program, uint64_t seed);
// Outcomes of steps 1 to the first that does not settle, or to the last. Not of calls, for which
// see calls_expect.
void program_expect(const struct program *program, struct program_outcome *outcomes);
uint64_t program_phase(uint32_t phase); // Returns the hash of the phase's label.
// Whether there is no next step when so many ranks are exhausted.
bool program_finished(const struct program *program, uint32_t exhausted);

// The sets in force and the known layouts: worker/session/module/sets.c in small.
struct program_sets {
    uint32_t in_force[PROGRAM_MODULES];
    bool learned[PROGRAM_MODULES][PROGRAM_SETS];
};

// A step of this phase begins. True: a layout was forgotten, and all plans must be.
bool program_enter(const struct program *program, struct program_sets *sets, uint32_t phase);
// Number of buckets of a module, in the layout in force.
uint32_t program_buckets(const struct program *program, const struct program_sets *sets,
                         uint32_t module);

#endif
