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

// Opens a stash for every module, if the configuration allows deferred buckets. Trainer, at start.
int deferral_start(struct lockstep_session *session);
// Frees the module's stash. Logs deferred gradients that have never travelled. Trainer.
void deferral_end(struct lockstep_module *module);
// True if the module has deferred gradients of earlier steps. Trainer, between steps.
bool deferral_waits(const struct lockstep_module *module);
// Refuses the weight of a step if some call, with the gradients deferred before, could carry a
// weight of more than LOCKSTEP_MAX_WEIGHT. Trainer, between steps.
int deferral_check_weight(const struct lockstep_session *session, uint64_t weight);
// Defers a bucket that is ready: keeps its gradients in the stash for a later step. Driver.
void deferral_put_off(struct contribution *contribution, uint32_t bucket);
// Decides that a ready bucket travels in this step, and adds the deferred gradients to it. Does
// nothing if the bucket was deferred or was decided before. Driver, before the launch.
void deferral_take(struct contribution *contribution, uint32_t bucket);
// Writes the results that other ranks have to the memory of gradients whose result was held or that
// were deferred. Trainer, when the step has settled.
void deferral_put_back(struct lockstep_session *session);

#endif
