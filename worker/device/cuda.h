// SPDX-License-Identifier: Apache-2.0
//
// The functions of the CUDA driver API that this library uses, as a struct that cuda_load fills
// from libcuda.so.1 at run time. So every build has the GPU path, and one binary runs on machines
// with and without a driver. The declarations are not taken from NVIDIA's header: this file repeats
// names, numbers and prototypes of the ABI, and `make gpu-abi` compares them with the real header
// where there is one. Handles are opaque pointers, device addresses are uint64_t, results are int.
// The CUDA runtime API is not used anywhere. This file adds no behaviour; worker/device/device.h
// does. Any thread.

#ifndef WORKER_DEVICE_CUDA_H
#define WORKER_DEVICE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The results that this library compares with by name. All other results are errors, with a text
// from the driver.
enum cuda_result {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_DEINITIALIZED = 4, // The process is ending.
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_NO_BINARY_FOR_GPU = 209,
    CUDA_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_INVALID_HANDLE = 400,
    CUDA_NOT_READY = 600, // Returned by queries; not an error.
    CUDA_ILLEGAL_ADDRESS = 700,
    CUDA_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_CAPTURE_UNSUPPORTED = 900, // Not allowed while a stream is being captured into a graph.
    CUDA_CAPTURE_IMPLICIT = 906, // The legacy stream, while a stream that it waits for is captured.
    CUDA_CAPTURED_EVENT = 907, // The event was recorded in a stream that is being captured.
};

enum cuda_device_attribute {
    CUDA_DEVICE_MULTIPROCESSORS = 16,
    CUDA_DEVICE_INTEGRATED = 18,
    CUDA_DEVICE_COMPUTE_MODE = 20,
    CUDA_DEVICE_PCI_BUS = 33,
    CUDA_DEVICE_PCI_DEVICE = 34,
    CUDA_DEVICE_COPY_ENGINES = 40,
    CUDA_DEVICE_UNIFIED_ADDRESSING = 41,
    CUDA_DEVICE_PCI_DOMAIN = 50,
    CUDA_DEVICE_CAPABILITY_MAJOR = 75,
    CUDA_DEVICE_CAPABILITY_MINOR = 76,
    CUDA_DEVICE_PAGEABLE_ACCESS = 88,
    CUDA_DEVICE_REGISTERED_SAME_ADDRESS = 91,
};

enum cuda_pointer_attribute {
    CUDA_POINTER_CONTEXT = 1,
    CUDA_POINTER_MEMORY_TYPE = 2, // unsigned int: enum cuda_memory
    CUDA_POINTER_DEVICE_ADDRESS = 3,
    CUDA_POINTER_HOST_ADDRESS = 4,
    CUDA_POINTER_IS_MANAGED = 8, // unsigned int
    CUDA_POINTER_DEVICE = 9, // int: the device's ordinal
    CUDA_POINTER_RANGE_START = 11,
    CUDA_POINTER_RANGE_BYTES = 12,
};

enum cuda_memory {
    CUDA_MEMORY_HOST = 1,
    CUDA_MEMORY_DEVICE = 2,
};

enum cuda_flags {
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_BLOCKING_SYNC = 1,
    CUDA_EVENT_DISABLE_TIMING = 2,
    CUDA_HOST_ALLOC_PORTABLE = 1,
    CUDA_HOST_ALLOC_MAPPED = 2,
    CUDA_HOST_REGISTER_PORTABLE = 1,
    CUDA_HOST_REGISTER_MAPPED = 2,
    CUDA_WAIT_VALUE_AT_LEAST = 0,
    CUDA_WAIT_VALUE_EQUAL = 1,
};

// The calls that a thread may make while a stream is being captured into a graph.
enum cuda_capture_mode {
    CUDA_CAPTURE_GLOBAL = 0, // No unsafe ones; a query of an event is unsafe.
    CUDA_CAPTURE_RELAXED = 2, // All that do not touch the capture itself.
};

// Stream handles that exist in every context.
#define CUDA_STREAM_LEGACY ((void *)1)
#define CUDA_STREAM_PER_THREAD ((void *)2)

// Result of cuDeviceGetUuid: the uuid of a whole device, or of the part of a device that this
// process may use (MIG).
struct cuda_uuid {
    unsigned char bytes[16];
};

