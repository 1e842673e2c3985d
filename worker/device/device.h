// SPDX-License-Identifier: Apache-2.0
//
// The GPU of this rank: its context, communication streams, transfer memory, events and kernels.
// worker/transport/device/ decides what is done with them; cuda.h has the functions of the CUDA
// driver. A rank without a device has struct device * NULL.
//
// Threads: each function names its thread. CUDA has a current context for each thread. A function
// for "any thread" makes the device's context current and then restores the caller's context. It
// may run while the program captures a stream into a graph, also on the thread that captures. A
// function for "the driver" must be called between device_enter and device_leave, which change the
// context once for several calls.
//
// Failure: the device remembers the first CUDA call that fails, and every later call fails, too.
// device_failed returns the failure as a sentence. No assertion of this wing depends on what a
// device does.
//
// Only functions that say *Blocks* wait for the device. Allocations may synchronize inside the
// driver, so they happen in device_open and device_reserve. If device_reserve has made too few
// blocks, device_take makes a new block.

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
    // The reason why there is no NCCL; valid if nccl_version is 0.
    char nccl_missing[DEVICE_TEXT_BYTES];
};

// ---- life ---------------------------------------------------------------------------------------

// Any thread, when no other thread uses the device. If the device hangs, its memory is kept until
// the process ends.
void device_close(struct device *device);
const struct device_facts *device_facts(const struct device *device); // Any thread, constant.

// The first failure as a sentence ("cuLaunchKernel: ..."), or NULL. Any thread.
const char *device_failed(const struct device *device);
// Marks the device as failed, with `text` as the reason, which is copied. Only the first reason
// counts. Any thread.
void device_fail(struct device *device, const char *text);

// ---- where memory is, any thread ----------------------------------------------------------------

enum memory_place {
    MEMORY_ON_HOST, // In host memory, or in memory that the CUDA driver does not know.
    MEMORY_ON_DEVICE, // On this device, or managed memory.
    MEMORY_ELSEWHERE, // On another device.
};
enum memory_place device_place(struct device *device, const void *memory);

// Copies in either direction. Synchronizes with nothing, so the caller makes sure that nothing else
// uses the memory. Blocks. 0 or -1.
int device_copy(struct device *device, void *to, const void *from, size_t bytes);
// Enqueues a copy between memory of the device and pinned memory on a stream of the trainer. 0 or
// -1.
int device_copy_on(struct device *device, void *stream, void *to, const void *from, size_t bytes);

// ---- events and the trainer's streams, any thread -----------------------------------------------

// A stream is a CUstream that is not NULL; CU_STREAM_LEGACY (1) and CU_STREAM_PER_THREAD (2) are
// allowed. An event is a CUevent without timing.
void *device_event_make(struct device *device); // NULL: device_failed says why.
void device_event_free(struct device *device, void *event);
// Records an event: the event now stands for all work that was enqueued on the stream before this
// call. In this function NULL means the legacy default stream. Neither waits nor allocates. Returns
// 0 or -1.
int device_event_record(struct device *device, void *event, void *stream);
// Returns 1: the event has happened, or was never recorded; 0: not yet; -1: the device has failed.
int device_event_query(struct device *device, void *event);
// True if this is a stream of this device. The default streams belong to every device. Also true
// for a stream that the driver does not know; the driver refuses such a stream later.
bool device_has_stream(struct device *device, void *stream);
// Returns why the device's events cannot be recorded on a stream now ("belongs to another context
// ..."); NULL: they can.
const char *device_stream_trouble(struct device *device, void *stream);
bool device_is_default_stream(const void *stream);
// Tells the streams apart for which CU_STREAM_PER_THREAD stands: a number of the calling thread. 0:
// another handle, which is the same stream on every thread.
uint64_t device_stream_thread(const void *stream);
// Makes work that the trainer enqueues on `stream` from now on wait for all results that were
// enqueued before this call. The caller does not wait. Returns 0 or -1.
int device_stream_follow(struct device *device, void *stream);
// As device_stream_follow, for a default stream of another device `at` of this process.
int device_stream_follow_at(struct device *device, struct device *at, void *stream);

// ---- for the transport: the driver, between enter and leave -------------------------------------

void device_enter(struct device *device);
void device_leave(struct device *device);

// The communication streams. Each stream runs its work in the order in which it was enqueued. No
// stream waits for another stream unless device_wait or device_follow says so.
enum device_stream {
    // Copies from gradients to the host. Waits for the work that produces the gradients.
    DEVICE_COLLECT,
    DEVICE_DELIVER, // Copies from the host to gradients.
    DEVICE_REDUCE, // Reduces between devices. Waits for gradients and for other ranks.
    // Copies to gradients that other streams may still write. Waits for those streams.
    DEVICE_BEHIND,
    // First device only. Waits for the results that other devices write to their replicas.
    DEVICE_SPREAD,
    DEVICE_READY, // Has no work: waits for gradients, and calls the bell when they are made.
};
#define DEVICE_STREAMS 6
void *device_stream(const struct device *device, enum device_stream stream);

// Kinds of memory for transfers.
enum device_memory {
    MEMORY_SCRATCH, // On the device; no host thread accesses it.
    MEMORY_PINNED, // On the host; the device accesses it, too.
};
struct device_block {
    // Next block of the pool's list of free blocks, or of a list of the holder.
    struct device_block *next;
    enum device_memory kind;
    size_t bytes; // Size in bytes; at least the requested size.
    uint64_t address; // Address as the device uses it.
    uint8_t *host; // Address as the host uses it; MEMORY_PINNED only.
};

int device_wait(struct device *device, enum device_stream stream, void *event);
int device_record(struct device *device, enum device_stream stream, void *event);
// Makes work that is enqueued on `stream` from now on wait for all work that was enqueued on
// `stream_before` of `before` until now. `before` may be another device. Returns 0 or -1.
int device_follow(struct device *device, enum device_stream stream, struct device *before,
                  enum device_stream stream_before);
int device_happened(struct device *device, void *event); // As device_event_query.
// Copies between memory of the device and pinned memory, in either direction.
int device_transfer(struct device *device, enum device_stream stream, uint64_t to, uint64_t from,
                    size_t bytes);
// Calls the function that device_bell has set, after all earlier work on that stream.
int device_ring(struct device *device, enum device_stream stream);

// The kernels of kernels.h. device_run copies `parameters`, the kernel's struct.
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

// Sets the function that device_ring calls, on a thread of CUDA; NULL: none. When this returns, no
// call of the previous function is running. The function must not call CUDA.
void device_bell(struct device *device, void (*ring)(void *context), void *context);

// Handles the result of a CUDA call. Returns 0, or -1 if this call or an earlier call of the device
// has failed.
int device_check(struct device *device, int result, const char *call);

#endif
