// SPDX-License-Identifier: Apache-2.0
//
// The functions of step.c that other files call.

#ifndef WORKER_API_STEP_H
#define WORKER_API_STEP_H

#include <stdint.h>

struct contribution;

// Produces the results of a contribution in a solo session, where no transport does it. Trainer.
int step_settle_contribution(struct contribution *contribution, uint64_t weight);

#endif
