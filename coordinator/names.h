// SPDX-License-Identifier: Apache-2.0
//
// The names of modules, calls and ranks, as sentences write them. Runs inside coordinator_step.

#ifndef COORDINATOR_NAMES_H
#define COORDINATOR_NAMES_H

#include "protos/types.h"
#include <stdint.h>

struct coordinator;
struct job;
struct text;
struct up_lost;
struct up_modules;
struct worker;

// Adds "'actor'", or "module 2" if rank 0 has not sent the name yet.
void core_module_name(struct text *sentence, const struct job *job, uint32_t module);

// Adds "'actor' (call 3)". The text counts calls from 1.
void core_call_name(struct text *sentence, const struct job *job, struct call_id call);

// A member sent names of modules.
void names_told(struct coordinator *core, struct worker *worker, const struct up_modules *modules);

// Adds "rank 2 (host b)".
void core_rank_name(struct text *sentence, const struct worker *worker);

// Adds "the link between rank 2 (host b) and rank 3 (host b)".
void names_link(struct text *sentence, const struct worker *a, const struct worker *b);

// Adds " in step 12", or nothing for step 0: there is none yet.
void names_step(struct text *sentence, uint64_t step);

// Returns the worker that has seen the loss: the reporter, or the rank that told it.
const struct worker *names_witness(struct coordinator *core, const struct worker *reporter,
                                   const struct up_lost *lost);

// Adds what the witness saw of a lost rank: "rank 2 (host b) saw "connection reset" in step 12" or
// "rank 2 (host b) saw "connection reset" in step 12, as rank 0 heard".
void names_loss(struct coordinator *core, struct text *sentence, const struct worker *reporter,
                const struct up_lost *lost);

const char *core_dtype_name(enum dtype dtype); // "float32"

#endif
