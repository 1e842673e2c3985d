// SPDX-License-Identifier: Apache-2.0
//
// What collectives on this rank's device wait for. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_INSPECT_H
#define WORKER_TRANSPORT_DEVICE_INSPECT_H

#include "protos/types.h"

#include <stddef.h>

struct collective;
struct device_ready;
struct flows;

// What the first collective that was launched here waits for of this rank's device; the rest is set
// for DEVICE_HOLD_STREAM only.
struct device_held {
    enum device_hold hold;
    const struct collective *collective; // It, ...
    const struct device_ready *ready; // ... and the first stream that has not made its part.
};

// What the first collective launched here waits for on this rank's device.
struct device_held device_inspect(struct flows *flows);
// What NCCL has said last of whatever went wrong, in one line; "": nothing.
void device_inspect_nccl(const struct flows *flows, char *text, size_t bytes);

#endif
