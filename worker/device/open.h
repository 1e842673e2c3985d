// SPDX-License-Identifier: Apache-2.0
//
// Opens the GPU of this rank; see device.h for what it then does.

#ifndef WORKER_DEVICE_OPEN_H
#define WORKER_DEVICE_OPEN_H

#include <stddef.h>

struct device;

// The device that `choice` means: "none"; "auto": that of the CUDA context which is current on the
// calling thread, if libcuda is in the process already, else none; "cuda:N": that one's primary
// context. Any thread. Blocks for the driver. 0, with *device NULL when it means none; -1 with a
// sentence in error; or -2 without memory.
int device_open(const char *choice, struct device **device, char *error, size_t error_bytes);

#endif
