// SPDX-License-Identifier: Apache-2.0
//
// The gradients of a collective, which streams of the trainer make. The driver's thread, between
// device_enter and device_leave.

#ifndef WORKER_TRANSPORT_DEVICE_INPUTS_H
#define WORKER_TRANSPORT_DEVICE_INPUTS_H

#include <stdbool.h>

struct device_flow;
struct devices;

// False if the flow waits for a stream of the trainer, which may never finish.
bool inputs_are_made(const struct devices *devices, const struct device_flow *flow);
// Wakes the driver when all gradients of the flow are made. 0 or -1.
int inputs_ring(struct devices *devices, const struct device_flow *flow);

#endif
