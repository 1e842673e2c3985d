// SPDX-License-Identifier: Apache-2.0
//
// libcuda-fake.so: memory. The host faults when it accesses an address of device memory; the bytes
// lie at another address, which only operations use. The driver knows the bounds of every
// allocation, so it detects any access beyond an allocation or into a freed one. Addresses of
// device memory are never used again. With FAKE_CUDA_EVERYWHERE the bytes lie at the device
// address, and every device may access memory that the driver did not allocate. Any thread, under
// the mutex.
#include "tests/fake_gpu/driver.h"

#include "tests/fake_gpu/hooks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    HOST_MEMORY_NOT_REGISTERED = 713
};

// ---- the list -----------------------------------------------------------------------------------

// Index of the first allocation that ends above the address.
static size_t memory_place(uint64_t address)
{
    size_t low = 0;
    size_t high = driver.memory_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (driver.memories[middle].start + driver.memories[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct memory *memory_find_locked(uint64_t address)
{
    const size_t place = memory_place(address);
    struct memory *memory = place < driver.memory_count ? &driver.memories[place] : NULL;
    return memory && memory->start <= address ? memory : NULL;
}

static int memory_add_locked(const struct memory *memory)
{
    if (driver.memory_count == driver.memory_capacity) {
        const size_t capacity = driver.memory_capacity ? 2 * driver.memory_capacity : 256;
        struct memory *grown = realloc(driver.memories, capacity * sizeof(*grown));
        if (!grown)
            return CUDA_OUT_OF_MEMORY;
        driver.memories = grown;
        driver.memory_capacity = capacity;
    }
    const size_t place = memory_place(memory->start);
    memmove(&driver.memories[place + 1], &driver.memories[place],
            (driver.memory_count - place) * sizeof(*memory));
    driver.memories[place] = *memory;
    driver.memory_count++;
    return 0;
}

static void memory_remove_locked(struct memory *memory)
{
    const size_t place = (size_t)(memory - driver.memories);
    driver.memory_count--;
    memmove(memory, memory + 1, (driver.memory_count - place) * sizeof(*memory));
}

// Freed memory that an operation may still access: without FAKE_CUDA_SYNC, freed memory is never
// returned to the system. It is kept in a list, so that leak checkers do not report it.
static void *kept;

static void bytes_end(unsigned char *bytes, size_t size)
{
    memset(bytes, POISON, size);
    if (driver.weather.sync || size < sizeof(kept)) {
        free(bytes);
        return;
    }
    memcpy(bytes, &kept, sizeof(kept));
    kept = bytes;
}

// Frees the bytes. An address of device memory stays reserved, so that a later use is detected.
static void memory_end_locked(struct memory *memory)
{
    if (memory->kind != MEMORY_REGISTERED)
        bytes_end(memory->alias, memory->bytes);
    if (memory->kind == MEMORY_DEVICE && (uintptr_t)memory->alias != memory->start) {
        memory->freed = true;
        memory->alias = NULL;
    } else {
        memory_remove_locked(memory);
    }
}

void memory_drop_locked(struct context *context)
{
    for (size_t i = driver.memory_count; i-- > 0;)
        if (driver.memories[i].context == context && !driver.memories[i].freed)
            memory_end_locked(&driver.memories[i]);
}

// ---- accessible memory --------------------------------------------------------------------------

static const char *kind_name(enum memory_kind kind)
{
    static const char *const names[] = {"device memory", "pinned memory", "registered memory"};
    return names[kind];
}

void *memory_view_locked(struct context *context, uint64_t address, uint64_t bytes, bool pageable,
                         const char *who)
{
    const struct memory *memory = memory_find_locked(address);
    if (!memory && (pageable || driver.weather.everywhere) && address)
        return (void *)(uintptr_t)address;
    if (!memory) {
        complain_locked("%s: %#" PRIx64 " is no memory of the device", who, address);
        return NULL;
    }
    const uint64_t offset = address - memory->start;
    const char *what = kind_name(memory->kind);
    if (memory->freed) {
        complain_locked("%s: %#" PRIx64 " lies in %s that was freed", who, address, what);
        return NULL;
    }
    if (bytes > memory->bytes - offset) {
        complain_locked("%s: %" PRIu64 " bytes from byte %" PRIu64 " of %s of %zu bytes", who,
                        bytes, offset, what, memory->bytes);
        return NULL;
    }
    // Only copies may access memory of another device; only they pass `pageable`.
    if (memory->kind == MEMORY_DEVICE && memory->context != context && !pageable) {
        complain_locked("%s: memory of device %d is used on device %d", who,
                        memory->context->device, context->device);
        return NULL;
    }
    return memory->alias + offset;
}

EXPORTED void *fake_cuda_view(int device, uint64_t address, size_t bytes, const char *who);
void *fake_cuda_view(int device, uint64_t address, size_t bytes, const char *who)
{
    struct context *context = &driver.contexts[device];
    mutex_lock(&driver.mutex);
    // The context of this operation may have ended with its memory, and the device may have a new
    // context, which is not at fault.
    const bool ended = stream_of_thread && stream_ended_locked(stream_of_thread);
    void *view = ended ? NULL : memory_view_locked(context, address, bytes, false, who);
    if (!view && !ended)
        context_break_locked(context, CUDA_ILLEGAL_ADDRESS);
    mutex_unlock(&driver.mutex);
    return view;
}

EXPORTED fake_gpu_peek_function fake_gpu_peek;
void *fake_gpu_peek(uint64_t address, size_t bytes)
{
    void *view = NULL;
    mutex_lock(&driver.mutex);
    const struct memory *memory = memory_find_locked(address);
    if (memory && !memory->freed && bytes <= memory->bytes - (address - memory->start))
        view = memory->alias + (address - memory->start);
    mutex_unlock(&driver.mutex);
    return view;
}

// ---- device memory ------------------------------------------------------------------------------

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static int device_memory_make(struct memory *memory)
{
    memory->alias = aligned_alloc(PAGE, pages(memory->bytes));
    if (!memory->alias)
        return CUDA_OUT_OF_MEMORY;
    memset(memory->alias, POISON, memory->bytes);
    memory->start = (uintptr_t)memory->alias;
    if (driver.weather.everywhere)
        return 0;
    // Each range of addresses has one page more than its bytes, so an overrun reaches no neighbour.
    void *nothing = mmap(NULL, pages(memory->bytes) + PAGE, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (nothing == MAP_FAILED) {
        free(memory->alias);
        return CUDA_OUT_OF_MEMORY;
    }
    memory->start = (uintptr_t)nothing;
    return 0;
}

EXPORTED int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    struct context *context;
    int result = call_enter_context("cuMemAlloc", &context);
    struct memory memory = {.bytes = bytes, .kind = MEMORY_DEVICE, .context = context};
    if (!result && bytes == 0)
        result = CUDA_INVALID_VALUE;
    if (!result)
        result = context_wait_perhaps_locked(context);
    if (!result)
        result = device_memory_make(&memory);
    if (!result)
        result = memory_add_locked(&memory);
    if (!result)
        *address = memory.start;
    return call_leave(result);
}

// Frees memory of this kind, given its first address. First waits for the device with
// FAKE_CUDA_SYNC, and looks the memory up again after the wait.
static int memory_free(const char *name, uint64_t address, enum memory_kind kind)
{
    struct context *context;
    int result = call_enter_context(name, &context);
    struct memory *memory = memory_find_locked(address);
    if (!memory || memory->freed || memory->start != address || memory->kind != kind) {
        complain_locked("%s: %#" PRIx64 " is not the beginning of %s", name, address,
                        kind_name(kind));
        return call_leave(kind == MEMORY_REGISTERED ? HOST_MEMORY_NOT_REGISTERED
                                                    : CUDA_INVALID_VALUE);
    }
    const int error = context_wait_perhaps_locked(memory->context);
    memory = memory_find_locked(address);
    if (memory && !memory->freed)
        memory_end_locked(memory);
    return call_leave(result ? result : error);
}

EXPORTED int cuMemFree_v2(uint64_t address);
int cuMemFree_v2(uint64_t address)
{
    return address ? memory_free("cuMemFree", address, MEMORY_DEVICE) : 0;
}

// ---- memory of the host -------------------------------------------------------------------------

EXPORTED int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);
int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    struct context *context;
    int result = call_enter_context("cuMemHostAlloc", &context);
    struct memory memory = {.bytes = bytes, .kind = MEMORY_PINNED, .context = context};
    if (!result && (bytes == 0 || flags > 7))
        result = CUDA_INVALID_VALUE;
    if (!result)
        result = context_wait_perhaps_locked(context);
    if (!result && !(memory.alias = aligned_alloc(PAGE, pages(bytes))))
        result = CUDA_OUT_OF_MEMORY;
    if (!result) {
        memset(memory.alias, POISON, bytes);
        memory.start = (uintptr_t)memory.alias;
        result = memory_add_locked(&memory);
        *pointer = memory.alias;
    }
    return call_leave(result);
}

EXPORTED int cuMemFreeHost(void *pointer);
int cuMemFreeHost(void *pointer)
{
    return memory_free("cuMemFreeHost", (uintptr_t)pointer, MEMORY_PINNED);
}

EXPORTED int cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags);
int cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    struct context *context;
    int result = call_enter_context("cuMemHostRegister", &context);
    const struct memory memory = {.start = (uintptr_t)pointer,
                                  .bytes = bytes,
                                  .alias = pointer,
                                  .kind = MEMORY_REGISTERED,
                                  .context = context};
    if (!result && (!pointer || bytes == 0 || flags > 15))
        result = CUDA_INVALID_VALUE;
    if (!result)
        result = context_wait_perhaps_locked(context);
    const size_t place = memory_place((uintptr_t)pointer);
    if (!result && place < driver.memory_count &&
        driver.memories[place].start < (uintptr_t)pointer + bytes) {
        complain_locked("cuMemHostRegister: some of it is registered already");
        result = CUDA_MEMORY_ALREADY_REGISTERED;
    }
    if (!result)
        result = memory_add_locked(&memory);
    return call_leave(result);
}

