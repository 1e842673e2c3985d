// SPDX-License-Identifier: Apache-2.0
//
// The kernels (worker/device/kernels.cu) as machine code for GPUs: a fat binary that nvcc made
// while the library was built, and the assembler included (image.c). A build without nvcc has an
// empty image, and a rank that wants a GPU gets an error that says so. Constant data; any thread.

#ifndef WORKER_DEVICE_IMAGE_H
#define WORKER_DEVICE_IMAGE_H

#include <stdbool.h>

// The image for cuModuleLoadData. Without kernels it is a few zeros, which cuModuleLoadData
// refuses.
const void *device_image(void);

bool device_image_present(void);

// The targets of the image, as nvcc names them: "sm_80 sm_90 sm_100 compute_80". Without kernels:
// "".
const char *device_image_targets(void);

// The error text for a build without kernels.
extern const char device_image_missing[];

#endif
