// SPDX-License-Identifier: Apache-2.0
//
// libcuda-fake.so: copies and fills. All of them are asynchronous to the host, also copies from and
// to pageable memory. CUDA may stage such a copy or wait for it; the fake does neither, which shows
// code that relies on one of them. Each side is checked at the call, as CUDA does, and again when
// the operation runs.
#include "tests/fake_gpu/driver.h"

#include <inttypes.h>

enum side {
    SIDE_DEVICE, // Memory that the device can address.
    SIDE_HOST, // Memory of the host, pinned or pageable.
    SIDE_ANY,
};

static bool side_fits_locked(struct context *context, uint64_t address, size_t bytes,
                             enum side side, const char *name)
{
    const struct memory *memory = memory_find_locked(address);
    if (side == SIDE_HOST && memory && memory->kind == MEMORY_DEVICE &&
        !driver.weather.everywhere) {
        complain_locked("%s: %#" PRIx64 " is device memory, not the host's", name, address);
        return false;
    }
    if (side == SIDE_DEVICE && !memory && !driver.weather.everywhere) {
        complain_locked("%s: %#" PRIx64 " is no memory of the device", name, address);
        return false;
    }
    return memory_view_locked(context, address, bytes, true, name) != NULL;
}

static int push_copy(const char *name, uint64_t to, enum side to_side, uint64_t from,
                     enum side from_side, size_t bytes, void *handle)
{
    struct stream *stream;
    int result = call_enter_stream(name, handle, &stream);
    const struct operation operation = {
        .kind = OPERATION_COPY,
        .copy = {.to = to, .from = from, .bytes = bytes},
    };
    if (!result && bytes && !side_fits_locked(stream->context, to, bytes, to_side, name))
        result = CUDA_INVALID_VALUE;
    if (!result && bytes && !side_fits_locked(stream->context, from, bytes, from_side, name))
        result = CUDA_INVALID_VALUE;
    if (!result && bytes)
        result = stream_push_locked(stream, &operation);
    return call_leave(result);
}

EXPORTED int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return push_copy("cuMemcpyAsync", to, SIDE_ANY, from, SIDE_ANY, bytes, stream);
}

EXPORTED int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    return push_copy("cuMemcpyHtoDAsync", to, SIDE_DEVICE, (uintptr_t)from, SIDE_HOST, bytes,
                     stream);
}

EXPORTED int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    return push_copy("cuMemcpyDtoHAsync", (uintptr_t)to, SIDE_HOST, from, SIDE_DEVICE, bytes,
                     stream);
}

EXPORTED int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return push_copy("cuMemcpyDtoDAsync", to, SIDE_DEVICE, from, SIDE_DEVICE, bytes, stream);
}

static bool lies_in_locked(uint64_t address, const void *context)
{
    const struct memory *memory = memory_find_locked(address);
    const struct context *named = context_of_locked(context);
    return named && (driver.weather.everywhere || (memory && memory->context == named));
}

EXPORTED int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context,
                               size_t bytes, void *stream);
int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context,
                      size_t bytes, void *stream)
{
    mutex_lock(&driver.mutex);
    const bool fits = lies_in_locked(to, to_context) && lies_in_locked(from, from_context);
    if (!fits)
        complain_locked("cuMemcpyPeerAsync: a side is not in the context that is said");
    mutex_unlock(&driver.mutex);
    if (!fits)
        return CUDA_INVALID_VALUE;
    return push_copy("cuMemcpyPeerAsync", to, SIDE_DEVICE, from, SIDE_DEVICE, bytes, stream);
}

static int push_set(const char *name, uint64_t address, uint32_t value, uint32_t width,
                    size_t count, void *handle)
{
    struct stream *stream;
    int result = call_enter_stream(name, handle, &stream);
    const struct operation operation = {
        .kind = OPERATION_SET,
        .set = {.address = address, .count = count, .value = value, .width = width},
    };
    if (!result && count &&
        (address % width != 0 ||
         !memory_view_locked(stream->context, address, count * width, false, name)))
        result = CUDA_INVALID_VALUE;
    if (!result && count)
        result = stream_push_locked(stream, &operation);
    return call_leave(result);
}

EXPORTED int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream);
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream)
{
    return push_set("cuMemsetD8Async", address, value, 1, count, stream);
}

EXPORTED int cuMemsetD32Async(uint64_t address, unsigned value, size_t count, void *stream);
int cuMemsetD32Async(uint64_t address, unsigned value, size_t count, void *stream)
{
    return push_set("cuMemsetD32Async", address, value, 4, count, stream);
}
