// SPDX-License-Identifier: Apache-2.0
//
// The kernels (worker/device/kernels.cu) as machine code for GPUs. nvcc compiles them to a fat
// binary while the library is built, and the assembler includes that file (image.c). A build
// without nvcc has an empty image; then a rank that wants a GPU gets an error. Constant data; any
// thread.

#ifndef WORKER_DEVICE_IMAGE_H
#define WORKER_DEVICE_IMAGE_H

#include <stdbool.h>

// Returns the image for cuModuleLoadData. In a build without kernels the image is a few zero bytes,
// which cuModuleLoadData refuses.
const void *device_image(void);

bool device_image_present(void);

// Returns the targets of the image, as nvcc names them: "sm_80 sm_90 sm_100 compute_80"; "" in a
// build without kernels.
const char *device_image_targets(void);

// The error text for a build without kernels.
extern const char device_image_missing[];

#endif
