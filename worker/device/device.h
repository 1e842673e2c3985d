// SPDX-License-Identifier: Apache-2.0
//
// The GPU of this rank: its context, the streams of communication, memory that transfers go
// through, events and kernels. worker/transport/device/ says what is done with them; cuda.h has the
// functions of the driver. A rank without a device has none of this: its struct device * is NULL.
//
// Threads: each function says which. CUDA has a current context for each thread. Functions for "any
// thread" make the device's context current and then restore the caller's. Functions for "the
// driver" are called between device_enter and device_leave, because several are called in a row.
//
// Failure: the first CUDA call that fails is remembered with its name, and everything after it
// fails, too. device_failed gives the sentence. No assertion here depends on what a device does.
//
// Only functions that say *Blocks* wait for the device. Allocations, which may synchronize inside
// the driver, happen in device_open and device_reserve. A pool that was reserved too small grows
// once, in device_take.

#ifndef WORKER_DEVICE_DEVICE_H
#define WORKER_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICE_TEXT_BYTES 192
#define DEVICE_NAME_BYTES 64
#define DEVICE_UUID_BYTES 16

struct cuda; // worker/device/cuda.h
struct device; // Opaque.

// The facts of a device that a rank announces and `lockstep doctor` prints.
struct device_facts {
    int ordinal; // N of "cuda:N".
    uint8_t uuid[DEVICE_UUID_BYTES];
    char name[DEVICE_NAME_BYTES];
    uint32_t capability; // 10 * major + minor: 90.
    uint32_t driver_version; // 1000 * major + 10 * minor: 13000.
    uint32_t nccl_version; // 10000 * major + 100 * minor + patch: 22800. 0: there is no NCCL.
    char nccl_missing[DEVICE_TEXT_BYTES]; // Why there is no NCCL.
};

// ---- life ---------------------------------------------------------------------------------------

// Any thread, when no other thread uses the device. Memory of a device that hangs is kept until the
// process ends.
void device_close(struct device *device);
const struct device_facts *device_facts(const struct device *device); // Any thread, constant.

// The first failure as a sentence ("cuLaunchKernel: ..."), or NULL. Any thread.
const char *device_failed(const struct device *device);
// The device has failed for this reason. Only the first reason counts. Any thread. The text is
// copied.
void device_fail(struct device *device, const char *text);

// ---- where memory is, any thread ----------------------------------------------------------------

enum memory_place {
    MEMORY_ON_HOST, // Also memory that the driver does not know.
    MEMORY_ON_DEVICE, // On this device, or managed memory.
    MEMORY_ELSEWHERE, // On another device.
};
enum memory_place device_place(struct device *device, const void *memory);

// Copies in either direction. Synchronizes with nothing, so the caller makes sure that nothing else
// uses the memory. Blocks. 0 or -1.
int device_copy(struct device *device, void *to, const void *from, size_t bytes);

// ---- events and the trainer's streams, any thread -----------------------------------------------

// A stream is a CUstream, CU_STREAM_LEGACY (1) and CU_STREAM_PER_THREAD (2) included, but not NULL.
// An event is a CUevent without timing.
void *device_event_make(struct device *device); // NULL: device_failed says why.
void device_event_free(struct device *device, void *event);
// From now on the event stands for all work that was enqueued on the stream before this call. Here
// NULL means the legacy default stream. Neither waits nor allocates. 0 or -1.
int device_event_record(struct device *device, void *event, void *stream);
// 1: the event has happened, or was never recorded; 0: not yet; -1: the device has failed.
int device_event_query(struct device *device, void *event);
// True if this is a stream of this device. The default streams belong to every device. The result
// is also true for a stream that the driver does not know; the driver refuses it later.
bool device_has_stream(struct device *device, void *stream);
bool device_is_default_stream(const void *stream);
// Work that is enqueued on the trainer's stream from now on begins after all results that were
// enqueued until now are in memory. Does not wait. 0 or -1.
int device_stream_follow(struct device *device, void *stream);
// The same, for a default stream of another device `at` of this process.
int device_stream_follow_at(struct device *device, struct device *at, void *stream);

// ---- for the transport: the driver, between enter and leave -------------------------------------

void device_enter(struct device *device);
void device_leave(struct device *device);

// Each stream begins its work in the order in which it was enqueued. No stream waits for another
// one by itself.
enum device_stream {
    DEVICE_COLLECT, // From gradients to the host. Waits for the work that produces gradients.
    DEVICE_DELIVER, // From the host to gradients.
    DEVICE_REDUCE, // Between devices. Waits for gradients, and for other ranks.
    DEVICE_BEHIND, // To gradients that other streams may still write. Waits for those streams.
    DEVICE_SPREAD, // First device only. Waits for what other devices deliver to their replicas.
};
#define DEVICE_STREAMS 5
void *device_stream(const struct device *device, enum device_stream stream);

// Memory that transfers go through.
enum device_memory {
    MEMORY_SCRATCH, // On the device; no host thread touches it.
    MEMORY_PINNED, // On the host; the device reaches it, too.
};
struct device_block {
    struct device_block *next; // In the pool's list of free blocks, or in a list of the holder.
    enum device_memory kind;
    size_t bytes; // At least as many as were asked for.
    uint64_t address; // The address on the device.
    uint8_t *host; // MEMORY_PINNED only.
};

int device_wait(struct device *device, enum device_stream stream, void *event);
int device_record(struct device *device, enum device_stream stream, void *event);
// Work that is enqueued on `stream` from now on begins after all work that was enqueued on
// `stream_before` until now. `before` may be another device. 0 or -1.
int device_follow(struct device *device, enum device_stream stream, struct device *before,
                  enum device_stream stream_before);
int device_happened(struct device *device, void *event); // As device_event_query.
// Copies between memory of the device and pinned memory, in either direction.
int device_transfer(struct device *device, enum device_stream stream, uint64_t to, uint64_t from,
                    size_t bytes);
// Calls the function of device_bell when all earlier work on that stream has happened.
int device_ring(struct device *device, enum device_stream stream);

// The kernels of kernels.h. `parameters`, the kernel's struct, is copied.
enum device_kernel {
    DEVICE_KERNEL_PACK,
    DEVICE_KERNEL_FINISH,
    DEVICE_KERNEL_GATHER,
    DEVICE_KERNEL_SCATTER,
    DEVICE_KERNEL_ADD,
};
#define DEVICE_KERNELS 5
int device_run(struct device *device, enum device_stream stream, enum device_kernel kernel,
               uint32_t blocks, void *parameters);

// Sets the function that device_ring calls, on a thread of CUDA; NULL: none. Returns when no
// earlier callback runs any more. The callback must not call CUDA.
void device_bell(struct device *device, void (*ring)(void *context), void *context);

// Takes the result of a CUDA call. 0, or -1 if the device has failed, with this call or before.
int device_check(struct device *device, int result, const char *call);

#endif
