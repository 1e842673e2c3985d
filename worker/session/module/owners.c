// SPDX-License-Identifier: Apache-2.0
//
// Shared parameters: one tensor under several names, in one module or in several. The parameter
// that was registered first is the owner: its gradient travels and its value is compared. This file
// finds owners by the address of the value, when a module is registered. claims.c makes one
// gradient of reports under several names. overlap.c checks that other tensors do not overlap.
// Trainer.

#include "worker/session/module/owners.h"

#include "base/hash64.h"
#include "worker/session/module/replicas.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// A hash table of the owners so far, by the address of their values. Open addressing, at most half
// full.
struct owners {
    struct home *homes; // [capacity]; module NULL: the entry is free.
    uint32_t capacity; // A power of two.
};

static const void *owner_data(const struct home *home)
{
    return home->module->parameters[home->parameter].data;
}

// The entry of the owner with this address; if there is none, the free entry for it.
static struct home *owner_place(const struct owners *owners, const void *data)
{
    uint32_t at = (uint32_t)hash64(&data, sizeof(data)) & (owners->capacity - 1);
    while (owners->homes[at].module && owner_data(&owners->homes[at]) != data)
        at = (at + 1) & (owners->capacity - 1);
    return &owners->homes[at];
}

static void owner_add(struct owners *owners, struct lockstep_module *module, uint32_t parameter)
{
    const struct tensor *tensor = &module->parameters[parameter];
    if (tensor->elements > 0 && !tensor->ignored)
        *owner_place(owners, tensor->data) = (struct home){module, parameter};
}

// Fills the table with the owners of all registered modules. It has room for those of a further
// module. False: no memory.
static bool owner_collect(const struct lockstep_session *session,
                          const struct lockstep_module *further, struct owners *owners)
{
    owners->capacity = 16;
    while (owners->capacity < 2 * (session->tensor_count + further->parameter_count))
        owners->capacity *= 2;
    owners->homes = calloc(owners->capacity, sizeof(*owners->homes));
    for (uint32_t m = 0; owners->homes && m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        for (uint32_t p = 0; p < module->parameter_count; p++) {
            if (home_is_own(module, p))
                owner_add(owners, module, p);
        }
    }
    return owners->homes != NULL;
}

static int owner_check_absent(const struct lockstep_module *module, uint32_t parameter,
                              const struct home *owner)
{
    if (!owner->module)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': parameter '%s' has the memory of parameter '%s' of module "
                     "'%s': mark it LOCKSTEP_PARAMETER_SHARED, or it would be reduced twice",
                     module->name, module->parameters[parameter].name,
                     owner->module->parameters[owner->parameter].name, owner->module->name);
}

static const char *owner_difference(const struct lockstep_module *module, uint32_t parameter,
                                    const struct home *owner)
{
    const struct tensor *tensor = &module->parameters[parameter];
    const struct tensor *owned = &owner->module->parameters[owner->parameter];
    const void *registered = module->contributions[0].gradients[parameter].registered;
    const void *place = owner->module->contributions[0].gradients[owner->parameter].registered;
    if (tensor->dtype != owned->dtype)
        return "dtype";
    if (tensor->gradient_dtype != owned->gradient_dtype)
        return "gradient_dtype";
    if (tensor->dims != owned->dims ||
        memcmp(tensor->shape, owned->shape, tensor->dims * sizeof(tensor->shape[0])) != 0)
        return "shape";
    if (((tensor->flags ^ owned->flags) & LOCKSTEP_PARAMETER_FROZEN) != 0)
        return "flag LOCKSTEP_PARAMETER_FROZEN";
    if (registered && registered != place)
        return "gradient memory";
    return NULL;
}

// For an owner in the same module: in each further replica the shared parameter must have the same
// value and gradient memory as the owner. Returns what differs; NULL: nothing.
static const char *owner_difference_of_replicas(const struct lockstep_module *module,
                                                uint32_t parameter, uint32_t owner)
{
    for (uint32_t r = 1; r < module->replicas; r++) {
        const void *registered =
            replica_gradient(&module->contributions[0], r, parameter)->registered;
        const size_t first = (size_t)(r - 1) * module->parameter_count;
        if (module->replica_data[first + parameter] != module->replica_data[first + owner])
            return "data in a further replica";
        if (registered &&
            registered != replica_gradient(&module->contributions[0], r, owner)->registered)
            return "gradient memory in a further replica";
    }
    return NULL;
}

