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
// Registers a parameter of a further replica. A failure if it is declared differently from the
// first replica's. Trainer, when the module is registered.
int replica_declare(struct lockstep_module *module, uint32_t replica, uint32_t parameter,
                    const struct lockstep_parameter *first, const struct lockstep_parameter *copy);
// Adds up the gradients that the replicas reported. The sum replaces the gradient in the memory
// from which it travels. The thread that hands the gradient over.
void replica_combine(struct contribution *contribution, uint32_t parameter);
// True if the replicas' gradients are on devices of this rank. The transport then adds them up and
// copies the result back. Any thread.
bool replica_is_on_devices(const struct lockstep_module *module, uint32_t parameter);
// Solo session: replica_combine for a complete gradient on devices. Trainer. 0, or
// LOCKSTEP_E_SYSTEM if a device has failed.
int replica_settle(struct contribution *contribution, uint32_t parameter);
// Copies the results of a contribution to all further replicas, unless the transport does it.
// Trainer, when the results are final. 0, or LOCKSTEP_E_SYSTEM if a device has failed.
int replica_copy_contribution(struct contribution *contribution);
// The same for all contributions whose results lockstep_call_wait has not returned.
int replica_copy_results(struct lockstep_session *session);
// Copies the values of the first replica to all others. Trainer, at start. 0, or LOCKSTEP_E_SYSTEM
// if a device has failed.
int replica_copy_values(struct lockstep_session *session);

#endif
