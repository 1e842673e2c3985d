// SPDX-License-Identifier: Apache-2.0
//
// Random trainer programs for worlds of real worker cores, and the required outcome of each step.
// The outcome follows from the programs alone, without timing and messages. Pure but for memory
// that the caller gives.
//
// A program gives for every rank and step: the phase; the called modules and the order in which
// their buckets become ready; the unused parameters and the counters of the commit wave; and when
// the rank calls lockstep_start again, leaves or aborts. A phase trains one of two sets of
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
    // Slots in the order in which they become ready. Slots that the layout in force does not have
    // are skipped.
    struct slot_id ready[2 * PROGRAM_SLOTS];
    uint32_t ready_count;
    struct commit_wave said;
};

struct program {
    uint32_t world;
    uint32_t steps;
    uint32_t modules;
    uint32_t plan_room; // Number of plans that a rank remembers.
    bool one_set; // True if a rank remembers the layout of only one set of a module.
    uint32_t set_of[PROGRAM_PHASES][PROGRAM_MODULES];
    // Number of buckets until a layout is learned.
    uint32_t first_buckets[PROGRAM_MODULES][PROGRAM_SETS];
    // Number of buckets in the learned layout, which rank 0 proposes.
    uint32_t buckets[PROGRAM_MODULES][PROGRAM_SETS];
    uint32_t steps_of[PROGRAM_WORLD]; // The last step of each rank before it leaves.
    bool midway[PROGRAM_WORLD]; // True if the rank leaves in the middle of the step after steps_of.
    uint32_t aborts_in[PROGRAM_WORLD]; // The step in which a rank aborts; 0: never.
    lockstep_uneven uneven; // Policy for uneven data. If it is not 0, `steps` follows from data_of.
    uint32_t data_of[PROGRAM_WORLD]; // Number of steps for which a rank has data.
    // The step after which a rank calls lockstep_start again; 0: never.
    uint32_t starts_after[PROGRAM_WORLD];
    struct program_step at[PROGRAM_WORLD][PROGRAM_STEPS + 1]; // By rank and step, from step 1.
    // True if the ranks run `calls` instead of at[..].ready. Both have the phases.
    bool has_calls;
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
// Draws a program whose trainers wait for calls. Its only faults are in the order of the calls.
void program_draw_calls(struct program *program, uint64_t seed);
// Computes the outcomes from step 1 to the first step that does not settle, or to the last step.
// For programs of calls use calls_expect instead.
void program_expect(const struct program *program, struct program_outcome *outcomes);
uint64_t program_phase(uint32_t phase); // Returns the hash of the phase's label.
// True if there is no next step when `exhausted` ranks have run out of data.
bool program_finished(const struct program *program, uint32_t exhausted);

// The sets in force and the known layouts: a small model of worker/session/module/sets.c.
struct program_sets {
    uint32_t in_force[PROGRAM_MODULES];
    bool learned[PROGRAM_MODULES][PROGRAM_SETS];
};

// A step of this phase begins. Returns true if a layout was forgotten: then all plans must be
// forgotten, too.
bool program_enter(const struct program *program, struct program_sets *sets, uint32_t phase);
// Number of buckets of a module, in the layout in force.
uint32_t program_buckets(const struct program *program, const struct program_sets *sets,
                         uint32_t module);

#endif