static int owner_check_owner(const struct lockstep_module *module, uint32_t parameter,
                             const struct home *owner)
{
    const char *name = module->parameters[parameter].name;
    const char *difference;
    if (!owner->module)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is shared, and no earlier parameter has its "
                         "memory: register its owner first, with the same data",
                         module->name, name);
    if (owner->module != module && (module_is_grouped(module) || module_is_grouped(owner->module)))
        return error_set(LOCKSTEP_E_UNSUPPORTED,
                         "module '%s': parameter '%s' is shared with module '%s'; a module with a "
                         "group shares parameters only with itself",
                         module->name, name, owner->module->name);
    if (owner->module != module && (module->separate_calls || owner->module->separate_calls ||
                                    module->replicas > 1 || owner->module->replicas > 1))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is shared with module '%s'; neither may "
                         "have separate_calls or replicas",
                         module->name, name, owner->module->name);
    difference = owner_difference(module, parameter, owner);
    if (!difference && owner->module == module)
        difference = owner_difference_of_replicas(module, parameter, owner->parameter);
    if (!difference)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': parameter '%s' is shared, and its %s is not that of its owner, "
                     "parameter '%s' of module "
                     "'%s'",
                     module->name, name, difference,
                     owner->module->parameters[owner->parameter].name, owner->module->name);
}

int owner_find(struct lockstep_module *module)
{
    static const struct home nobody = {NULL, 0};
    struct owners owners;
    int status = 0;
    if (!owner_collect(module->session, module, &owners))
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (uint32_t p = 0; p < module->parameter_count && status == 0; p++) {
        const struct tensor *tensor = &module->parameters[p];
        const struct home *owner =
            tensor->elements == 0 || tensor->ignored ? &nobody : owner_place(&owners, tensor->data);
        const bool shared = (tensor->flags & LOCKSTEP_PARAMETER_SHARED) != 0 && !tensor->ignored;
        status =
            shared ? owner_check_owner(module, p, owner) : owner_check_absent(module, p, owner);
        module->homes[p] = shared ? *owner : (struct home){module, p};
        module->shared_count += shared;
        if (!shared && status == 0)
            owner_add(&owners, module, p);
    }
    free(owners.homes);
    return status;
}

// Owners no longer await the reports of the first `count` parameters of the module.
static void owner_forget(struct lockstep_module *module, uint32_t count)
{
    for (uint32_t p = 0; p < count; p++) {
        const struct home *home = &module->homes[p];
        if (!home_is_own(module, p))
            home->module->awaits[home->parameter] -=
                module->parameters[p].ready_count * module->replicas;
    }
}

int owner_join(struct lockstep_module *module)
{
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        const struct home *home = &module->homes[p];
        const uint32_t more = module->parameters[p].ready_count * module->replicas;
        uint32_t *awaits = &home->module->awaits[home->parameter];
        if (home_is_own(module, p))
            continue;
        if (more > UINT32_MAX - *awaits) {
            owner_forget(module, p);
            return error_set(LOCKSTEP_E_INVALID,
                             "module '%s': parameter '%s' makes more than %" PRIu32
                             " reports of one gradient: lower the ready_count",
                             module->name, module->parameters[p].name, UINT32_MAX);
        }
        *awaits += more;
    }
    return 0;
}

static int owner_check_leave(const struct lockstep_module *module,
                             const struct lockstep_module *other)
{
    for (uint32_t p = 0; other != module && p < other->parameter_count; p++) {
        if (other->homes[p].module == module)
            return error_set(LOCKSTEP_E_INVALID,
                             "module '%s' owns parameter '%s', which module '%s' shares: close "
                             "that one first",
                             module->name, module->parameters[other->homes[p].parameter].name,
                             other->name);
    }
    return 0;
}

int owner_leave(struct lockstep_module *module)
{
    const struct lockstep_session *session = module->session;
    int status = 0;
    for (uint32_t m = 0; m < session->module_count && status == 0; m++)
        status = owner_check_leave(module, session->modules[m]);
    if (status == 0)
        owner_forget(module, module->parameter_count);
    return status;
}

void owner_move(struct lockstep_module *module, uint32_t parameter)
{
    const struct lockstep_session *session = module->session;
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *other = session->modules[m];
        for (uint32_t p = 0; other->shared_count > 0 && p < other->parameter_count; p++) {
            if (other->homes[p].module == module && other->homes[p].parameter == parameter)
                other->parameters[p].data = module->parameters[parameter].data;
        }
    }
}
