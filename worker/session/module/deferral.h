// SPDX-License-Identifier: Apache-2.0
//
// The functions of deferral.c that other files call.

#ifndef WORKER_SESSION_MODULE_DEFERRAL_H
#define WORKER_SESSION_MODULE_DEFERRAL_H

#include <stdbool.h>
#include <stdint.h>

struct contribution;
struct lockstep_module;
struct lockstep_session;

// Sees to it that modules can put contributions off where the configuration may ask for it.
// Trainer, at start.
int deferral_start(struct lockstep_session *session);
// The module ends: what is left of it is said in the log, and freed.
void deferral_end(struct lockstep_module *module);
// True if something that was deferred in an earlier step may travel with a call of this one.
// Trainer, between steps.
bool deferral_waits(const struct lockstep_module *module);
// Refuses the weight of a step if, with what was deferred before, some call could come to carry
// more than LOCKSTEP_MAX_WEIGHT. Trainer, between steps.
int deferral_check_weight(const struct lockstep_session *session, uint64_t weight);
// The bucket is deferred: what its call made is in memory, and counts later. Driver, when it is
// ready.
void deferral_put_off(struct contribution *contribution, uint32_t bucket);
// Or it travels in this step, with what was deferred: when it is ready, and before it is launched.
// Driver; nothing when it was deferred, or was said before.
void deferral_take(struct contribution *contribution, uint32_t bucket);
// Makes all memory what the other ranks hold. Trainer, when the step has settled.
void deferral_put_back(struct lockstep_session *session);

#endif
