// SPDX-License-Identifier: Apache-2.0
//
// Memory for means that have no other place. Each gradient of each contribution has a place of its
// own, whether it is ever needed or not, so a launch allocates nothing. See spares.h.

#include "worker/session/module/spares.h"

#include "worker/kernels/kernels.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPARES_ALIGN 64 // Gradients share no cache line.

// Fills in where each gradient lies in the memory of a contribution. Returns the bytes of that
// memory; above INT64_MAX if there cannot be so many.
static size_t spares_measure(struct lockstep_module *module)
{
    size_t bytes = SPARES_ALIGN; // Not 0: also empty parameters need an address.
    for (uint32_t p = 0; p < module->parameter_count && bytes <= (size_t)INT64_MAX; p++) {
        const size_t size = module->shapes[p].elements * dtype_size(module->shapes[p].dtype);
        module->spares.at[p] = bytes;
        bytes += (size + SPARES_ALIGN - 1) / SPARES_ALIGN * SPARES_ALIGN;
    }
    return bytes;
}

int spares_reserve(struct lockstep_module *module)
{
    struct module_spares *spares = &module->spares;
    if (!spares->wanted)
        return 0;
    spares->at = calloc((size_t)module->parameter_count + 1, sizeof(*spares->at));
    if (!spares->at)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    spares->stride = spares_measure(module);
    if (spares->stride > (size_t)INT64_MAX / module->contribution_count)
        return error_set(LOCKSTEP_E_SYSTEM, "module '%s': its gradients do not fit in memory",
                         module->name);
    void *memory = mmap(NULL, spares->stride * module->contribution_count, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(
            LOCKSTEP_E_SYSTEM, "module '%s': cannot reserve %zu bytes for its gradients: %s",
            module->name, spares->stride * module->contribution_count, strerror(errno));
    spares->memory = memory;
    return 0;
}

void spares_release(struct lockstep_module *module)
{
    struct module_spares *spares = &module->spares;
    if (spares->memory)
        munmap(spares->memory, spares->stride * module->contribution_count);
    free(spares->at);
    spares->memory = NULL;
    spares->at = NULL;
}

void *spares_place(const struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    const struct module_spares *spares = &module->spares;
    if (!spares->memory || (module->shapes[parameter].device && module->session->devices.first))
        return NULL;
    return spares->memory + contribution->index * spares->stride + spares->at[parameter];
}
