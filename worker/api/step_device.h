// SPDX-License-Identifier: Apache-2.0
//
// The functions of step_device.c that other files call.

#ifndef WORKER_API_STEP_DEVICE_H
#define WORKER_API_STEP_DEVICE_H

#include <stdint.h>

struct lockstep_module;
struct lockstep_session;

// Results of the last step that a stream waits for are in the memory of this rank's device, or the
// deadline has passed: LOCKSTEP_E_TIMEOUT. Trainer, outside a step.
int step_device_land(struct lockstep_session *session, uint64_t deadline_ms);
// The step has settled, and its results may still be on their way on the device: the stream waits
// for them there, or this thread, where there is none or what is to be said needs them. Trainer.
int step_device_await(struct lockstep_session *session, void *stream);
// The mean of sums over samples in a world of one. On the device by way of the host, piece by
// piece: rare, and not in any job that several ranks make.
int step_device_divide(const struct lockstep_module *module, uint32_t parameter, char *memory,
                       uint64_t weight);

#endif
