// SPDX-License-Identifier: Apache-2.0
//
// The end of a stall. Runs inside coordinator_step.

#ifndef COORDINATOR_STALL_END_H
#define COORDINATOR_STALL_END_H

struct coordinator;
struct job;

// Ends the job's stall, if there is one. why: the reason, for the log.
void stall_end(struct coordinator *core, struct job *job, const char *why);

#endif
