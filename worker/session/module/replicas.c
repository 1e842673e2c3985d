// SPDX-License-Identifier: Apache-2.0
//
// Replicas: several copies of a module in one process. Other ranks see only one module. When the
// last report of a gradient has come, the replicas' gradients are added up, always from the first
// replica to the last, so the bits do not depend on the order of reports. The result is copied to
// all replicas. For gradients on devices the transport does both
// (worker/transport/device/replicas.c), except in a solo session, which has no transport. Runs on
// trainer threads.

#include "worker/session/module/replicas.h"

#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/session/module/device_events.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <fenv.h>
#include <inttypes.h>
#include <string.h>

#define REPLICA_PIECE 512 // Words of 8 bytes that are copied from a device at a time.

struct replica_gradient *replica_gradient(const struct contribution *contribution, uint32_t replica,
                                          uint32_t parameter)
{
    const size_t count = contribution->module->parameter_count;
    return &contribution->replicas[(replica - 1) * count + parameter];
}

static size_t replica_bytes(const struct lockstep_module *module, uint32_t parameter)
{
    return module->shapes[parameter].elements * dtype_size(module->shapes[parameter].dtype);
}

bool replica_is_on_devices(const struct lockstep_module *module, uint32_t parameter)
{
    return module->session->devices.first && module->shapes[parameter].device;
}

// ---- Declarations ------------------------------------------------------------------------------

static bool replica_equal_numbers(const int64_t *a, const int64_t *b, uint32_t count)
{
    if (count == 0 || !a || !b)
        return count == 0 || a == b;
    return memcmp(a, b, count * sizeof(*a)) == 0;
}

static const char *replica_difference(const struct lockstep_parameter *a,
                                      const struct lockstep_parameter *b)
{
    if (!b->name || strcmp(a->name, b->name) != 0)
        return "name";
    if (a->dtype != b->dtype)
        return "dtype";
    if (a->gradient_dtype != b->gradient_dtype)
        return "gradient_dtype";
    if (a->dims != b->dims || !replica_equal_numbers(a->shape, b->shape, a->dims))
        return "shape";
    if (!replica_equal_numbers(a->strides, b->strides, a->dims))
        return "strides";
    if (a->flags != b->flags)
        return "flags";
    return a->ready_count != b->ready_count ? "ready_count" : NULL;
}

int replica_declare(struct lockstep_module *module, uint32_t replica, uint32_t parameter,
                    const struct lockstep_parameter *first, const struct lockstep_parameter *copy)
{
    const char *difference = replica_difference(first, copy);
    const size_t at = (size_t)(replica - 1) * module->parameter_count + parameter;
    if (difference)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' of replica %" PRIu32
                         " differs from that of replica 0 in its %s",
                         module->name, first->name, replica, difference);
    if (module->shapes[parameter].elements > 0 && !copy->data)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' of replica %" PRIu32 " has data NULL",
                         module->name, first->name, replica);
    module->replica_data[at] = copy->data;
    module->contributions[0].replicas[at].registered = copy->gradient;
    return 0;
}

// ---- Adding up ---------------------------------------------------------------------------------

// The first replica that reported the gradient begins the sum. The sum is in the memory of replica
// 0, if that has memory for the gradient, or else in that of the first replica that reported it.
void replica_combine(struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    struct gradient *gradient = &contribution->gradients[parameter];
    const enum dtype dtype = module->shapes[parameter].dtype;
    const uint64_t elements = module->shapes[parameter].elements;
    bool begun = atomic_load(&gradient->report.used);
    void *sum = atomic_load(&gradient->memory);
    fenv_t environment;
    fegetenv(&environment);
    kernels_environment();
    for (uint32_t r = 1; r < module->replicas && elements > 0; r++) {
        struct replica_gradient *replica = replica_gradient(contribution, r, parameter);
        void *memory = atomic_load(&replica->memory);
        if (!atomic_load(&replica->report.used))
            continue;
        if (!sum)
            sum = memory;
        if (begun)
            kernel_reduce(dtype, REDUCE_SUM, sum, memory, elements);
        else if (sum != memory)
            memcpy(sum, memory, replica_bytes(module, parameter));
        begun = true;
    }
    if (module->gradient_kind == LOCKSTEP_GRADIENT_MEAN && elements > 0)
        kernel_divide(dtype, sum, sum, module->replicas, elements);
    fesetenv(&environment);
    atomic_store(&gradient->memory, sum);
}

// ---- Devices in a solo session -----------------------------------------------------------------

