// SPDX-License-Identifier: Apache-2.0
//
// The struct that open.c, device.c and memory.c share. No file outside this wing includes this
// header.

#ifndef WORKER_DEVICE_PARTS_H
#define WORKER_DEVICE_PARTS_H

#include "base/mutex.h"
#include "worker/device/cuda.h"
#include "worker/device/device.h"

#include <stdatomic.h>

#define DEVICE_POOLS 4 // Pools of small and of large blocks, for each kind of memory.

enum device_health {
    HEALTH_GOOD,
    HEALTH_ENDING, // A thread is writing the reason.
    HEALTH_FAILED,
};

// The function that a thread of CUDA calls. The bell lives as long as a callback is outstanding,
// which can be longer than the device lives.
struct bell {
    struct mutex mutex;
    // guarded by mutex
    void (*ring)(void *context);
    void *context;
    // atomic
    _Atomic(uint64_t) awaited; // Callbacks that were requested and have not run yet.
};

struct device {
    // set at open, then constant
    const struct cuda *cuda;
    void *context;
    int handle; // The CUdevice.
    bool retained; // True if the context is the primary context and this library holds a reference.
    struct device_facts facts;
    void *streams[DEVICE_STREAMS];
    void *copies; // The stream of device_copy.
    void *follow[DEVICE_STREAMS]; // The events of device_stream_follow, one for each stream.
    // The events of device_follow, one for each stream; device_follow runs on another thread than
    // device_stream_follow.
    void *crossed[DEVICE_STREAMS];
    void *module;
    void *kernels[DEVICE_KERNELS];
    struct bell *bell;
    // atomic; the text is constant once the device has failed
    _Atomic(int) health; // enum device_health
    char text[DEVICE_TEXT_BYTES];
    _Atomic(uint64_t) allocations;
    // guarded by pin_mutex
    struct mutex pin_mutex;
    struct device_block *pinned; // Free blocks of device_pin.
    // driver only
    struct device_block *free[DEVICE_POOLS];
};

#endif