// The functions return a cuda_result. A symbol whose name ends in _v2 is loaded by that name,
// because the name without _v2 is an old version of the function.
struct cuda {
    int (*init)(unsigned flags);
    int (*driver_version)(int *version); // 1000 * major + 10 * minor
    int (*get_error_name)(int result, const char **name);
    int (*get_error_string)(int result, const char **text);

    // devices and contexts
    int (*device_get)(int *device, int ordinal);
    int (*device_get_count)(int *count);
    int (*device_get_name)(char *name, int bytes, int device);
    int (*device_get_uuid)(struct cuda_uuid *uuid, int device);
    int (*device_get_attribute)(int *value, int attribute, int device);
    int (*device_primary_ctx_retain)(void **context, int device);
    int (*device_primary_ctx_release)(int device);
    int (*ctx_get_current)(void **context);
    int (*ctx_push_current)(void *context);
    int (*ctx_pop_current)(void **context);
    int (*ctx_get_device)(int *device);
    // The greatest priority is the lowest number.
    int (*ctx_get_stream_priority_range)(int *least, int *greatest);

    // streams and events
    int (*stream_create_with_priority)(void **stream, unsigned flags, int priority);
    int (*stream_destroy)(void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*stream_query)(void *stream);
    int (*stream_get_ctx)(void *stream, void **context);
    int (*stream_synchronize)(void *stream);
    // status: 0: the stream is not being captured.
    int (*stream_is_capturing)(void *stream, int *status);
    int (*thread_exchange_capture_mode)(int *mode); // Gives the mode that the thread had.
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*launch_host_func)(void *stream, void (*function)(void *argument), void *argument);

    // memory
    int (*mem_alloc)(uint64_t *address, size_t bytes);
    int (*mem_free)(uint64_t address);
    int (*mem_host_alloc)(void **memory, size_t bytes, unsigned flags);
    int (*mem_free_host)(void *memory);
    int (*mem_host_get_device_pointer)(uint64_t *address, void *memory, unsigned flags);
    int (*pointer_get_attribute)(void *value, int attribute, uint64_t address);

    // copies
    // Between memory of any two kinds.
    int (*memcpy_async)(uint64_t to, uint64_t from, size_t bytes, void *stream);

    // kernels
    int (*module_load_data)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_get_function)(void **function, void *module, const char *name);
    int (*launch_kernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared_bytes, void *stream, void **parameters, void **extra);

    // For tests and benchmarks only. The library needs none of these: NULL where the driver lacks
    // them.
    int (*ctx_set_current)(void *context);
    int (*event_synchronize)(void *event);
    int (*event_elapsed_time)(float *milliseconds, void *start, void *end);
    int (*mem_host_register)(void *memory, size_t bytes, unsigned flags);
    int (*mem_host_unregister)(void *memory);
    int (*memcpy_htod_async)(uint64_t to, const void *from, size_t bytes, void *stream);
    int (*memcpy_dtoh_async)(void *to, uint64_t from, size_t bytes, void *stream);
    int (*memcpy_dtod_async)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*memcpy_peer_async)(uint64_t to, void *to_context, uint64_t from, void *from_context,
                             size_t bytes, void *stream);
    int (*memset_d8_async)(uint64_t address, unsigned char value, size_t count, void *stream);
    int (*memset_d32_async)(uint64_t address, unsigned value, size_t count, void *stream);
    int (*stream_wait_value32)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    int (*stream_write_value32)(void *stream, uint64_t address, uint32_t value, unsigned flags);
};

// Returns the driver's functions. The first call loads them from the library that is already in the
// process, or from libcuda.so.1, or from the file that LOCKSTEP_CUDA_LIBRARY names. Returns NULL
// with a sentence in error on failure. Does not initialize CUDA: the caller calls `init`. After the
// first success every call returns the same pointer.
const struct cuda *cuda_load(char *error, size_t error_bytes);

// As cuda_load, but loads no library: returns NULL if the library is not in this process yet.
const struct cuda *cuda_present(char *error, size_t error_bytes);

// Returns true if LOCKSTEP_CUDA_LIBRARY names a file that is not a CUDA driver; then the reason is
// in error. Loads nothing for good.
bool cuda_is_misnamed(char *error, size_t error_bytes);

// Writes the failure of a call into out: "cuLaunchKernel: the launch timed out (702)".
void cuda_describe(const struct cuda *cuda, int result, const char *call, char *out, size_t bytes);

// Returns the file that the functions came from; "" if it is not known. Call it only after
// cuda_load or cuda_present has succeeded.
const char *cuda_path(void);

#endif
