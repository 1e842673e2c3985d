// SPDX-License-Identifier: Apache-2.0
//
// Calls: how the backward passes of a module begin and end in a step. Reports of gradients are in
// worker/session/module/claims.c, which opens with how reports and the end of a call exclude each
// other. Runs on trainer threads.

#include "worker/api/call.h"

#include "worker/session/module/calls.h"
#include "worker/session/module/claims.h"
#include "worker/session/module/leaves.h"
#include "worker/support/error.h"

#include <inttypes.h>

// ---- The end of a step -------------------------------------------------------------------------

// If the module was called in this step, marks the modules that own its shared parameters: they
// take part in the step, too. Reports of the shared gradients make no difference: which modules run
// in a phase must not depend on which parameters are used.
static void call_touch_owners(const struct lockstep_module *module)
{
    const uint64_t step = module->session->step.number;
    if (module->shared_count == 0 || module->made.called_step != step)
        return;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (module->homes[p].module != module)
            module->homes[p].module->made.touched_step = step;
    }
}

// Hands over the gradients that the module's calls have left over. With separate calls nothing is
// left: each call hands over its gradients when it ends.
static void call_finish_module(struct lockstep_module *module)
{
    struct contribution *contribution = &module->contributions[0];
    if (!call_takes_part(module))
        claim_leave_all(contribution);
    if (module->separate_calls || atomic_load(&contribution->handed) ||
        (module->shared_count == 0 && !call_takes_part(module)))
        return;
    (void)claim_rest(contribution, ++module->made.serial);
    claim_hand_rest(contribution);
}

// Copies `withdrawn` from each bucket to its gradients: when the step has settled, the layout may
// have changed, and the buckets with it.
void call_note_withdrawn(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; contribution->withdrawn && p < module->parameter_count; p++)
        contribution->gradients[p].withdrawn =
            module->shapes[p].trainable && contribution->runs[module->bucket_of[p]].withdrawn;
}

void call_finish(struct lockstep_session *session)
{
    for (uint32_t i = 0; i < session->module_count; i++)
        call_touch_owners(session->modules[i]);
    for (uint32_t i = 0; i < session->module_count; i++)
        call_finish_module(session->modules[i]);
    for (uint32_t i = 0; i < session->module_count; i++) {
        struct lockstep_module *module = session->modules[i];
        for (uint32_t c = 0; c < module->contribution_count; c++)
            call_note_withdrawn(&module->contributions[c]);
    }
}

// ---- The public functions ----------------------------------------------------------------------

static int call_check_begin(struct lockstep_module *module)
{
    const struct lockstep_session *session = module->session;
    if (!session->step.is_open)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': lockstep_call_begin outside a step",
                         module->name);
    if (session->step.ending)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call in step %" PRIu64 ", which is in its end: wait for "
                         "it with lockstep_step_end",
                         module->name, session->step.number);
    if (session->step.exhausted)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call in step %" PRIu64 ", for which this rank said that "
                         "it is exhausted",
                         module->name, session->step.number);
    if (opened_read(module).call)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its call is open: call lockstep_call_end first",
                         module->name);
    if (module->made.aborted_step == session->step.number)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call after lockstep_call_abort in step %" PRIu64
                         ": end the step",
                         module->name, session->step.number);
    if (module->separate_calls && session->step.accumulating)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its calls are separate, they do not add up over the steps "
                         "of a window: call it in the last one only",
                         module->name);
    if (module->made.count == module->calls_per_step)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': one more call in step %" PRIu64
                         " than its calls_per_step, which is %" PRIu32,
                         module->name, session->step.number, module->calls_per_step);
    return 0;
}

// Tells the order core that a call begins or ends. The core needs it only with
// config.wait_while_open, and only for a call with which gradients travel.
static void call_tell(const struct lockstep_call *call, enum command_kind kind)
{
    struct lockstep_session *session = call->module->session;
    if (session->config.wait_while_open && !session->config.solo && call->last)
        session_post(session, (struct command){.kind = kind,
                                               .module = call->module->index,
                                               .call = call->contribution->index});
}

static struct tracked_call call_tracked(const struct lockstep_call *call)
{
    const struct lockstep_module *module = call->module;
    return (struct tracked_call){.step = module->session->step.number,
                                 .module = module->index,
                                 .number = call->number,
                                 .gradients = call->gradients};
}

