// SPDX-License-Identifier: Apache-2.0
//
// The struct that open.c, device.c and memory.c share. No file outside of this wing includes it.

#ifndef WORKER_DEVICE_PARTS_H
#define WORKER_DEVICE_PARTS_H

#include "base/mutex.h"
#include "worker/device/cuda.h"
#include "worker/device/device.h"

#include <stdatomic.h>

#define DEVICE_POOLS 4 // Small and large blocks of either kind.

enum device_health {
    HEALTH_GOOD,
    HEALTH_ENDING, // A thread is writing the reason.
    HEALTH_FAILED,
};

// The function that CUDA's thread calls. The bell lives as long as a callback may come, which can
// be longer than its device.
struct bell {
    struct mutex mutex;
    // guarded by mutex
    void (*ring)(void *context);
    void *context;
    // atomic
    _Atomic(uint64_t) awaited; // Callbacks that were requested and have not come.
};

struct device {
    // set at open, then constant
    const struct cuda *cuda;
    void *context;
    int handle; // The device's CUdevice.
    bool retained; // True if the context is the primary one, and this library holds it.
    struct device_facts facts;
    void *streams[DEVICE_STREAMS];
    void *copies; // The stream of device_copy.
    void *follow[DEVICE_STREAMS]; // Events of device_stream_follow.
    void *crossed[DEVICE_STREAMS]; // Events of device_follow, which runs on another thread.
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
