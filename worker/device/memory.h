// SPDX-License-Identifier: Apache-2.0
//
// Transfer memory of a device. The driver's thread, between device_enter and device_leave, except
// device_reserve: any thread that may block.

#ifndef WORKER_DEVICE_MEMORY_H
#define WORKER_DEVICE_MEMORY_H

#include "worker/device/device.h"

#include <stddef.h>
#include <stdint.h>

// Makes `count` more blocks of `bytes` bytes. May synchronize with the device. Returns 0 or -1.
int device_reserve(struct device *device, enum device_memory kind, size_t bytes, uint32_t count);
// Takes the smallest free block of at least `bytes` bytes. Returns NULL if there is none.
struct device_block *device_find(struct device *device, enum device_memory kind, size_t bytes);
// As device_find, but makes a new block if no free block fits, which may synchronize with the
// device. Returns NULL if there is no memory, or if the device has failed.
struct device_block *device_take(struct device *device, enum device_memory kind, size_t bytes);
void device_give(struct device *device, struct device_block *block);
// Takes pinned memory, and gives it back. Any thread. device_pin returns NULL if there is no memory
// or the device has failed; it may synchronize with the device if no free block fits.
struct device_block *device_pin(struct device *device, size_t bytes);
void device_unpin(struct device *device, struct device_block *block);
// Returns the number of blocks made so far.
uint64_t device_allocations(const struct device *device);
// Calls visit for each free block of the pool of large scratch blocks, which buckets use.
void device_visit_rows(const struct device *device,
                       void (*visit)(void *context, const struct device_block *block),
                       void *context);
// Returns all free blocks to the CUDA driver.
void device_memory_fini(struct device *device);

#endif
