// SPDX-License-Identifier: Apache-2.0
//
// The fake GPUs: stand-ins for libcuda and libnccl, so that everything of the GPU path but the
// kernels themselves runs, and is tried in bad weather, on machines without a GPU. This header is
// for tests that want to look inside or to change the weather: what they find with dlsym in the
// libraries, which the code under test loads through LOCKSTEP_CUDA_LIBRARY and
// LOCKSTEP_NCCL_LIBRARY. It is not a GPU: times mean nothing, kernels are C functions known by name
// (tests/support/device_reference.h and the three below), and only what Lockstep calls is there.
// Where the real libraries leave something open the fakes do the worse, and what they forbid is
// refused.
//
// Variables, read when a library is loaded and by fake_gpu_reload, with what holds without them.
//
// FAKE_CUDA_DEVICES=8
//     how many there are
// FAKE_CUDA_CAPABILITY=90, FAKE_CUDA_VERSION=13000
//     compute capability of all of them, 10 * major + minor; the driver's version
// FAKE_CUDA_DELAY_US=0, FAKE_CUDA_SEED=1
//     each operation of a stream starts so much late, at random up to that, or LOW-HIGH; drawn by
//     seed, device, stream and position
// FAKE_CUDA_URGENT_US=0
//     besides, each operation of a stream of a higher priority than the usual one, as libraries
//     make theirs, starts so much late: who forgets to wait for a library's results reads old data
// FAKE_CUDA_LAZY_US=0
//     an operation starts only when somebody waits for it or asks, or so much later: whoever
//     forgets a wait then reads old data, each time
// FAKE_CUDA_KERNEL_US=0
//     each kernel takes so long
// FAKE_CUDA_EVERYWHERE=0
//     1: memory that nobody allocated here is device memory of whoever asks, as on machines with
//     coherent memory, and cuMemAlloc's is reachable for the host. 0: a device address faults when
//     the host touches it
// FAKE_CUDA_SYNC=1
//     calls that allocate, free, register or load wait for all work of the device first, as they
//     may; 0: they do not
// FAKE_CUDA_FAIL=
//     WHAT:N:CODE[@DEVICE],... The Nth call of a function ("cuLaunchKernel:3:700"; with "3+" every
//     one from there on) returns CODE. Or the Nth operation that streams begin ("op", "kernel",
//     "copy", "set", "host", "record", "wait", "value", "nccl", or a kernel's name) loses its
//     device with CODE, or with "hang" stands still. Codes that break a context for good break it.
//
// FAKE_NCCL_VERSION=22705
//     10000 * major + 100 * minor + patch
// FAKE_NCCL_LAUNCH_US=200
//     how long a communicator that does not block takes to launch
// FAKE_NCCL_ABORT=all
//     who is released with garbage when a rank aborts: all ranks, or its "own"
// FAKE_NCCL_ABORT_HANGS=0
//     1: ncclCommAbort does not return, and releases nobody
// FAKE_NCCL_LATE_ERRORS=0
//     so often ncclCommGetAsyncError still says that all is well when there is an error: it has
//     come to light only since
// FAKE_NCCL_FAIL=
//     as above, with @RANK: functions return CODE. "op" ("all_reduce", "reduce_scatter",
//     "all_gather", "broadcast") sets CODE as the communicator's error and stands still until it
//     is aborted; "init" never arrives ("hang"), or fails with CODE
//
// FAKE_GPU_VERBOSE=0
//     1: what was wrong goes to stderr as well
#ifndef TESTS_FAKE_GPU_FAKE_GPU_H
#define TESTS_FAKE_GPU_FAKE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// ---- in libcuda-fake.so; any thread -------------------------------------------------------------

// Reads the variables again; counts of calls, and of what FAKE_CUDA_FAIL counts, begin anew.
typedef void fake_gpu_reload_function(void); // "fake_gpu_reload"

// How often a function of the driver was called ("cuMemAlloc_v2"), since the last reload.
typedef uint64_t fake_gpu_calls_function(const char *name); // "fake_gpu_calls"

// Objects that exist and were not destroyed: streams, events, modules, allocations of device memory
// and of pinned memory, registrations. Nothing of it is left when a library cleans up.
struct fake_gpu_live {
    uint32_t contexts;
    uint32_t streams;
    uint32_t events;
    uint32_t modules;
    uint32_t device_allocations;
    uint32_t host_allocations;
    uint32_t registrations;
};
typedef void fake_gpu_live_function(struct fake_gpu_live *live); // "fake_gpu_live"

// A request to the driver that must not be made, as a sentence; "" when nothing was wrong. The
// first of them since the last reload; the memory is the caller's.
typedef void fake_gpu_complaint_function(char *text, size_t bytes); // "fake_gpu_complaint"

// Stops a device before its next operation, or lets it go on.
typedef void fake_gpu_hold_function(int device, bool held); // "fake_gpu_hold"

// A device falls off the bus: its context has error `code` from now on, and its work is dropped.
typedef void fake_gpu_lose_function(int device, int code); // "fake_gpu_lose"

// For tests that look: the host's view of `bytes` of device memory, NULL when that is not
// allocated.
typedef void *fake_gpu_peek_function(uint64_t address, size_t bytes); // "fake_gpu_peek"

// ---- in libnccl-fake.so; any thread -------------------------------------------------------------

// The same for NCCL's functions and variables.
typedef void fake_nccl_reload_function(void); // "fake_nccl_reload"
typedef uint64_t fake_nccl_calls_function(const char *name); // "fake_nccl_calls"
typedef uint32_t fake_nccl_live_function(void); // "fake_nccl_live": communicators
// The operations of this process that stand, and the ranks that they wait for; "" when none stands.
typedef void fake_nccl_report_function(char *text, size_t bytes); // "fake_nccl_report"

// ---- kernels of tests ---------------------------------------------------------------------------

// Each takes its struct by value as its only parameter. Addresses are the device's.
struct fake_fill { // "fake_fill": to[i] = value
    uint32_t *to;
    uint64_t count;
    uint32_t value;
    uint32_t unused;
};

struct fake_add { // "fake_add_u32", "fake_add_f32": to[i] += from[i]
    void *to;
    const void *from;
    uint64_t count;
};

#endif
