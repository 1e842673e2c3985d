// SPDX-License-Identifier: Apache-2.0
//
// A simulated worker around the real order core (worker/order/order.c): a thin engine that does
// what worker/engine/engine.c and its parts do, without threads, memory or bytes, and a trainer
// that runs a program. Its streams are the simulator's. Its data plane:
//
// - step headers and waves are messages on the links; waves follow the real schedule
//   (worker/transport/flow/wave.h) and the real merges;
// - a slot is a collective of the simulator's: it becomes final on each rank in that rank's own
//   time, after all ranks have launched it; where the data plane of a rank pairs by position, it
//   takes part in one after the other, in the order of its launches;
// - a peer that has left is lost as soon as something here needs it, as in
//   worker/transport/transport.h.
//
// This file repeats the decisions of worker/engine/tell.c: which rank is reported, how long a
// verdict is waited for, when the coordinator is needed, what an abort does, when links are closed
// and how. Change both files together. One difference: the last frames before a goodbye always
// arrive here, while a real goodbye waits for them only for a limited time.

#ifndef TESTS_SIM_SIM_ENGINE_H
#define TESTS_SIM_SIM_ENGINE_H

#include "tests/sim/sim_ledger.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_program.h"

struct engine_options {
    uint32_t rank; // The rank hint, and the row of the program.
    uint32_t think_ms; // The longest time between two actions of the trainer.
    // Number of the order core's action at which the process dies, inside an event; 0: never.
    uint32_t dies_at;
};

// program, ledger and options are borrowed until the end of the run.
struct sim_worker *engine_spawn(struct sim *sim, const struct program *program,
                                struct ledger *ledger, const struct engine_options *options,
                                uint64_t delay_ms);

#endif
