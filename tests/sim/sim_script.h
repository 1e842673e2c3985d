// SPDX-License-Identifier: Apache-2.0
//
// A scripted worker for the simulator: it joins, starts, learns the phases of a small program,
// runs planned steps over the collective oracle, and leaves. It keeps the rules of the order
// protocol that the coordinator relies on (headers, R12), and nothing else of the worker.

#ifndef TESTS_SIM_SIM_SCRIPT_H
#define TESTS_SIM_SIM_SCRIPT_H

#include "tests/sim/sim_network.h"

enum script_limit {
    SCRIPT_STEPS = 12,
    SCRIPT_PHASES = 3,
    SCRIPT_SLOTS = 16,
    SCRIPT_MODULES = 4
};

// The program of a job, the same in all of its workers but for their options.
struct script {
    char job[LOCKSTEP_JOB_NAME_BYTES];
    uint32_t world_min;
    uint32_t world_max;
    uint32_t window_ms;
    uint32_t open_timeout_ms;
    uint32_t modules;
    uint32_t buckets[SCRIPT_MODULES];
    uint32_t steps;
    uint32_t phase[SCRIPT_STEPS + 1]; // Phase of each step, from step 1.
    uint32_t slot_count[SCRIPT_PHASES];
    struct slot_id slots[SCRIPT_PHASES][SCRIPT_SLOTS];
    uint32_t shuffle_percent; // Share of ranks that make a phase's slots in an order of their own.
    uint32_t skip_percent; // Share of slots that a rank does not make.
    uint32_t wait_percent; // Share of slots that a rank waits for.
    uint32_t think_ms; // The longest time between two actions of a worker.
    bool deaf; // True if workers ignore the end of their links.
    uint32_t restart_percent; // Share of workers that join again after a death.
};

struct script_options {
    bool has_hint;
    uint32_t hint;
    uint32_t hosts; // Number of hosts over which workers are spread.
    uint32_t wrong_item; // Item of the manifest that differs on this worker; 0: none.
    uint32_t wrong_phase_at; // Step in which this worker is in another phase; 0: none.
    uint32_t wrong_elements; // Number added to the elements of each slot.
    uint32_t leaves_after; // Step after which the worker leaves; 0: at the end of the program.
    uint32_t tries; // Number of sessions that the worker may still open after this one.
};

void script_draw(struct sim *sim, struct script *script, uint32_t number, uint32_t world);
// script is borrowed until the end of the run.
struct sim_worker *script_spawn(struct sim *sim, const struct script *script,
                                const struct script_options *options, uint64_t delay_ms);
enum halt_kind script_verdict(const struct sim_worker *worker);

#endif
