// SPDX-License-Identifier: Apache-2.0
//
// The functions of step_device.c that other files call.

#ifndef WORKER_API_STEP_DEVICE_H
#define WORKER_API_STEP_DEVICE_H

#include <stdint.h>

struct lockstep_module;
struct lockstep_session;

// Waits until all results of the last step are in the memory of this rank's devices.
// LOCKSTEP_E_TIMEOUT: the deadline has passed. Trainer, outside a step.
int step_device_land(struct lockstep_session *session, uint64_t deadline_ms);
// The step has settled, and work for its results may still be enqueued on the device. Makes the
// stream wait for this work. This thread waits instead if stream is NULL, or if the verdict needs
// the results. Trainer.
int step_device_await(struct lockstep_session *session, void *stream);
// Divides a gradient by the weight, in a solo session whose gradients are sums over samples. A
// gradient on the device is copied to the host and back in pieces: this case is rare. Trainer.
int step_device_divide(const struct lockstep_module *module, uint32_t parameter, char *memory,
                       uint64_t weight);

#endif
