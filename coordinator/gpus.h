// SPDX-License-Identifier: Apache-2.0
//
// Whether the GPUs of a world can work together. Runs inside coordinator_step.

#ifndef COORDINATOR_GPUS_H
#define COORDINATOR_GPUS_H

#include <stdbool.h>

struct coordinator;
struct job;
struct sentence;

// True if the GPUs of the job's gatherers cannot work together; the sentence then says why.
bool gpus_conflict(struct coordinator *core, const struct job *job, struct sentence *sentence);
// Whether the GPUs of the job's workers, of which some have none, sum by NCCL before the hosts do.
bool gpus_meet(struct coordinator *core, const struct job *job);

#endif
