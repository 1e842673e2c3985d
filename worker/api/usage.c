// SPDX-License-Identifier: Apache-2.0
//
// lockstep_module_usage: on how many ranks each parameter of a module was used in the last step.
// Runs on the trainer's thread. It uses a plain collective of the library, so a step has no cost
// for it.

#include "worker/session/module/calls.h"
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

static int usage_check(struct lockstep_module *module, const uint32_t *ranks, uint32_t count)
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
    if (count != module->parameter_count || (!ranks && count > 0))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has %" PRIu32 " parameters: ranks has room for %" PRIu32 "%s",
                         module->name, module->parameter_count, count,
                         !ranks ? " and is NULL" : "");
    return 0;
}

static int usage_sum(struct lockstep_module *module, uint32_t *ranks, uint32_t count)
{
    const struct collective sum = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT32, .op = REDUCE_SUM};
    char name[LOCKSTEP_NAME_BYTES];
    struct lockstep_work *work;
    int status;
    for (uint32_t p = 0; p < count; p++)
        ranks[p] = usage_here(module, p);
    snprintf(name, sizeof(name), "lockstep/usage/%" PRIu32, module->index);
    status = work_begin(module->session, name, ranks, count, &sum, &work);
    if (status < 0)
        return status;
    return work_wait(work, LOCKSTEP_WAIT_FOREVER);
}

int lockstep_module_usage(lockstep_module *module, uint32_t *ranks, uint32_t count)
{
    const int status = usage_check(module, ranks, count);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&module->session->tracker, API_STATE, module->index, 0);
    await_enter(API_MODULE_USAGE, module->index);
    return progress_leave(&visit, usage_sum(module, ranks, count));
}
