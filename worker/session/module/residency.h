// SPDX-License-Identifier: Apache-2.0
//
// Where tensors are: in host memory, or in the memory of this rank's device. Each rank finds this
// out when a tensor is registered. In lockstep_start all ranks agree, for every gradient and every
// buffer, whether ranks with a device have it in device memory. Bucket layouts and groups of
// buffers depend on that (buckets.h, worker/api/start.c). Trainer, except residency_check_gradient.

#ifndef WORKER_SESSION_MODULE_RESIDENCY_H
#define WORKER_SESSION_MODULE_RESIDENCY_H

#include "worker/session/session.h"

// Memory that the trainer has passed, with its names for error texts.
struct passed_memory {
    const char *module;
    const char *tensor;
    const char *field; // "data", "gradient"
    const void *memory; // NULL counts as not on a device.
    uint32_t replica; // The replica whose tensor it is.
};

// *device becomes true if the memory is on this rank's first device, false if it is on the host.
// LOCKSTEP_E_INVALID: it is on another device.
int residency_find(const struct lockstep_session *session, const struct passed_memory *passed,
                   bool *device);
// Finds out where all tensors of a module are. A failure if one is on a device that it must not be
// on. Called when the module is registered.
int residency_check_module(struct lockstep_module *module);
// The trainer moves a parameter's value and gradient; either may be NULL. On a failure nothing has
// changed.
int residency_move(struct lockstep_module *module, uint32_t parameter, const void *data,
                   const void *gradient);
// The same for a buffer. A failure if the new memory is not where lockstep_start has agreed.
int residency_move_buffer(struct lockstep_module *module, uint32_t buffer, const void *data);

// True if some rank of this world has a device.
bool residency_matters(const struct lockstep_session *session);
// Agrees with all ranks on where every tensor is, and makes the layouts that follow. All ranks call
// it if residency_matters, after their manifests are verified and before any tensor travels.
// Blocks.
int residency_agree(struct lockstep_session *session);

// True if a tensor of the module, or a gradient that was registered, is on a device of this rank.
// Called after residency_check_module.
bool residency_is_on_device(const struct lockstep_module *module);

// Called instead if no rank has a device. A failure if loaded layouts come from a world in which
// ranks had devices. Does not block.
int residency_check_loaded(struct lockstep_session *session);

// The memory and stream that a report gives for a gradient of a replica.
struct passed_gradient {
    uint32_t replica;
    const void *memory; // NULL: the registered memory.
    void *stream; // NULL: no stream is given.
};
// A failure if the memory or the stream is not where lockstep_start has agreed. Any thread.
int residency_check_gradient(const struct lockstep_module *module, uint32_t parameter,
                             const struct passed_gradient *passed);

#endif
