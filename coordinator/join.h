// SPDX-License-Identifier: Apache-2.0
//
// Accepts or refuses hellos, and decides when a world forms. Runs inside coordinator_step.

#ifndef COORDINATOR_JOIN_H
#define COORDINATOR_JOIN_H

#include "coordinator/coordinator.h"
#include "protos/types.h"

struct coordinator;
struct job;
struct worker;

void join_hello(struct coordinator *core, coordinator_peer peer, const struct up_message *message);
void join_refuse(struct coordinator *core, coordinator_peer peer, enum refusal refusal,
                 const char *text);
// Removes a gathering worker whose stream has ended.
void join_forget(struct coordinator *core, struct worker *worker);
// Refuses a gathering worker with a text, ends its stream and removes it.
void join_turn_away(struct coordinator *core, struct worker *worker, enum refusal refusal,
                    const char *text);
void join_tick(struct coordinator *core, struct job *job);
void join_drain(struct coordinator *core);
// A worker of the job `name` has ended before all had said hello; text says how. Only the first
// such worker of a coordinator's life counts.
void join_absent(struct coordinator *core, const char *name, const char *text);

#endif
