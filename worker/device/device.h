// SPDX-License-Identifier: Apache-2.0
//
// The GPU of this rank: its context, the streams that communication runs on, memory that transfers
// go through, events, the kernels. What is done with them is worker/transport/device/devices.h's;
// the driver's functions are cuda.h's. A rank without a device has none of this: struct device * is
// NULL.
//
// Threads: each function says which. CUDA knows a current context for each thread. Functions for
// "any thread" make the device's current and restore the caller's; those for "the driver" expect to
// be between device_enter and device_leave, because they come in rows.
//
// Failure: a CUDA call that fails is remembered, with its name, and never forgotten: everything
// after it fails too. device_failed gives the sentence. Nothing here asserts on what a device does.
//
// Nothing here waits for the device, but for functions that say *Blocks*. What may synchronize
// inside the driver (allocations) happens in device_open and device_reserve; a pool that was
// reserved too small grows once, in device_take.

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

// What a rank announces of its device, and what `lockstep doctor` says.
struct device_facts {
    int ordinal; // N of "cuda:N".
    uint8_t uuid[DEVICE_UUID_BYTES];
    char name[DEVICE_NAME_BYTES];
    uint32_t capability; // 10 * major + minor: 90.
    uint32_t driver_version; // 1000 * major + 10 * minor: 13000.
    uint32_t nccl_version; // 10000 * major + 100 * minor + patch: 22800. 0: there is none.
    char nccl_missing[DEVICE_TEXT_BYTES]; // Why there is none.
};

// ---- life ---------------------------------------------------------------------------------------

// Any thread, when nobody uses it. What a hung device still holds is left to the process's end.
void device_close(struct device *device);
const struct device_facts *device_facts(const struct device *device); // Any thread, constant.

// The first failure as a sentence ("cuLaunchKernel: ..."), or NULL. Any thread.
const char *device_failed(const struct device *device);
// From now on it has failed, for this reason, if it had not before. Any thread. The text is copied.
void device_fail(struct device *device, const char *text);

// ---- where memory is, any thread ----------------------------------------------------------------

enum memory_place {
    MEMORY_ON_HOST, // Whatever the driver does not know, too.
    MEMORY_ON_DEVICE, // On this device, or managed memory.
    MEMORY_ELSEWHERE, // On another device.
};
enum memory_place device_place(struct device *device, const void *memory);

// Copies in either direction, synchronized with nothing: who calls knows that the memory is at
// rest. Blocks. 0 or -1.
int device_copy(struct device *device, void *to, const void *from, size_t bytes);

// ---- events and the trainer's streams, any thread -----------------------------------------------

// A stream is a CUstream: NULL is not one of them; CU_STREAM_LEGACY (1) and CU_STREAM_PER_THREAD
// (2) are. An event is a CUevent without timing.
void *device_event_make(struct device *device); // NULL: device_failed says why.
void device_event_free(struct device *device, void *event);
// From now on the event stands for all that was enqueued on the stream before; NULL means the
// legacy default stream here. Neither waits nor allocates. 0 or -1.
int device_event_record(struct device *device, void *event, void *stream);
// 1: it has happened, or was never recorded; 0: not yet; -1: the device has failed.
int device_event_query(struct device *device, void *event);
// Whether it is a stream of this device; the default streams are every device's. What the driver
// does not know is left for it to refuse.
bool device_has_stream(struct device *device, void *stream);
bool device_is_default_stream(const void *stream);
// What is enqueued on the trainer's stream from now on begins after all results that were enqueued
// until now are in memory. Does not wait. 0 or -1.
int device_stream_follow(struct device *device, void *stream);
// The same where a default stream is that of another device of this process.
int device_stream_follow_at(struct device *device, struct device *at, void *stream);

// ---- for the transport: the driver, between enter and leave -------------------------------------

void device_enter(struct device *device);
void device_leave(struct device *device);

// Each begins what was enqueued on it in order; none waits for another one by itself.
enum device_stream {
    DEVICE_COLLECT, // From gradients to the host. Waits for those who produce them.
    DEVICE_DELIVER, // From the host to gradients.
    DEVICE_REDUCE, // Between devices. Waits for those who produce gradients, and for other ranks.
    DEVICE_BEHIND, // To gradients that other streams may still write: waits for those.
    DEVICE_SPREAD, // Of the first device: waits for what other ones deliver to their replicas.
};
#define DEVICE_STREAMS 5
void *device_stream(const struct device *device, enum device_stream stream);

// Memory that transfers go through.
enum device_memory {
    MEMORY_SCRATCH, // On the device; no host thread touches it.
    MEMORY_PINNED, // On the host; the device reaches it, too.
};
struct device_block {
    struct device_block *next; // Of the pool's free ones, or the holder's.
    enum device_memory kind;
    size_t bytes; // At least what was asked for.
    uint64_t address; // As the device sees it.
    uint8_t *host; // MEMORY_PINNED only.
};

int device_wait(struct device *device, enum device_stream stream, void *event);
int device_record(struct device *device, enum device_stream stream, void *event);
// What is enqueued on the first stream from now on begins after all that was enqueued on the second
// one, which may be another device's, until now. 0 or -1.
int device_follow(struct device *device, enum device_stream stream, struct device *before,
                  enum device_stream stream_before);
int device_happened(struct device *device, void *event); // device_event_query, entered.
// Memory of the device or pinned memory, in either direction.
int device_transfer(struct device *device, enum device_stream stream, uint64_t to, uint64_t from,
                    size_t bytes);
// Calls back, on a thread of the driver, when all before it on that stream has happened.
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

// Whom device_ring calls. Returns when no earlier callback runs any more. The callback may call
// nothing of CUDA. NULL: nobody.
void device_bell(struct device *device, void (*ring)(void *context), void *context);

// What a call returned. 0, or -1 when the device has failed, with this call or before.
int device_check(struct device *device, int result, const char *call);

#endif