static struct lockstep_call *call_open(struct lockstep_module *module)
{
    struct lockstep_call *begun;
    if (module->leaves)
        leaves_called(module);
    module->made.called_step = module->session->step.number;
    begun = &module->calls[module->made.count++];
    begun->serial = ++module->made.serial;
    begun->step = module->session->step.number;
    begun->given_up = false;
    begun->last = module->separate_calls || (module->made.count == module->calls_per_step &&
                                             !module->session->step.accumulating);
    // Every shared parameter counts, although its owner may be frozen: owners are not asked here.
    begun->gradients = module->trainable_count + module->shared_count;
    const struct tracked_call tracked = call_tracked(begun);
    progress_call_begun(&module->session->tracker, &tracked);
    atomic_store_explicit(&module->open, opened_word(begun), memory_order_release);
    call_tell(begun, COMMAND_CALL_BEGIN);
    return begun;
}

int lockstep_call_begin(lockstep_module *module, lockstep_call **call)
{
    int status = module_check(module);
    if (status < 0)
        return status;
    if (!call)
        return error_set(LOCKSTEP_E_INVALID, "call is NULL: nowhere to put the handle");
    *call = NULL;
    status = call_check_begin(module);
    if (status < 0)
        return status;
    const struct visit visit = progress_enter(&module->session->tracker, API_CALL_BEGIN,
                                              module->index, module->made.count);
    *call = call_open(module);
    return progress_leave(&visit, 0);
}

int lockstep_call_current(lockstep_module *module, lockstep_call **call)
{
    int status = module_check(module);
    if (call)
        *call = NULL;
    if (status == 0 && !call)
        status = error_set(LOCKSTEP_E_INVALID, "call is NULL: nowhere to put the handle");
    if (status < 0)
        return status;
    *call = opened_read(module).call;
    return *call ? 0 : error_set(LOCKSTEP_E_INVALID, "module '%s': no call is open", module->name);
}

// Closes the call for reports, and waits until claimed reports of other threads have settled.
static void call_shut(struct lockstep_call *call)
{
    uint32_t complete;
    atomic_store(&call->module->open, 0);
    complete = claim_rest(call->contribution, call->serial);
    call->ended = true;
    const struct tracked_call tracked = call_tracked(call);
    progress_call_over(&call->module->session->tracker, &tracked, complete);
}

static struct visit call_enter(const struct lockstep_call *call, enum api_function function)
{
    return progress_enter(&call->module->session->tracker, function, call->module->index,
                          call->number);
}

int lockstep_call_end(lockstep_call *call)
{
    const int status = call_check_open(call);
    if (status < 0)
        return status;
    const struct visit visit = call_enter(call, API_CALL_END);
    call_shut(call);
    if (call->last)
        claim_hand_rest(call->contribution);
    call_tell(call, COMMAND_CALL_END);
    return progress_leave(&visit, 0);
}

void call_withdraw(struct lockstep_module *module)
{
    struct contribution *contribution = &module->contributions[0];
    (void)claim_rest(contribution, ++module->made.serial);
    claim_withdraw(contribution);
}

// The module makes no more calls in this window. So buckets that would travel with these contribute
// nothing, and no rank waits for them. In a step that accumulates, no bucket travels: then
// lockstep_step_begin of the window's last step withdraws them.
static void call_give_up(const struct lockstep_call *call)
{
    struct lockstep_module *module = call->module;
    struct lockstep_session *session = module->session;
    if (call->last)
        claim_withdraw(call->contribution);
    else if (!session->step.accumulating)
        call_withdraw(module);
    if (module->separate_calls && !session->config.solo)
        session_post(session, (struct command){.kind = COMMAND_CALLS_OVER,
                                               .module = module->index,
                                               .call = module->made.count});
}

int lockstep_call_abort(lockstep_call *call)
{
    const int status = call_check_open(call);
    if (status < 0)
        return status;
    const struct visit visit = call_enter(call, API_CALL_ABORT);
    call_shut(call);
    call->given_up = true;
    call->module->made.aborted_step = call->module->session->step.number;
    call_give_up(call);
    call_tell(call, COMMAND_CALL_END);
    return progress_leave(&visit, 0);
}
