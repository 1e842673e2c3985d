// SPDX-License-Identifier: Apache-2.0
//
// Deferred buckets: their gradients count in a later step than the one that produced them (order
// protocol, R10). The order core decides which slots are deferred; this file applies that to the
// gradients. stash.c keeps the sums. worker/session/session.h says which threads touch which
// fields.
//
// A bucket is deferred, or takes deferred gradients along, when the driver learns that it is ready.
// This happens in the order of the trainer's calls, no matter when the bucket is launched. So only
// this rank's program determines which step carries which gradients. The trainer may reuse the
// memory of deferred gradients as soon as lockstep_call_wait has returned LOCKSTEP_DEFERRED.
//
// When the step has settled, the memory of a deferred gradient gets what the other ranks have. If
// they have a mean, this rank has held it in the stash: the slot was launched before the call was
// made, and the trainer still wrote its gradient to that memory. If they have none, the memory
// becomes zero, as on ranks that have cleared their gradients and not called the module.
//
// After a death (config.on_failure continue) a slot may run again. Its inputs are then what they
// were: a bucket decides once what it carries, and what it has taken stays in the stash until the
// step has settled. If only the lost rank had gradients for a held result, some elements of it may
// have no result on any rank: these are zeros.

#include "worker/session/module/deferral.h"

#include "worker/kernels/kernels.h"
#include "worker/session/module/contribution.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>

// ---- The stashes of a session ------------------------------------------------------------------

static int deferral_open(struct lockstep_module *module, bool holds)
{
    const struct stash_config config = {.parameters = module->shapes,
                                        .parameter_count = module->parameter_count,
                                        .contribution_count = module->contribution_count,
                                        .sums = module->gradient_kind == LOCKSTEP_GRADIENT_SUM,
                                        .holds = holds,
                                        .clears = module->session->config.on_failure ==
                                                  LOCKSTEP_ON_FAILURE_CONTINUE};
    if (module->grouped.absent || module->stash || stash_open(&config, &module->stash) == 0)
        return 0;
    return error_set(LOCKSTEP_E_SYSTEM,
                     "no memory for the gradients of module '%s' that may have to be put off",
                     module->name);
}

int deferral_start(struct lockstep_session *session)
{
    const struct config *config = &session->config;
    const bool holds = config->order == LOCKSTEP_ORDER_ZERO_DEFER;
    int status = 0;
    if (config->solo || (!holds && config->unplanned != LOCKSTEP_UNPLANNED_DEFER))
        return 0;
    for (uint32_t m = 0; m < session->module_count && status == 0; m++)
        status = deferral_open(session->modules[m], holds);
    return status;
}

bool deferral_waits(const struct lockstep_module *module)
{
    return module->stash && stash_left(module->stash) > 0;
}

int deferral_check_weight(const struct lockstep_session *session, uint64_t weight)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        const uint64_t kept = !module->stash ? 0 : stash_left_weight(module->stash);
        const uint64_t more = weight * module->contribution_count;
        if (module->stash && kept + more > LOCKSTEP_MAX_WEIGHT)
            return error_set(LOCKSTEP_E_INVALID,
                             "module '%s': gradients of weight %" PRIu64 " are deferred, and this "
                             "step may add %" PRIu64 " (%" PRIu32 " times its weight): at most "
                             "%llu, which is 2^%d, travel at once",
                             module->name, kept, more, module->contribution_count,
                             LOCKSTEP_MAX_WEIGHT, LOCKSTEP_MAX_WEIGHT_BITS);
    }
    return 0;
}

void deferral_end(struct lockstep_module *module)
{
    if (deferral_waits(module))
        log_event(&module->session->log, LOG_LEVEL_WARN, "contributions_left",
                  "module=%s parameters=%" PRIu32 " weight=%" PRIu64
                  " text=what was put off has not travelled with any later call",
                  module->name, stash_left(module->stash), stash_left_weight(module->stash));
    stash_close(module->stash);
    module->stash = NULL;
}

// ---- Buckets -----------------------------------------------------------------------------------

// The gradient that the call has produced; NULL: the parameter was not used. An empty gradient that
// was used may have no memory; the result is then another pointer that is not NULL.
static const void *deferral_gradient(const struct contribution *contribution, uint32_t parameter)
{
    const struct gradient *gradient = &contribution->gradients[parameter];
    const void *memory = atomic_load_explicit(&gradient->memory, memory_order_relaxed);
    if (gradient->unused)
        return NULL;
    return memory ? memory : gradient;
}

void deferral_put_off(struct contribution *contribution, uint32_t bucket)
{
    const struct lockstep_module *module = contribution->module;
    const struct bucket *shape = &module->layout.buckets[bucket];
    struct bucket_run *run = &contribution->runs[bucket];
    run->put_off = true;
    // Such a bucket would contribute nothing, so there is nothing to defer.
    if (run->withdrawn || module->session->step.weight == 0)
        return;
    for (uint32_t i = 0; i < shape->count; i++) {
        const uint32_t parameter = module->layout.order[shape->first + i];
        stash_keep(module->stash, contribution->index, parameter,
                   deferral_gradient(contribution, parameter), module->session->step.weight);
    }
    atomic_fetch_add_explicit(&module->session->tallies.put_off, 1, memory_order_relaxed);
}

void deferral_take(struct contribution *contribution, uint32_t bucket)
{
    const struct lockstep_module *module = contribution->module;
    const struct bucket *shape = &module->layout.buckets[bucket];
    const uint32_t *parameters = &module->layout.order[shape->first];
    struct bucket_run *run = &contribution->runs[bucket];
    uint64_t kept;
    if (!module->stash || run->put_off || run->decided)
        return;
    run->decided = true;
    if (run->withdrawn || !stash_ready(module->stash, parameters, shape->count, &kept))
        return;
    for (uint32_t i = 0; i < shape->count; i++)
        stash_take(module->stash, parameters[i], deferral_gradient(contribution, parameters[i]),
                   module->session->step.weight);
    run->taken = true;
    run->taken_weight = kept + module->session->step.weight;
}

// ---- The end of a step -------------------------------------------------------------------------

static void deferral_put_back_all(const struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        void *memory = contribution_place(contribution, p);
        if (stash_put_back(module->stash, contribution->index, p, memory,
                           contribution->used_anywhere[p]))
            contribution_clear(contribution, p);
    }
}

void deferral_put_back(struct lockstep_session *session)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        if (!module->stash || !stash_is_busy(module->stash))
            continue;
        for (uint32_t i = 0; i < module->contribution_count; i++)
            deferral_put_back_all(&module->contributions[i]);
        stash_settle(module->stash);
    }
}
