// SPDX-License-Identifier: Apache-2.0
//
// The kernels of worker/device/kernels.h in C: slow and obvious, and what the fast ones are checked
// against, bit by bit. The stand-in for a device that the tests have runs
// them in the place of kernels. Nothing of a healthy job calls them. Pure; any thread that rounds
// to nearest and keeps denormals (kernels_environment).

#ifndef TESTS_SUPPORT_DEVICE_REFERENCE_H
#define TESTS_SUPPORT_DEVICE_REFERENCE_H

#include "worker/device/kernels.h"

#include <stddef.h>

// Where the caller can reach what a device knows by this address: so many bytes from there on.
// Asked for each run of memory before it is touched, never for NULL. NULL: out of reach; then that
// run is left as it is, and who answered so knows that something is wrong. Any thread.
typedef void *device_reach(const void *address, uint64_t bytes);

// reach NULL: addresses are the caller's own.
void device_reference_pack(const struct device_pack *pack, device_reach *reach);
void device_reference_finish(const struct device_finish *finish, device_reach *reach);
void device_reference_gather(const struct device_gather *gather, device_reach *reach);
void device_reference_scatter(const struct device_scatter *scatter, device_reach *reach);
void device_reference_add(const struct device_add *add, device_reach *reach);

struct device_reference {
    const char *name; // As a module knows the kernel.
    size_t parameter_bytes; // Of the struct that is its only parameter.
    void (*run)(const void *parameters, device_reach *reach);
};

// NULL: no such kernel.
const struct device_reference *device_reference_find(const char *name);

#endif
