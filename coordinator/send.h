// SPDX-License-Identifier: Apache-2.0
//
// Sends messages to workers, and log lines. A caller fills the message that core_message returns,
// then sends it. Runs inside coordinator_step.

#ifndef COORDINATOR_SEND_H
#define COORDINATOR_SEND_H

#include "coordinator/coordinator.h"
#include "protos/types.h"

struct coordinator;
struct job;
struct worker;

// Returns core->out as an empty message of the job's generation. job may be NULL: no generation.
struct down_message *core_message(struct coordinator *core, const struct job *job,
                                  enum down_kind kind);

// Sends core->out to the worker, if it is connected.
void core_send(struct coordinator *core, const struct worker *worker);

// Sends core->out to every connected member, in the order of ranks.
void core_send_all(struct coordinator *core, const struct job *job);

void core_send_peer(struct coordinator *core, coordinator_peer peer);

void core_log(struct coordinator *core, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Logs a verdict, which the server counts.
void core_log_halt(struct coordinator *core, enum halt_kind halt, const char *id,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
