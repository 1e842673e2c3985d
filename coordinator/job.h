// SPDX-License-Identifier: Apache-2.0
//
// The table of jobs. Runs inside coordinator_step.

#ifndef COORDINATOR_JOB_H
#define COORDINATOR_JOB_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct worker;

struct job *job_find(struct coordinator *core, const char *name);
// Forgets the oldest job without connected workers. Returns false if there is no such job.
bool job_recycle(struct coordinator *core);
void job_remove_worker(struct coordinator *core, struct job *job, struct worker *worker);
struct worker *job_worker(struct coordinator *core, const struct job *job, uint32_t index);
bool job_running(const struct job *job); // True in JOB_STARTING and JOB_RUNNING.
// A rank reported that a step is final on every rank.
void job_settled(struct coordinator *core, struct job *job, uint64_t step);

// Returns the step of a verdict about members in lockstep_start: 0 in the first round, else the
// step after the last one that `starter` has settled.
uint64_t job_start_step(const struct job *job, const struct worker *starter);

#endif
