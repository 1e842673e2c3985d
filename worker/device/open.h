// SPDX-License-Identifier: Apache-2.0
//
// Opens the GPU of this rank; device.h has the functions of an open device.

#ifndef WORKER_DEVICE_OPEN_H
#define WORKER_DEVICE_OPEN_H

#include <stddef.h>

struct device;

// Opens the device that `choice` names. "none": no device. "auto": the device of the CUDA context
// that is current on the calling thread, if libcuda is already in the process; otherwise no device.
// "cuda:N": device N, with its primary context. Any thread. Blocks while the CUDA driver works.
// Returns 0, with *device NULL for no device; -1 with a sentence in error; or -2 if there is no
// memory.
int device_open(const char *choice, struct device **device, char *error, size_t error_bytes);

#endif
