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
// Makes room by forgetting the oldest job with nobody connected. False: there is none.
bool job_recycle(struct coordinator *core);
void job_remove_worker(struct coordinator *core, struct job *job, struct worker *worker);
struct worker *job_worker(struct coordinator *core, const struct job *job, uint32_t index);
bool job_running(const struct job *job); // Starting or running.
// A rank said that a step is final on every rank.
void job_settled(struct coordinator *core, struct job *job, uint64_t step);

// For a verdict about members that are in lockstep_start: the step that comes after it.
uint64_t job_start_step(const struct job *job, const struct worker *starter);

#endif
