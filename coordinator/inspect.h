// SPDX-License-Identifier: Apache-2.0
//
// The functions of inspect.c that other files call.

#ifndef COORDINATOR_INSPECT_H
#define COORDINATOR_INSPECT_H

#include "protos/types.h"

#include <stdint.h>

struct coordinator;
struct job;
struct sentence;
struct worker;

// "'actor'", or "module 2" as long as nobody has named it.
void core_module_name(struct sentence *sentence, const struct job *job, uint32_t module);
// "'actor' (call 3)". People count from 1.
void core_call_name(struct sentence *sentence, const struct job *job, struct call_id call);
void stall_modules(struct coordinator *core, struct worker *worker,
                   const struct up_modules *modules);
void stall_asked(struct coordinator *core, const char *job, uint32_t rank, uint32_t what);
void stall_answer(struct coordinator *core, struct worker *worker, const struct up_answer *answer);
// Asks a connected member, unless it was asked a moment ago. The number of the question; 0: none.
uint64_t inspect_ask(struct coordinator *core, struct worker *worker, uint32_t what);

#endif
