// SPDX-License-Identifier: Apache-2.0
//
// lockstep_module_usage: on how many ranks each parameter of a module was used in the last step.
// It uses a plain collective of the library, so a step has no cost for it. lockstep_module_used:
// which parameters any rank used, as the buckets of the step have said. lockstep_module_means:
// where their means are. All run on the trainer's thread.

#include "base/cond.h"
#include "worker/api/step_device.h"
#include "worker/session/module/calls.h"
#include "worker/session/module/contribution.h"
#include "worker/session/plain.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdio.h>

// True if any call on this rank contributed a gradient of the parameter to the last step. For a
// shared parameter, calls of all modules that share it count.
static bool usage_here(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    const struct lockstep_module *owner = home->module;
    bool used = false;
    for (uint32_t i = 0; i < owner->contribution_count; i++) {
        const struct gradient *gradient = &owner->contributions[i].gradients[home->parameter];
        used |= atomic_load(&gradient->used) && !gradient->withdrawn;
    }
    return used && owner->shapes[home->parameter].trainable;
}

// array: the trainer's array, of `count` elements. name: its name in the header.
static int usage_check(struct lockstep_module *module, const char *name, const void *array,
                       uint32_t count)
{
    const int status = module_check(module);
    const struct lockstep_session *session;
    if (status < 0)
        return status;
    session = module->session;
    if (!session->started)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': call lockstep_start before its usage",
                         module->name);
    if (session->step.is_open || session->step.window_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its usage inside step %" PRIu64 ": end the step, and the "
                         "window that it belongs to, first",
                         module->name, session->step.number);
    if (count != module->parameter_count || (!array && count > 0))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has %" PRIu32 " parameters: %s has room for %" PRIu32 "%s",
                         module->name, module->parameter_count, name, count,
                         !array ? " and is NULL" : "");
    return 0;
}

// The sum over all ranks, or over the members of the module's group: other ranks have no handle.
static int usage_begin(const struct lockstep_module *module, const char *name, uint32_t *ranks,
                       uint32_t count, struct lockstep_work **work)
{
    const struct collective sum = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT32, .op = REDUCE_SUM};
    struct lockstep_collective of_group = LOCKSTEP_COLLECTIVE_INIT;
    if (!module->grouped.group)
        return work_begin(module->session, name, ranks, count, &sum, work);
    of_group.kind = LOCKSTEP_ALLREDUCE;
    of_group.name = name;
    of_group.group = module->grouped.group;
    of_group.count = count;
    of_group.dtype = LOCKSTEP_INT32;
    of_group.op = LOCKSTEP_SUM;
    of_group.input = of_group.output = ranks;
    return plain_begin_library(module->session, &of_group, work);
}

static int usage_sum(struct lockstep_module *module, uint32_t *ranks, uint32_t count)
{
    char name[LOCKSTEP_NAME_BYTES];
    struct lockstep_work *work;
    int status;
    for (uint32_t p = 0; p < count; p++)
        ranks[p] = usage_here(module, p);
    snprintf(name, sizeof(name), "lockstep/usage/%" PRIu32, module->index);
    status = usage_begin(module, name, ranks, count, &work);
    if (status < 0)
        return status;
    return work_wait(work, LOCKSTEP_WAIT_FOREVER);
}

int lockstep_module_usage(lockstep_module *module, uint32_t *ranks, uint32_t count)
{
    const int status = usage_check(module, "ranks", ranks, count);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&module->session->tracker, API_STATE, module->index, 0);
    await_enter(API_MODULE_USAGE, module->index);
    return progress_leave(&visit, usage_sum(module, ranks, count));
}

// True if the parameter has a mean of the last step. A shared parameter has its owner's.
static bool usage_anywhere(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    bool used = false;
    for (uint32_t i = 0; i < home->module->contribution_count; i++)
        used |= home->module->contributions[i].used_anywhere[home->parameter];
    return used;
}

int lockstep_module_used(lockstep_module *module, uint8_t *used, uint32_t count)
{
    int status = usage_check(module, "used", used, count);
    if (status == 0)
        status = step_device_land(module->session, COND_NO_DEADLINE);
    for (uint32_t p = 0; p < count && status == 0; p++)
        used[p] = usage_anywhere(module, p);
    return status;
}

// The memory that holds the mean of one call in the last step. NULL: there is none.
static void *usage_mean(const struct lockstep_module *module, uint32_t call, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    // An owner in another module has no separate calls.
    const struct contribution *contribution =
        &home->module->contributions[home->module == module ? call : 0];
    return contribution->used_anywhere[home->parameter]
               ? contribution_place(contribution, home->parameter)
               : NULL;
}

int lockstep_module_means(lockstep_module *module, uint32_t call, void **means, uint32_t count)
{
    int status = usage_check(module, "means", means, count);
    if (status == 0 && call >= module->contribution_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has the means of %" PRIu32 " calls; there is no number "
                         "%" PRIu32,
                         module->name, module->contribution_count, call);
    if (status == 0)
        status = step_device_land(module->session, COND_NO_DEADLINE);
    for (uint32_t p = 0; p < count && status == 0; p++)
        means[p] = usage_mean(module, call, p);
    return status;
}