// The memory of a replica's gradient, if the replica has reported it; else NULL.
static void *replica_reported(const struct contribution *contribution, uint32_t replica,
                              uint32_t parameter)
{
    const struct gradient *first = &contribution->gradients[parameter];
    const struct replica_gradient *further =
        replica == 0 ? NULL : replica_gradient(contribution, replica, parameter);
    const struct report *report = !further ? &first->report : &further->report;
    if (!atomic_load(&report->used))
        return NULL;
    return !further ? atomic_load(&first->memory) : atomic_load(&further->memory);
}

// Sets `sum` to the sum of the replicas' gradients, for `count` elements from element `at` on.
static int replica_add_piece(const struct contribution *contribution, uint32_t parameter,
                             uint64_t at, uint64_t count, void *sum)
{
    const struct lockstep_module *module = contribution->module;
    const enum dtype dtype = module->shapes[parameter].dtype;
    const size_t size = dtype_size(dtype);
    uint64_t piece[REPLICA_PIECE];
    bool begun = false;
    for (uint32_t r = 0; r < module->replicas; r++) {
        const char *memory = replica_reported(contribution, r, parameter);
        if (!memory)
            continue;
        if (device_copy(module->session->devices.first, begun ? piece : sum, memory + at * size,
                        count * size) < 0)
            return -1;
        if (begun)
            kernel_reduce(dtype, REDUCE_SUM, sum, piece, count);
        begun = true;
    }
    if (module->gradient_kind == LOCKSTEP_GRADIENT_MEAN)
        kernel_divide(dtype, sum, sum, module->replicas, count);
    return 0;
}

int replica_settle(struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    struct gradient *gradient = &contribution->gradients[parameter];
    const uint64_t elements = module->shapes[parameter].elements;
    const size_t size = dtype_size(module->shapes[parameter].dtype);
    const uint64_t most = REPLICA_PIECE * sizeof(uint64_t) / size;
    uint64_t sum[REPLICA_PIECE];
    char *memory = atomic_load(&gradient->memory);
    fenv_t environment;
    int status = 0;
    for (uint32_t r = 1; r < module->replicas && !memory; r++)
        memory = replica_reported(contribution, r, parameter);
    fegetenv(&environment);
    kernels_environment();
    for (uint64_t at = 0; at < elements && status == 0; at += most) {
        const uint64_t count = elements - at < most ? elements - at : most;
        status = replica_add_piece(contribution, parameter, at, count, sum);
        if (status == 0)
            status =
                device_copy(module->session->devices.first, memory + at * size, sum, count * size);
    }
    fesetenv(&environment);
    atomic_store(&gradient->memory, memory);
    return status < 0 ? device_events_failed(module->session) : 0;
}

// ---- Giving back -------------------------------------------------------------------------------

// device: the device whose memory `to` or `from` is; NULL: both are in host memory.
static int replica_copy(struct device *device, void *to, const void *from, size_t bytes)
{
    if (!to || !from || to == from || bytes == 0)
        return 0;
    if (device)
        return device_copy(device, to, from, bytes);
    memcpy(to, from, bytes);
    return 0;
}

static int replica_copy_gradient(struct contribution *contribution, uint32_t replica,
                                 uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    struct lockstep_session *session = module->session;
    const bool device = replica_is_on_devices(module, parameter);
    // The transport copies results on devices. If a stream ended the step, it may not be done yet,
    // and used_anywhere is not complete. So that is checked second.
    if ((device && !session->config.solo) || !contribution->used_anywhere[parameter])
        return 0;
    return replica_copy(device ? session->devices.first : NULL,
                        atomic_load(&replica_gradient(contribution, replica, parameter)->memory),
                        atomic_load(&contribution->gradients[parameter].memory),
                        replica_bytes(module, parameter));
}

int replica_copy_contribution(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    int status = 0;
    for (uint32_t r = 1; r < module->replicas; r++) {
        for (uint32_t p = 0; p < module->parameter_count && status == 0; p++)
            status = replica_copy_gradient(contribution, r, p);
    }
    return status < 0 ? device_events_failed(module->session) : 0;
}

int replica_copy_results(struct lockstep_session *session)
{
    int status = 0;
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->contribution_count && status == 0; i++) {
            if (!module->contributions[i].returned)
                status = replica_copy_contribution(&module->contributions[i]);
        }
    }
    return status;
}

int replica_copy_values(struct lockstep_session *session)
{
    int status = 0;
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        const uint32_t count = (module->replicas - 1) * module->parameter_count;
        for (uint32_t i = 0; i < count && status == 0; i++) {
            const struct tensor *value = &module->parameters[i % module->parameter_count];
            if (!value->ignored)
                status = replica_copy(value->on_device ? session->devices.first : NULL,
                                      module->replica_data[i], value->data,
                                      value->elements * dtype_size(value->dtype));
        }
    }
    return status < 0 ? device_events_failed(session) : 0;
}
