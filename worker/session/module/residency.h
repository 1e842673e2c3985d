// SPDX-License-Identifier: Apache-2.0
//
// The memory of tensors: the host's, or that of this rank's device. What this rank has found out
// when something was registered, and what lockstep_start makes all ranks agree on: of every
// gradient and every buffer, whether ranks that have a device have it there. Bucket layouts and
// groups of buffers follow from that (buckets.h, worker/api/start.c). Trainer's thread, but for
// residency_check_gradient.

#ifndef WORKER_SESSION_MODULE_RESIDENCY_H
#define WORKER_SESSION_MODULE_RESIDENCY_H

#include "worker/session/session.h"

// Memory that the trainer has passed, for texts.
struct passed_memory {
    const char *module;
    const char *tensor;
    const char *field; // "data", "gradient"
    const void *memory; // NULL: none, which is on no device.
    uint32_t replica; // The replica whose tensor it is.
};

// *device becomes whether it is on this rank's device, the first one if it has several.
// LOCKSTEP_E_INVALID: it is on another one.
int residency_find(const struct lockstep_session *session, const struct passed_memory *passed,
                   bool *device);
// The same for everything that a module has; and what is not possible on devices. When it is
// registered.
int residency_check_module(struct lockstep_module *module);
// A parameter has other memory from now on; either may be NULL. Nothing has changed when it cannot.
int residency_move(struct lockstep_module *module, uint32_t parameter, const void *data,
                   const void *gradient);
// The same for a buffer, whose memory is where lockstep_start agreed.
int residency_move_buffer(struct lockstep_module *module, uint32_t buffer, const void *data);

// True if some rank of this world has a device.
bool residency_matters(const struct lockstep_session *session);
// Agrees on where everything is, and makes the layouts that follow. All ranks, when their manifests
// are equal and before anything else travels; where it matters. Blocks.
int residency_agree(struct lockstep_session *session);

// The same where no rank has a device: layouts that were loaded may be of a world that had. Does
// not block.
int residency_check_loaded(struct lockstep_session *session);

// The memory and stream that a report gives for a gradient of a replica.
struct passed_gradient {
    uint32_t replica;
    const void *memory; // NULL: the one that was registered.
    void *stream; // NULL: none.
};
// The memory is where it was agreed to be, and so is the stream. Any thread.
int residency_check_gradient(const struct lockstep_module *module, uint32_t parameter,
                             const struct passed_gradient *passed);

#endif
