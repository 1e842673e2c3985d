// SPDX-License-Identifier: Apache-2.0
//
// Replicas: several copies of a module in one process. For the other ranks there is only the first
// one. What the replicas report of a gradient is added up when the last report is in, always from
// the first replica to the last, so the bits do not depend on who reports when; what comes back is
// copied to all of them. Runs on trainer threads.

#include "worker/error.h"
#include "worker/kernels.h"
#include "worker/session.h"

#include <fenv.h>
#include <inttypes.h>
#include <string.h>

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

// ---- What is declared --------------------------------------------------------------------------

static bool replica_equal_numbers(const int64_t *a, const int64_t *b, uint32_t count)
{
    if (count == 0 || a == NULL || b == NULL)
        return count == 0 || a == b;
    return memcmp(a, b, count * sizeof(*a)) == 0;
}

static const char *replica_difference(const struct lockstep_parameter *a,
                                      const struct lockstep_parameter *b)
{
    if (b->name == NULL || strcmp(a->name, b->name) != 0)
        return "name";
    if (a->dtype != b->dtype)
        return "dtype";
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
    if (difference != NULL)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' of replica %" PRIu32
                         " differs from that of replica 0 in its %s",
                         module->name, first->name, replica, difference);
    if (module->shapes[parameter].elements > 0 && copy->data == NULL)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' of replica %" PRIu32 " has data NULL",
                         module->name, first->name, replica);
    module->replica_data[at] = copy->data;
    module->contributions[0].replicas[at].registered = copy->gradient;
    return 0;
}

// ---- Adding up ---------------------------------------------------------------------------------

// The first replica that reported begins the sum; it travels from the first one that has memory for
// it, and that is the first replica of all wherever it can be.
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
        if (sum == NULL)
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

// ---- Giving back -------------------------------------------------------------------------------

static void replica_copy(void *to, const void *from, size_t bytes)
{
    if (to != NULL && from != NULL && to != from && bytes > 0)
        memcpy(to, from, bytes);
}

void replica_copy_contribution(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t r = 1; r < module->replicas; r++) {
        for (uint32_t p = 0; p < module->parameter_count; p++) {
            if (contribution->used_anywhere[p])
                replica_copy(atomic_load(&replica_gradient(contribution, r, p)->memory),
                             atomic_load(&contribution->gradients[p].memory),
                             replica_bytes(module, p));
        }
    }
}

void replica_copy_results(struct lockstep_session *session)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->contribution_count; i++) {
            if (!module->contributions[i].returned)
                replica_copy_contribution(&module->contributions[i]);
        }
    }
}

void replica_copy_values(struct lockstep_session *session)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < (module->replicas - 1) * module->parameter_count; i++) {
            const uint32_t p = i % module->parameter_count;
            if (module->parameters[p].ignored)
                continue;
            replica_copy(module->replica_data[i], module->parameters[p].data,
                         replica_bytes(module, p));
        }
    }
}
