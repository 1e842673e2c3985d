// SPDX-License-Identifier: Apache-2.0
//
// The buffers of all modules, in the groups that worker/api/start.c makes equal.

#ifndef WORKER_SESSION_BUFFERS_H
#define WORKER_SESSION_BUFFERS_H

#include "protos/types.h"
#include "worker/transport/flow/collective.h"

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stdint.h>

struct device;
struct lockstep_work;
struct tensor;

// Buffers of one policy and dtype, which are made equal by one collective.
struct buffer_group {
    // set at start, then constant
    lockstep_buffer_policy policy;
    enum dtype dtype;
    bool on_devices; // True if they are on the device of each rank that has one.
    const struct tensor **tensors; // [count], in manifest order.
    struct extent *extents; // [count]: those that are due. driver while in flight
    uint32_t count;
    struct lockstep_work *work; // Its own, so that no trainer can use it up.

    bool in_flight; // trainer
    struct device_ready ready; // trainer; the event of the stream by which the step ends.
    struct device *ready_device; // trainer; the device of that stream.
};

// set at start, then constant
struct buffers {
    struct buffer_group groups[LOCKSTEP_MAX_BUFFER_GROUPS];
    uint32_t group_count;
    const struct tensor **tensors; // The array that the groups point into.
    struct extent *extents; // The same for extents.
};

#endif
