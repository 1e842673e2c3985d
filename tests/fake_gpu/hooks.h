// SPDX-License-Identifier: Apache-2.0
//
// Functions of libcuda-fake.so that libnccl-fake.so calls, beside the driver's own functions: work
// of its own in a stream, and the bytes behind device addresses. Any thread; not while a hook of
// the same thread runs.
#ifndef TESTS_FAKE_GPU_HOOKS_H
#define TESTS_FAKE_GPU_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The device of the current context; -1: none.
int fake_cuda_current_device(void);

// The device of a stream, for a thread that has `device` current; -1: no such stream.
int fake_cuda_stream_device(const void *stream, int device);

// Queues run(argument, dropped) in the stream of a device: it runs on the stream's thread, may
// block, and is told when its device is lost, where it only cleans up. `name` is for faults that
// were asked for; constant. 0, or an error of CUDA.
int fake_cuda_call(const void *stream, int device, const char *name,
                   void (*run)(void *argument, bool dropped), void *argument);

// Whether a device is lost, for a call that waits.
bool fake_cuda_lost(int device);

// The bytes behind an address that kernels of the device may touch; NULL: they may not, which
// breaks the context, as it would.
void *fake_cuda_view(int device, uint64_t address, size_t bytes, const char *who);

#endif
