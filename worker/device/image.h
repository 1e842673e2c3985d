// SPDX-License-Identifier: Apache-2.0
//
// The kernels (worker/device/kernels.cu) as machine code for GPUs: a fat binary that nvcc made
// while the library was built, taken in by the assembler (image.c). A build without nvcc has
// an empty one, and a rank that wants a GPU is told so. Constant data, any thread.

#ifndef WORKER_DEVICE_IMAGE_H
#define WORKER_DEVICE_IMAGE_H

#include <stdbool.h>

// As cuModuleLoadData takes it. Without kernels: a few zeros, which it refuses.
const void *device_image(void);

bool device_image_present(void);

// What it was made for, as nvcc calls it: "sm_80 sm_90 sm_100 compute_80". Without kernels: "".
const char *device_image_targets(void);

// What to say of a build without kernels: a sentence.
extern const char device_image_missing[];

#endif
