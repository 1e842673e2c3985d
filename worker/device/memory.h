// SPDX-License-Identifier: Apache-2.0
//
// The memory that transfers of a device go through. The driver's thread, between device_enter and
// device_leave, but for device_reserve.

#ifndef WORKER_DEVICE_MEMORY_H
#define WORKER_DEVICE_MEMORY_H

#include "worker/device/device.h"

#include <stddef.h>
#include <stdint.h>

// Makes `count` more blocks of `bytes`. May synchronize with the device. 0 or -1.
int device_reserve(struct device *device, enum device_memory kind, size_t bytes, uint32_t count);
// Takes the smallest free block of at least so many bytes. NULL if there is none.
struct device_block *device_find(struct device *device, enum device_memory kind, size_t bytes);
// The same, or makes a new block, which may synchronize with the device. NULL: there is no memory,
// or the device has failed.
struct device_block *device_take(struct device *device, enum device_memory kind, size_t bytes);
void device_give(struct device *device, struct device_block *block);
uint64_t device_allocations(const struct device *device); // Blocks made so far.
// Calls visit for each free block of scratch that is large enough for a bucket.
void device_visit_rows(const struct device *device,
                       void (*visit)(void *context, const struct device_block *block),
                       void *context);
// Gives all free blocks back to the driver.
void device_memory_fini(struct device *device);

#endif
