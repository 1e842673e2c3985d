// SPDX-License-Identifier: Apache-2.0
//
// Reference implementations in C of the kernels of worker/device/kernels.h: slow and obvious. Tests
// compare the fast kernels with them, bit by bit, and the fake device (tests/fake_gpu) runs them as
// its kernels. Pure; any thread that rounds to nearest and keeps denormals (kernels_environment).

#ifndef TESTS_SUPPORT_DEVICE_REFERENCE_H
#define TESTS_SUPPORT_DEVICE_REFERENCE_H

#include "worker/device/kernels.h"

#include <stddef.h>

// Translates a device address to an address that the caller can access, for `bytes` bytes. A
// reference calls it for each range of memory before it accesses the range, never for NULL. If the
// function returns NULL, the reference does not access that range; the function itself has to
// report the error. Any thread.
typedef void *device_reach(const void *address, uint64_t bytes);

// reach NULL: the addresses are host addresses.
void device_reference_pack(const struct device_pack *pack, device_reach *reach);
void device_reference_finish(const struct device_finish *finish, device_reach *reach);
void device_reference_gather(const struct device_gather *gather, device_reach *reach);
void device_reference_scatter(const struct device_scatter *scatter, device_reach *reach);
void device_reference_add(const struct device_add *add, device_reach *reach);

struct device_reference {
    const char *name; // Name of the kernel in a module.
    size_t parameter_bytes; // Size of the struct that is the kernel's only parameter.
    void (*run)(const void *parameters, device_reach *reach);
};

// NULL: no such kernel.
const struct device_reference *device_reference_find(const char *name);

#endif
