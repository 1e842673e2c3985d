// SPDX-License-Identifier: Apache-2.0
//
// The fake GPUs replace libcuda and libnccl, so that tests run the whole GPU path except the real
// kernels, with delays and faults, on machines without a GPU. The code under test loads the fakes
// through LOCKSTEP_CUDA_LIBRARY and LOCKSTEP_NCCL_LIBRARY. This header declares the functions that
// a test finds in them with dlsym, to inspect the fakes or to change their settings.
//
// A fake is not a GPU. Its times mean nothing. Its kernels are C functions, found by name
// (tests/support/device_reference.h, and the three at the end of this header). It exports only the
// functions that Lockstep calls. Where the real libraries permit several behaviours, a fake chooses
// the worst one; it refuses what the real libraries forbid.
//
// The settings are environment variables, here with their defaults. A library reads them when it is
// loaded, and in its reload function.
//
// FAKE_CUDA_DEVICES=8
//     number of devices
// FAKE_CUDA_CAPABILITY=90, FAKE_CUDA_VERSION=13000
//     compute capability of all devices, 10 * major + minor; version of the driver
// FAKE_CUDA_DELAY_US=0, FAKE_CUDA_SEED=1
//     random delay before each operation of a stream: MAX or LOW-HIGH microseconds. The delay
//     depends only on the seed, device, stream and position
// FAKE_CUDA_URGENT_US=0
//     additional delay of each operation in a stream with a priority above the default, such as
//     Lockstep's own. A test that does not wait for Lockstep's results then reads old data
// FAKE_CUDA_LAZY_US=0
//     an operation starts only when a thread waits for it or queries it, or after this time. Code
//     in which a wait is missing then always reads old data
// FAKE_CUDA_KERNEL_US=0
//     duration of each kernel
// FAKE_CUDA_EVERYWHERE=0
//     1: all memory that the driver did not allocate counts as memory of the device that uses it,
//     as on machines with coherent memory, and the host can access memory of cuMemAlloc.
//     0: the host faults when it accesses a device address
// FAKE_CUDA_SYNC=1
//     1: calls that allocate, free, register or load first wait for all work of the device, as CUDA
//     permits. 0: they do not wait
// FAKE_CUDA_FAIL=
//     faults: WHAT:N:CODE[@DEVICE],... If WHAT is a function, its Nth call returns CODE
//     ("cuLaunchKernel:3:700"; "3+" is the third and every later call), and a CODE that is fatal in
//     CUDA breaks the context. If WHAT is "op", "kernel", "copy", "set", "host", "record", "wait",
//     "value", "nccl" or the name of a kernel, the Nth such operation that a stream begins breaks
//     the context of its device with CODE; with CODE "hang" the operation never ends
//
// FAKE_NCCL_VERSION=22705
//     10000 * major + 100 * minor + patch
// FAKE_NCCL_LAUNCH_US=200
//     duration of a launch on a non-blocking communicator
// FAKE_NCCL_ABORT=all
//     ranks whose operations end, with garbage as result, when one rank aborts: "all", or only its
//     "own"
// FAKE_NCCL_ABORT_HANGS=0
//     1: ncclCommAbort never returns and ends no operation
// FAKE_NCCL_LATE_ERRORS=0
//     number of calls in which ncclCommGetAsyncError still hides an error of the communicator
// FAKE_NCCL_FAIL=
//     faults as in FAKE_CUDA_FAIL, with @RANK. A function returns CODE. An operation ("op", or
//     "all_reduce", "reduce_scatter", "all_gather", "broadcast") sets CODE as the communicator's
//     error and hangs until the communicator is aborted. "init" fails with CODE, or hangs ("hang")
//
// FAKE_GPU_VERBOSE=0
//     1: complaints about misuse also go to stderr
#ifndef TESTS_FAKE_GPU_FAKE_GPU_H
#define TESTS_FAKE_GPU_FAKE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// ---- in libcuda-fake.so; any thread -------------------------------------------------------------

// Reads the variables again. Resets the counts of calls, the counts of FAKE_CUDA_FAIL, and the
// complaint.
typedef void fake_gpu_reload_function(void); // "fake_gpu_reload"

// Number of calls of a driver function ("cuMemAlloc_v2") since the last reload.
typedef uint64_t fake_gpu_calls_function(const char *name); // "fake_gpu_calls"

// Numbers of objects that exist now. All are 0 after a library that uses the driver has cleaned up.
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

// Copies the first complaint about misuse of the driver since the last reload, as a sentence, into
// the caller's buffer; "" if there was no misuse.
typedef void fake_gpu_complaint_function(char *text, size_t bytes); // "fake_gpu_complaint"

// True: stops the device before its next operation. False: lets the device continue.
typedef void fake_gpu_hold_function(int device, bool held); // "fake_gpu_hold"

// Makes a second context of a device, and returns its handle. It is never released.
typedef void *fake_gpu_context_function(int device); // "fake_gpu_context"

// True: begins to capture a stream into a graph, in CUDA's mode "global". Only records of events
// know of the capture. False: ends the capture.
typedef void fake_gpu_capture_function(void *stream, bool captured); // "fake_gpu_capture"

// Loses a device, as if it fell off the bus: its context has the error `code` from now on, and the
// driver drops its queued work.
typedef void fake_gpu_lose_function(int device, int code); // "fake_gpu_lose"

// Returns the host's view of `bytes` bytes of device memory, or NULL if they are not allocated.
typedef void *fake_gpu_peek_function(uint64_t address, size_t bytes); // "fake_gpu_peek"

// ---- in libnccl-fake.so; any thread -------------------------------------------------------------

// As fake_gpu_reload and fake_gpu_calls, for NCCL's variables and functions.
typedef void fake_nccl_reload_function(void); // "fake_nccl_reload"
typedef uint64_t fake_nccl_calls_function(const char *name); // "fake_nccl_calls"
typedef uint32_t fake_nccl_live_function(void); // "fake_nccl_live": number of communicators
// Describes the operations of this process that are not done, and the ranks that they wait for; ""
// if all are done.
typedef void fake_nccl_report_function(char *text, size_t bytes); // "fake_nccl_report"

// ---- kernels of tests ---------------------------------------------------------------------------

// Each kernel takes its struct by value as its only parameter. The addresses are device addresses.
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
