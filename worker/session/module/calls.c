// SPDX-License-Identifier: Apache-2.0
//
// Calls of a module: checks of their handles, the open call, and its missing gradients.
// worker/api/call.c begins and ends calls, and claims.c takes their reports. Any thread, unless a
// function says otherwise.

#include "worker/session/module/calls.h"

#include "base/text.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"

#include <inttypes.h>

// ---- Checks ------------------------------------------------------------------------------------

int module_check(struct lockstep_module *module)
{
    if (!handle_is(HANDLE_MODULE, module))
        return error_set(LOCKSTEP_E_INVALID,
                         !module ? "the module is NULL" : "this is not a module, or it was closed");
    return session_check(module->session);
}

int call_check(struct lockstep_call *call)
{
    if (!handle_is(HANDLE_CALL, call))
        return error_set(LOCKSTEP_E_INVALID, !call ? "the call is NULL"
                                                   : "this is not a call, or its module "
                                                     "was closed");
    return session_check(call->module->session);
}

// A live call that is the open one of its module.
int call_check_open(struct lockstep_call *call)
{
    const int status = call_check(call);
    if (status < 0)
        return status;
    if (opened_read(call->module).call != call)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': %s", call->module->name,
                         call->ended ? "its call has ended already" : "no call is open");
    return 0;
}

// True if the module contributes to the open step: it was called, or a module that shares a
// parameter of it was.
bool call_takes_part(const struct lockstep_module *module)
{
    const uint64_t step = module->session->step.number;
    return module->made.called_step == step || module->made.touched_step == step;
}

// ---- Errors ------------------------------------------------------------------------------------

// Reads the numbers of the call and of the step from fields that any thread may read.
int call_ready_error(const struct opened *open, uint32_t parameter, uint32_t before)
{
    const struct lockstep_module *module = open->call->module;
    const struct tensor *tensor = &module->parameters[parameter];
    const uint32_t call = open->call->number + 1;
    const uint64_t step =
        atomic_load_explicit(&module->session->progress->step, memory_order_relaxed);
    if (before < CLAIM_ENDED && tensor->ready_count > 1)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ready %" PRIu32 " times in call %" PRIu32
                         " of step %" PRIu64 "; its ready_count is %" PRIu32,
                         module->name, tensor->name, before + 1, call, step, tensor->ready_count);
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': parameter '%s' is ready %s in call %" PRIu32 " of step %" PRIu64,
                     module->name, tensor->name,
                     before == CLAIM_DECLARED ? "after it was declared unused"
                     : before == CLAIM_ENDED  ? "after its end"
                                              : "twice",
                     call, step);
}

int call_unused_error(const struct lockstep_module *module, uint32_t parameter, uint32_t before)
{
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': parameter '%s' is declared unused %s in call %" PRIu32
                     " of step %" PRIu64,
                     module->name, module->parameters[parameter].name,
                     before == CLAIM_DECLARED ? "twice" : "after it was ready", module->made.count,
                     module->session->step.number);
}

// ---- Missing gradients -------------------------------------------------------------------------

// True if the first replica has made all its reports of the parameter in this call.
static bool call_is_complete(const struct opened *open, uint32_t parameter)
{
    const uint64_t claim = atomic_load_explicit(
        &open->call->contribution->gradients[parameter].report.claim, memory_order_relaxed);
    return claim_serial(claim) == open->serial &&
           claim_count(claim) >= open->call->module->parameters[parameter].ready_count;
}

void call_missing(struct lockstep_module *module, struct answer_place *place)
{
    const struct opened open = opened_read(module);
    for (uint32_t p = 0; open.call && p < module->parameter_count; p++) {
        if (!call_has_gradient(module, p) || call_is_complete(&open, p))
            continue;
        if (place->missing_count < LOCKSTEP_MISSING_NAMED)
            text_copy(place->missing[place->missing_count++], sizeof(place->missing[0]),
                      module->parameters[p].name);
        place->missing_total++;
    }
}