EXPORTED int cuMemHostUnregister(void *pointer);
int cuMemHostUnregister(void *pointer)
{
    return memory_free("cuMemHostUnregister", (uintptr_t)pointer, MEMORY_REGISTERED);
}

EXPORTED int cuMemHostGetDevicePointer_v2(uint64_t *address, void *pointer, unsigned flags);
int cuMemHostGetDevicePointer_v2(uint64_t *address, void *pointer, unsigned flags)
{
    struct context *context;
    int result = call_enter_context("cuMemHostGetDevicePointer", &context);
    const struct memory *memory = memory_find_locked((uintptr_t)pointer);
    if (!result && (!memory || memory->kind == MEMORY_DEVICE || flags))
        result = CUDA_INVALID_VALUE;
    *address = (uintptr_t)pointer; // Unified addressing.
    return call_leave(result);
}

// ---- attributes of pointers ---------------------------------------------------------------------

static int attribute_of(void *value, int attribute, uint64_t address, const struct memory *memory)
{
    const bool device = memory->kind == MEMORY_DEVICE;
    switch (attribute) {
    case CUDA_POINTER_CONTEXT:
        *(void **)value = context_handle_locked(memory->context);
        return 0;
    case CUDA_POINTER_MEMORY_TYPE:
        *(unsigned *)value = device ? CUDA_MEMORY_DEVICE : CUDA_MEMORY_HOST;
        return 0;
    case CUDA_POINTER_DEVICE_ADDRESS:
        *(uint64_t *)value = address;
        return 0;
    case CUDA_POINTER_HOST_ADDRESS:
        *(uint64_t *)value = device ? 0 : address;
        return device ? CUDA_INVALID_VALUE : 0;
    case CUDA_POINTER_IS_MANAGED:
        *(unsigned *)value = 0;
        return 0;
    case CUDA_POINTER_DEVICE:
        *(int *)value = memory->context->device;
        return 0;
    case CUDA_POINTER_RANGE_START:
        *(uint64_t *)value = memory->start;
        return 0;
    case CUDA_POINTER_RANGE_BYTES:
        *(size_t *)value = memory->bytes;
        return 0;
    default:
        return CUDA_INVALID_VALUE;
    }
}

EXPORTED int cuPointerGetAttribute(void *value, int attribute, uint64_t address);
int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    struct context *context;
    int result = call_enter_context("cuPointerGetAttribute", &context);
    const struct memory *memory = memory_find_locked(address);
    const struct memory anyone = {
        .start = address, .bytes = 1, .kind = MEMORY_DEVICE, .context = context};
    if (!memory && driver.weather.everywhere)
        memory = &anyone;
    if (!result && (!memory || memory->freed || !address))
        result = CUDA_INVALID_VALUE; // CUDA does not know this memory: no complaint.
    if (!result)
        result = attribute_of(value, attribute, address, memory);
    return call_leave(result);
}
