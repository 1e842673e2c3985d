// SPDX-License-Identifier: Apache-2.0
//
// The decision of a ballot: what its reports say, and what the members are told. Runs inside
// coordinator_step.

#ifndef COORDINATOR_DECISION_H
#define COORDINATOR_DECISION_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;

// Sends the decision of the job's ballot to every member that is kept. Returns NULL, or why the
// reports allow no decision; then nothing has been sent.
const char *decision_send(struct coordinator *core, struct job *job);
// True if the rank is a suspect of the job's ballot.
bool decision_removes(const struct job *job, uint32_t rank);

#endif
