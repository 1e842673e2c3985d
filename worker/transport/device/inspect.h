// SPDX-License-Identifier: Apache-2.0
//
// Tells what collectives on this rank's device wait for. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_INSPECT_H
#define WORKER_TRANSPORT_DEVICE_INSPECT_H

#include "protos/types.h"

#include <stddef.h>

struct collective;
struct device_ready;
struct flows;

// What the oldest collective in flight waits for on this rank's device.
struct device_held {
    enum device_hold hold;
    const struct collective *collective; // DEVICE_HOLD_STREAM: the collective that waits.
    // DEVICE_HOLD_STREAM: the first stream that has not produced its gradients; NULL: the device
    // has not done the work that this library has enqueued, and nothing else is awaited.
    const struct device_ready *ready;
};

// Returns what the oldest collective in flight that is not ready waits for on this rank's device.
struct device_held device_inspect(struct flows *flows);
// Writes the last error message of NCCL, in one line; "": NCCL reported no error.
void device_inspect_nccl(const struct flows *flows, char *text, size_t bytes);

#endif
