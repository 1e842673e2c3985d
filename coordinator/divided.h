// SPDX-License-Identifier: Apache-2.0
//
// Members that two coordinators share meet at one of them. Runs inside coordinator_step.

#ifndef COORDINATOR_DIVIDED_H
#define COORDINATOR_DIVIDED_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;

// True if members go on after a loss, and may find another coordinator.
bool divided_is_possible(struct coordinator *core, const struct job *job);
// A member is away. Returns when the function is due next; UINT64_MAX: no sooner than otherwise.
uint64_t divided_tick(struct coordinator *core, struct job *job);

#endif
