// SPDX-License-Identifier: Apache-2.0
//
// Hellos, and the world that a job waits for. Runs inside coordinator_step.

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
// A gathering worker is gone, or is refused with a text (its stream then ends).
void join_forget(struct coordinator *core, struct worker *worker);
void join_turn_away(struct coordinator *core, struct worker *worker, enum refusal refusal,
                    const char *text);
void join_tick(struct coordinator *core, struct job *job);
void join_drain(struct coordinator *core);

#endif
