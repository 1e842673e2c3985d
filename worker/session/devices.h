// SPDX-License-Identifier: Apache-2.0
//
// The devices of this rank. worker/api/open.c opens them.

#ifndef WORKER_SESSION_DEVICES_H
#define WORKER_SESSION_DEVICES_H

#include "protos/limits.h"
#include "worker/transport/flow/collective.h"

#include <stdint.h>

struct device;

struct own_devices {
    // set at open, then constant
    struct device *first; // NULL: this rank has no device.
    struct device *all[LOCKSTEP_MAX_OWN_DEVICES]; // [count]
    uint32_t count;
    char problem[LOCKSTEP_NAME_BYTES]; // Why a device cannot be used; "": none has a problem.
    // [count]: for each device, an event that covers the work that its streams had been given at
    // lockstep_step_end or at lockstep_call_wait. Any thread; see
    // worker/session/module/device_events.h.
    struct device_ready end_ready[LOCKSTEP_MAX_OWN_DEVICES];
    struct device_ready wait_ready[LOCKSTEP_MAX_OWN_DEVICES];
};

#endif
