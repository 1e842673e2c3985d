// SPDX-License-Identifier: Apache-2.0
//
// The functions of gpus.c that other files call.

#ifndef COORDINATOR_GPUS_H
#define COORDINATOR_GPUS_H

#include <stdbool.h>

struct coordinator;
struct job;

// Whether the GPUs of the job's gatherers can work together; if not, all of them are turned away.
bool gpus_fit(struct coordinator *core, struct job *job);
// Whether the GPUs of the job's workers, of which some have none, sum by NCCL before the hosts do.
bool gpus_meet(struct coordinator *core, const struct job *job);

#endif
