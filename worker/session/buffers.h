// SPDX-License-Identifier: Apache-2.0
//
// The buffers of all modules, in groups. worker/api/start.c forms the groups.

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

// Buffers of one policy and dtype. One collective makes them equal on all ranks.
struct buffer_group {
    // set at start, then constant
    lockstep_buffer_policy policy;
    enum dtype dtype;
    bool on_devices; // True if the buffers are in device memory on ranks that have a device.
    const struct tensor **tensors; // [count], in manifest order.
    struct extent *extents; // [count]: the extents of this step. driver while in flight
    uint32_t count;
    // Copies of the buffers of this step as they were before the exchange, one after the other, if
    // the session goes on after a death; else NULL. driver while in flight
    uint8_t *kept;
    struct lockstep_work *work; // Reserved for this group, so the trainer cannot use it up.

    bool in_flight; // trainer
    struct device_ready ready; // trainer; an event of the stream with which the step ends.
    struct device *ready_device; // trainer; the device of that stream.
};

// set at start, then constant
struct buffers {
    struct buffer_group groups[LOCKSTEP_MAX_BUFFER_GROUPS];
    uint32_t group_count;
    const struct tensor **tensors; // The array into which each group's `tensors` points. Owned.
    struct extent *extents; // The array into which each group's `extents` points. Owned.
    uint8_t *kept; // The memory into which each group's `kept` points. Owned if there is no block.
    struct device_block *block; // Pinned memory with `kept`, on a rank with a device; else NULL.
};

#endif
