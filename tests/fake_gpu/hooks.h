// SPDX-License-Identifier: Apache-2.0
//
// Functions of libcuda-fake.so that only libnccl-fake.so calls: they queue NCCL's work in a stream
// and translate device addresses to host addresses. Any thread.
#ifndef TESTS_FAKE_GPU_HOOKS_H
#define TESTS_FAKE_GPU_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Returns the device of the calling thread's current context; -1: no context is current.
int fake_cuda_current_device(void);

// Returns the device of a stream; -1: no such stream. The default streams are those of `device`.
int fake_cuda_stream_device(const void *stream, int device);

// Queues run(argument, dropped) in a stream. `run` is called on the stream's thread and may block.
// `dropped` is true if the device is lost; `run` then only cleans up. FAKE_CUDA_FAIL can select the
// operation by `name`, which must be a constant string. Returns 0, or an error of CUDA.
int fake_cuda_call(const void *stream, int device, const char *name,
                   void (*run)(void *argument, bool dropped), void *argument);

// True if the device is lost.
bool fake_cuda_lost(int device);

// Returns the host address of `bytes` bytes of memory that kernels of the device may access. Breaks
// the context and returns NULL if kernels may not access that memory.
void *fake_cuda_view(int device, uint64_t address, size_t bytes, const char *who);

#endif
