// SPDX-License-Identifier: Apache-2.0
//
// The functions of job.c that other files call.

#ifndef COORDINATOR_JOB_H
#define COORDINATOR_JOB_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct worker;

struct job *job_find(struct coordinator *core, const char *name);
struct job *job_create(struct coordinator *core, const char *name); // NULL: full.
// Makes room by forgetting the oldest job with nobody connected. False: there is none.
bool job_recycle(struct coordinator *core);
// A finished or halted job gathers again; its members are out.
void job_regather(struct coordinator *core, struct job *job);
void job_remove_worker(struct coordinator *core, struct job *job, struct worker *worker);
struct worker *job_worker(struct coordinator *core, const struct job *job, uint32_t index);
bool job_running(const struct job *job); // Starting or running.

#endif
