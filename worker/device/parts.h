// SPDX-License-Identifier: Apache-2.0
//
// What the files of a device share: device.c (its life, events, streams) and memory.c (the
// memory that transfers go through). Nobody else includes it.

#ifndef WORKER_DEVICE_PARTS_H
#define WORKER_DEVICE_PARTS_H

#include "base/mutex.h"
#include "worker/device/cuda.h"
#include "worker/device/device.h"

#include <stdatomic.h>

#define DEVICE_POOLS 4 // Small and large blocks of either kind.

enum device_health {
    HEALTH_GOOD,
    HEALTH_ENDING, // Somebody writes why.
    HEALTH_FAILED,
};

// Whom the driver's thread calls. Lives as long as a callback may come, which can be longer than
// its device.
struct bell {
    struct mutex mutex;
    // guarded by mutex
    void (*ring)(void *context);
    void *context;
    // atomic
    _Atomic(uint64_t) awaited; // Callbacks that were asked for and have not come.
};

struct device {
    // set at open, then constant
    const struct cuda *cuda;
    void *context;
    int handle; // What CUDA calls the device.
    bool retained; // The context is the primary one, and held.
    struct device_facts facts;
    void *streams[DEVICE_STREAMS];
    void *copies; // The stream of device_copy.
    void *follow[DEVICE_STREAMS]; // Events of device_stream_follow, and ...
    void *crossed[DEVICE_STREAMS]; // ... of device_follow: another thread's.
    void *module;
    void *kernels[DEVICE_KERNELS];
    struct bell *bell;
    // atomic; the text is constant once the device has failed
    _Atomic(int) health; // enum device_health
    char text[DEVICE_TEXT_BYTES];
    // driver only
    struct device_block *free[DEVICE_POOLS];
    uint64_t allocations;
};

#endif
