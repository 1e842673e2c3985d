// SPDX-License-Identifier: Apache-2.0
//
// Transfer memory of a device: scratch on the device, and pinned memory of the host. The driver's
// thread, between device_enter and device_leave, except device_reserve. See device.h.
//
// Blocks return to CUDA only when the device is closed, because freeing and allocating may wait for
// all work on the device. A request takes the smallest free block that is large enough. Small
// blocks (tables, headers) have their own pools, so that a small request never takes a block that a
// bucket needs. Blocks of device_pin have a list of their own.

#include "worker/device/memory.h"

#include "worker/device/device.h"
#include "worker/device/parts.h"

#include <stdlib.h>

#define MEMORY_SMALL_BYTES (64 * 1024)
#define MEMORY_LEAST_BYTES 4096
#define MEMORY_STEP_BYTES (64 * 1024) // Large blocks are multiples of this.

// Returns the size of the block for a request. Sizes of small blocks are powers of two, so that
// there are only a few sizes.
static size_t memory_round(size_t bytes)
{
    size_t rounded = MEMORY_LEAST_BYTES;
    if (bytes > MEMORY_SMALL_BYTES)
        return (bytes + MEMORY_STEP_BYTES - 1) / MEMORY_STEP_BYTES * MEMORY_STEP_BYTES;
    while (rounded < bytes)
        rounded *= 2;
    return rounded;
}

static struct device_block **memory_pool(struct device *device, enum device_memory kind,
                                         size_t bytes)
{
    return &device->free[2 * kind + (bytes > MEMORY_SMALL_BYTES)];
}

static int memory_fill(struct device *device, struct device_block *block)
{
    const struct cuda *cuda = device->cuda;
    void *host = NULL;
    if (block->kind == MEMORY_SCRATCH)
        return device_check(device, cuda->mem_alloc(&block->address, block->bytes), "cuMemAlloc");
    if (device_check(device,
                     cuda->mem_host_alloc(&host, block->bytes,
                                          CUDA_HOST_ALLOC_PORTABLE | CUDA_HOST_ALLOC_MAPPED),
                     "cuMemHostAlloc") < 0)
        return -1;
    block->host = host;
    return device_check(device, cuda->mem_host_get_device_pointer(&block->address, host, 0),
                        "cuMemHostGetDevicePointer");
}

static void memory_free(struct device *device, struct device_block *block)
{
    if (block->kind == MEMORY_SCRATCH && block->address)
        (void)device->cuda->mem_free(block->address);
    if (block->host)
        (void)device->cuda->mem_free_host(block->host);
    free(block);
}

static struct device_block *memory_make(struct device *device, enum device_memory kind,
                                        size_t bytes)
{
    struct device_block *block = device_failed(device) ? NULL : calloc(1, sizeof(*block));
    if (!block)
        return NULL;
    block->kind = kind;
    block->bytes = memory_round(bytes); // A power of two stays as it is.
    if (memory_fill(device, block) < 0) {
        memory_free(device, block);
        return NULL;
    }
    atomic_fetch_add(&device->allocations, 1);
    return block;
}

int device_reserve(struct device *device, enum device_memory kind, size_t bytes, uint32_t count)
{
    int status = 0;
    device_enter(device);
    for (uint32_t i = 0; i < count && status == 0; i++) {
        struct device_block *block = memory_make(device, kind, bytes);
        if (block)
            device_give(device, block);
        else
            status = -1;
    }
    device_leave(device);
    return status;
}

struct device_block *device_find(struct device *device, enum device_memory kind, size_t bytes)
{
    struct device_block **best = NULL;
    for (struct device_block **at = memory_pool(device, kind, bytes); *at; at = &(*at)->next) {
        if ((*at)->bytes >= bytes && (!best || (*at)->bytes < (*best)->bytes))
            best = at;
    }
    if (!best)
        return NULL;
    struct device_block *block = *best;
    *best = block->next;
    block->next = NULL;
    return block;
}

struct device_block *device_take(struct device *device, enum device_memory kind, size_t bytes)
{
    struct device_block *block = device_find(device, kind, bytes);
    return block ? block : memory_make(device, kind, bytes);
}

void device_give(struct device *device, struct device_block *block)
{
    struct device_block **pool = memory_pool(device, block->kind, block->bytes);
    block->next = *pool;
    *pool = block;
}

void device_visit_rows(const struct device *device,
                       void (*visit)(void *context, const struct device_block *block),
                       void *context)
{
    const struct device_block *block = device->free[2 * MEMORY_SCRATCH + 1];
    for (; block; block = block->next)
        visit(context, block);
}

// ---- Pinned memory for any thread ---------------------------------------------------------------

// The sizes are powers of two, so that a free block fits the next request of about that size.
struct device_block *device_pin(struct device *device, size_t bytes)
{
    size_t rounded = MEMORY_LEAST_BYTES;
    while (rounded < bytes)
        rounded *= 2;
    mutex_lock(&device->pin_mutex);
    struct device_block **at = &device->pinned;
    while (*at && (*at)->bytes != rounded)
        at = &(*at)->next;
    struct device_block *block = *at;
    if (block)
        *at = block->next;
    mutex_unlock(&device->pin_mutex);
    if (block)
        return block;
    device_enter(device);
    block = memory_make(device, MEMORY_PINNED, rounded);
    device_leave(device);
    return block;
}

void device_unpin(struct device *device, struct device_block *block)
{
    mutex_lock(&device->pin_mutex);
    block->next = device->pinned;
    device->pinned = block;
    mutex_unlock(&device->pin_mutex);
}

uint64_t device_allocations(const struct device *device)
{
    return atomic_load(&device->allocations);
}

static void memory_free_all(struct device *device, struct device_block **pool)
{
    while (*pool) {
        struct device_block *block = *pool;
        *pool = block->next;
        memory_free(device, block);
    }
}

void device_memory_fini(struct device *device)
{
    for (int i = 0; i < DEVICE_POOLS; i++)
        memory_free_all(device, &device->free[i]);
    memory_free_all(device, &device->pinned);
}
