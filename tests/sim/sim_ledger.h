// SPDX-License-Identifier: Apache-2.0
//
// The ledger of one world of real worker cores: what each rank launched, finished and settled, and
// how it failed. Every entry is checked against the other ranks and the program. A contradiction
// fails the run and prints its trace. The sections are those of the order protocol.
//
//   - R0   the open wave says how many ranks the programs have without data, and ends them in time;
//   - 7.1  the order of a step is the same on all ranks, as far as each has it;
//   - R3   a launch stays in the window; if the data plane pairs by position, launches are in
//          order; a rank launches only after its earlier steps settled;
//   - 7.3  the lowest slot that is not final is launched as soon as it is ready;
//   - 7.5  no rank is more than 2W - 1 positions ahead of the lowest slot of another rank;
//   - R5   after step_end no planned slot is unready;
//   - R6   every rank gets the same close result, when all have ended the step in one phase;
//   - 7.9  when a step is settled anywhere, every slot of it is final everywhere;
//   - 7.8  a step that settles has the contributors and the commit payload that the programs say;
//   - R12  a halt of step s takes effect when s - 1 is settled, and then s settles nowhere;
//   - 7.10 a planned step sends nothing to the coordinator unless something is wrong, or some rank
//          waits for a call;
//   - 7.7  of calls: when a step settles on a rank, every part that it has made so far is in the
//          result of the slot in which the programs say it is, or in its stash.

#ifndef TESTS_SIM_SIM_LEDGER_H
#define TESTS_SIM_SIM_LEDGER_H

#include "tests/sim/sim_calls_run.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_program.h"
#include "worker/order/order.h"

#include <stdbool.h>
#include <stdint.h>

// How a session ended on a rank.
enum session_end {
    SESSION_RUNS = 0,
    SESSION_LEFT, // The session was left in good order.
    SESSION_HALTED, // A verdict, with kind and text, ended the session.
    SESSION_UNREACHABLE, // The rank needed the coordinator, which is gone.
    SESSION_ABORTED, // The rank's own trainer aborted the session.
};

struct ledger_slot {
    struct slot_id id;
    uint32_t launched; // Set of ranks that have launched the slot.
    uint32_t final; // Set of ranks on which the slot is final.
    struct parts parts;
};

struct ledger_step {
    uint32_t slot_count;
    struct ledger_slot slots[PROGRAM_SLOTS]; // In the order of the rank that had each one first.
    uint64_t space;
    bool learning;
    uint32_t begun; // Set of ranks that have begun the step; the next three are sets of ranks, too.
    uint32_t ended;
    uint32_t closed;
    uint32_t settled;
    struct close_wave close;
    struct commit_wave commit;
    bool committed;
};

struct ledger_rank {
    const struct order *order;
    const struct calls_run *run; // The run of a program of calls.
    uint32_t seen; // Number of positions of the present step that were compared.
    uint64_t settled;
    enum session_end end;
    enum halt_kind verdict;
    char text[LOCKSTEP_REPORT_BYTES];
    bool own_verdict; // True if the rank itself found the verdict: no other rank sent it.
};

struct ledger {
    struct sim *sim;
    const struct program *program;
    // Required outcomes by step. For a program of calls each is filled when its step begins.
    struct program_outcome outcomes[PROGRAM_STEPS + 1];
    struct calls_stash stashes[CALLS_STEPS + 1]; // Required stashes after each step.
    uint64_t replaced; // Number of steps on a plan that has replaced a learned plan.
    uint64_t expected_to; // The last step of a program of calls whose outcome is known.
    // The step in which ranks may wait for each other for ever without a verdict; 0: none.
    uint64_t hangs_in;
    // By step and phase, because ranks may be in different phases of a step.
    struct ledger_step steps[PROGRAM_STEPS + 1][PROGRAM_PHASES];
    struct ledger_rank ranks[PROGRAM_WORLD];
    uint64_t halted_step; // Lowest step of a halt that took effect; 0: none.
    bool faults; // True if the test injected a fault, such as a crash.
};

void ledger_begin(struct ledger *ledger, struct sim *sim, const struct program *program);
// A rank has joined its generation. order and run are borrowed.
void ledger_joined(struct ledger *ledger, uint32_t rank, const struct order *order,
                   const struct calls_run *run);
// A rank has the result of its open wave. ledger_opened: the step can begin. ledger_no_step: there
// is no further step.
void ledger_opened(struct ledger *ledger, uint32_t rank, uint64_t step,
                   const struct open_wave *result);
void ledger_no_step(struct ledger *ledger, uint32_t rank, uint64_t step);
void ledger_step_begun(struct ledger *ledger, uint32_t rank);
void ledger_step_ended(struct ledger *ledger, uint32_t rank);
void ledger_launched(struct ledger *ledger, uint32_t rank, const struct order_action *action);
void ledger_final(struct ledger *ledger, uint32_t rank, uint32_t index, const struct parts *parts);
void ledger_closed(struct ledger *ledger, uint32_t rank, const struct close_wave *result);
// A rank joins the commit wave; a rank has the result of the commit wave.
void ledger_commits(struct ledger *ledger, uint32_t rank);
void ledger_committed(struct ledger *ledger, uint32_t rank, const struct commit_wave *result);
void ledger_settled(struct ledger *ledger, uint32_t rank, uint64_t step);
void ledger_says(struct ledger *ledger, uint32_t rank, const struct up_message *message);
// step: the step of the halt, 0: at once. own: the halt is the rank's own finding.
void ledger_halted(struct ledger *ledger, uint32_t rank, uint64_t step, bool own);
void ledger_ended(struct ledger *ledger, uint32_t rank, enum session_end end,
                  enum halt_kind verdict, const char *text);
// Checks the invariants that hold whenever a rank has handled an event.
void ledger_check(struct ledger *ledger, uint32_t rank);
// Checks the end of a run into which no fault was injected.
void ledger_finished(const struct ledger *ledger);

#endif
