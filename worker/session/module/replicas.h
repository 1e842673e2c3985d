// SPDX-License-Identifier: Apache-2.0
//
// The functions of replicas.c that other files call.

#ifndef WORKER_SESSION_MODULE_REPLICAS_H
#define WORKER_SESSION_MODULE_REPLICAS_H

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stdint.h>

struct contribution;
struct lockstep_module;
struct lockstep_parameter;
struct lockstep_session;
struct replica_gradient;

// The gradient of a further replica, which is numbered from 1.
struct replica_gradient *replica_gradient(const struct contribution *contribution, uint32_t replica,
                                          uint32_t parameter);
// Takes a parameter of a further replica; it has to be declared like that of the first. Trainer,
// when the module is registered.
int replica_declare(struct lockstep_module *module, uint32_t replica, uint32_t parameter,
                    const struct lockstep_parameter *first, const struct lockstep_parameter *copy);
// Adds up what the replicas reported of a gradient, where it travels from. The thread that hands it
// over.
void replica_combine(struct contribution *contribution, uint32_t parameter);
// What its replicas have of a gradient is on devices of this rank: there it is added up and given
// back by what carries it. Any thread.
bool replica_is_on_devices(const struct lockstep_module *module, uint32_t parameter);
// World of one: the same as replica_combine, of a gradient on devices that is complete. Trainer. 0,
// or LOCKSTEP_E_SYSTEM: a device has failed.
int replica_settle(struct contribution *contribution, uint32_t parameter);
// Gives every replica what came back, where that is not the data plane's: of one contribution, and
// of all that did not have it yet. Trainer, when it is final. The same.
int replica_copy_contribution(struct contribution *contribution);
int replica_copy_results(struct lockstep_session *session);
// Makes the values of every replica those of the first. Trainer, at start. The same.
int replica_copy_values(struct lockstep_session *session);

#endif
