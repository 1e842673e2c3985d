// SPDX-License-Identifier: Apache-2.0
//
// A GPU for the programs in this folder, through the library's own fence (worker/device/cuda.h):
// its first device, the kernels of this build on it, memory, launches, times. Where there is no
// usable GPU, gpu_open says why and the caller skips; any failure after that ends the program with
// a line that names the call. With a stand-in for libcuda (LOCKSTEP_CUDA_LIBRARY) `fake` is true,
// and what is printed has to say so. One thread.

#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include "worker/device/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_SKIPPED 77 // Exit status of a test that was skipped: tools/run-tests.

struct gpu_rig {
    const struct cuda *cuda;
    int device;
    void *context;
    void *module;
    void *stream;
    char name[64];
    int capability; // 10 * major + minor.
    int driver; // 1000 * major + 10 * minor.
    int multiprocessors;
    bool fake;
};

// 0; or -1 with a sentence, when this machine or this build has no usable GPU.
int gpu_open(struct gpu_rig *gpu, char *why, size_t why_bytes);
void gpu_close(struct gpu_rig *gpu);
// Opens it, or prints the reason and exits with GPU_SKIPPED.
void gpu_open_or_skip(struct gpu_rig *gpu);

// Ends the program unless result is CUDA_OK.
void gpu_check(const struct gpu_rig *gpu, int result, const char *call);

uint64_t gpu_alloc(const struct gpu_rig *gpu, size_t bytes); // At least one byte.
void gpu_free(const struct gpu_rig *gpu, uint64_t address);
void gpu_upload(const struct gpu_rig *gpu, uint64_t to, const void *from, size_t bytes); // Blocks.
void gpu_download(const struct gpu_rig *gpu, void *to, uint64_t from, size_t bytes); // Blocks.
uint64_t gpu_copy(const struct gpu_rig *gpu, const void *from,
                  size_t bytes); // gpu_alloc, gpu_upload.

void *gpu_kernel(const struct gpu_rig *gpu, const char *name);
// For a row of so many elements; parameters is the kernel's struct. Does not wait.
void gpu_launch(const struct gpu_rig *gpu, void *kernel, uint64_t elements, const void *parameters);
void gpu_wait(const struct gpu_rig *gpu);

// For what is measured here.
double gpu_now_us(void); // Monotonic.
double gpu_median(double *values, int count); // Sorts them.

#endif
