// SPDX-License-Identifier: Apache-2.0
//
// Checks whether the GPUs of a world can work together. Runs inside coordinator_step.

#ifndef COORDINATOR_GPUS_H
#define COORDINATOR_GPUS_H

#include <stdbool.h>

struct coordinator;
struct job;
struct text;

// True if the GPUs of the job's gathering workers cannot work together; *sentence then has the
// reason.
bool gpus_conflict(struct coordinator *core, const struct job *job, struct text *sentence);
// True if only some of the job's workers have GPUs, and these workers first sum among themselves by
// NCCL (down_generation.gpus_meet).
bool gpus_meet(struct coordinator *core, const struct job *job);

#endif
