// SPDX-License-Identifier: Apache-2.0
//
// Reports of gradients in calls. Counts the missing gradients of each bucket, and hands complete
// buckets to the engine. worker/order/order.c decides when they travel. Trainer threads.
//
// Every call has a serial number. In each call a gradient is complete after `ready_count` reports
// of each replica. Each of these reports is *claimed* by exactly one of: a thread that reports,
// lockstep_call_unused, or the end of the call. One compare-and-swap on the report's claim decides
// which. The claim has the serial of the call and the number of reports so far in that call.
//
// A thread that has claimed a report *settles* it: it notes the gradient and hands it over, and
// then writes the report's word `settled`. A report that is claimed and not settled is in flight.
// The end of a call claims the remaining reports of each gradient, and waits for reports in flight.
// So when a call has ended, every report that returned OK counts in its step, and every later one
// is refused. A report is in flight for some hundred nanoseconds, or a time slice if its thread was
// interrupted. `settled` costs a report one store to a cache line that the report owns; a counter
// for all threads would move from core to core.
//
// Gradients of all calls of a step add up in the trainer's memory, so a parameter travels once,
// with the last call. In the last call every claim reduces the gradient's count of awaited reports.
// The thread that reduces the count to 0 *hands the gradient over* to its bucket. Earlier calls
// only note that the gradient is used. If there is no last call, step_end claims the rest under a
// serial of its own; after an aborted call, lockstep_call_abort or the last step of the window does
// so. In a step that accumulates, no call is the last one. With separate calls, every call is a
// last one and has a contribution of its own.
//
// A shared parameter has claims in every module that shares it, but only one gradient, with its
// owner. That gradient awaits the reports of all these modules.

#include "worker/session/module/claims.h"

#include "base/clock.h"
#include "worker/session/module/calls.h"
#include "worker/session/module/device_events.h"
#include "worker/session/module/places.h"
#include "worker/session/module/replicas.h"
#include "worker/session/module/residency.h"
#include "worker/support/error.h"
#include "worker/transport/wait.h"

#include <inttypes.h>

// ---- Checks ------------------------------------------------------------------------------------

static int call_check_parameter(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home;
    if (parameter >= module->parameter_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has parameters 0 to %" PRId64 "; %" PRIu32 " is none of them",
                         module->name, (int64_t)module->parameter_count - 1, parameter);
    home = &module->homes[parameter];
    if (!call_has_gradient(module, parameter))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is %s and has no gradient", module->name,
                         module->parameters[parameter].name,
                         module->parameters[parameter].ignored   ? "ignored"
                         : home->module->frozen[home->parameter] ? "frozen"
                                                                 : "declared unused in this phase");
    return 0;
}

// True if the handle is a call of this module. The handle may be any pointer: it is only compared.
static bool call_belongs(const struct lockstep_module *module, const struct lockstep_call *call)
{
    for (uint32_t i = 0; i < module->calls_per_step; i++) {
        if (call == &module->calls[i])
            return true;
    }
    return false;
}

// ---- Claiming ----------------------------------------------------------------------------------

static struct report *call_report_of(struct contribution *contribution, uint32_t replica,
                                     uint32_t parameter)
{
    if (replica == 0)
        return &contribution->gradients[parameter].report;
    return &replica_gradient(contribution, replica, parameter)->report;
}

// Claims a report under `serial` if the claim so far has fewer than `limit` reports. *before
// becomes the number of reports so far, or the mark. becomes: the mark to set, or 0 to add one
// report. False also if another thread has ended the call meanwhile, even if a later call has begun
// since.
static bool call_claim(struct report *report, uint64_t serial, uint32_t limit, uint32_t becomes,
                       uint32_t *before)
{
    uint64_t seen = atomic_load_explicit(&report->claim, memory_order_relaxed);
    uint32_t next;
    do {
        *before = 0;
        if (claim_serial(seen) == serial)
            *before = claim_count(seen);
        else if (claim_serial(seen) > serial)
            *before = CLAIM_ENDED;
        if (*before >= limit)
            return false;
        next = becomes == 0 ? *before + 1 : becomes;
    } while (!atomic_compare_exchange_weak_explicit(&report->claim, &seen, claim_word(serial, next),
                                                    memory_order_seq_cst, memory_order_relaxed));
    return true;
}

// Records that one more report of this serial is settled. This is the last action for a report. If
// a call has one report only, no other thread writes the word, so a plain store is enough.
static void call_say_settled(struct report *report, uint64_t serial, uint32_t ready_count)
{
    const uint64_t first = claim_word(serial, 1);
    uint64_t seen = atomic_load_explicit(&report->settled, memory_order_relaxed);
    if (ready_count == 1) {
        atomic_store_explicit(&report->settled, first, memory_order_release);
        return;
    }
    while (!atomic_compare_exchange_weak_explicit(&report->settled, &seen,
                                                  claim_serial(seen) == serial ? seen + 1 : first,
                                                  memory_order_acq_rel, memory_order_relaxed))
        continue;
}

// The number of reports that other threads have claimed under this serial, and that have to settle.
// The thread that ends the call, after it has claimed the rest.
static uint32_t call_claimed(const struct report *report, uint64_t serial, uint32_t ready_count)
{
    const uint64_t claim = atomic_load_explicit(&report->claim, memory_order_relaxed);
    if (claim_serial(claim) != serial)
        return 0;
    return claim_count(claim) == CLAIM_DECLARED ? 1 : ready_count - report->rest;
}

// ---- Handing over ------------------------------------------------------------------------------

// The contribution in which a parameter's gradient travels: the call's, or that of the owner.
static struct contribution *call_home(struct contribution *contribution, uint32_t parameter)
{
    struct lockstep_module *module = contribution->module->homes[parameter].module;
    return module == contribution->module ? contribution : &module->contributions[0];
}

static struct gradient *call_gradient(struct contribution *contribution, uint32_t parameter)
{
    const struct home *home = &contribution->module->homes[parameter];
    return &call_home(contribution, parameter)->gradients[home->parameter];
}

// The result of a gradient that this rank has not used goes to its registered memory. If that
// memory was given for another gradient in this window, the gradient has no memory in this window.
static void call_leave_places(struct contribution *contribution, uint32_t parameter)
{
    struct lockstep_module *module = contribution->module;
    for (uint32_t r = 0; r < module->replicas; r++) {
        const struct placed placed = {
            .contribution = contribution, .parameter = parameter, .replica = r};
        if (places_is_lost(module->session, &placed))
            atomic_store(r == 0 ? &contribution->gradients[parameter].memory
                                : &replica_gradient(contribution, r, parameter)->memory,
                         NULL);
    }
}

void claim_leave_all(struct contribution *contribution)
{
    for (uint32_t p = 0; p < contribution->module->parameter_count; p++) {
        if (atomic_load_explicit(&contribution->gradients[p].report.watched, memory_order_relaxed))
            call_leave_places(contribution, p);
    }
}

// Hands a gradient over to its bucket. The last missing gradient hands the bucket to the engine.
static void call_hand(struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    struct gradient *gradient = &contribution->gradients[parameter];
    const uint32_t bucket = module->bucket_of[parameter];
    struct bucket_run *run = &contribution->runs[bucket];
    const uint32_t place =
        atomic_fetch_add_explicit(&contribution->ready_count, 1, memory_order_relaxed);
    gradient->unused = !atomic_load_explicit(&gradient->used, memory_order_relaxed);
    if (module->replicas > 1 && !run->withdrawn && !gradient->unused &&
        !replica_is_on_devices(module, parameter))
        replica_combine(contribution, parameter);
    if (gradient->unused && atomic_load(&gradient->report.watched))
        call_leave_places(contribution, parameter);
    contribution->ready_order[place] = parameter;
    if (atomic_fetch_sub_explicit(&run->missing, 1, memory_order_acq_rel) != 1)
        return;
    trace_event(&module->session->trace, TRACE_BUCKET_READY, module->session->step.number,
                module->index, contribution->index, bucket, 0);
    if (!module->session->config.solo)
        session_post_bucket(module->session, (struct command){.kind = COMMAND_READY,
                                                              .module = module->index,
                                                              .call = contribution->index,
                                                              .bucket = bucket});
}

// Reduces the awaited reports of the gradient by `reports`. At 0 the gradient is handed over.
static void call_settle_gradient(struct contribution *contribution, struct gradient *gradient,
                                 uint32_t parameter, uint32_t reports)
{
    if (atomic_fetch_sub_explicit(&gradient->awaited, reports, memory_order_acq_rel) == reports)
        call_hand(call_home(contribution, parameter),
                  contribution->module->homes[parameter].parameter);
}

static void call_settle(struct contribution *contribution, uint32_t parameter, uint32_t reports)
{
    call_settle_gradient(contribution, call_gradient(contribution, parameter), parameter, reports);
}

// True if the end of a call or of the step claims the remaining reports of the parameter. A module
// that does not take part in the step still does so for parameters that other modules own.
static bool call_speaks_for(const struct lockstep_module *module, uint32_t parameter)
{
    return call_has_gradient(module, parameter) &&
           (module->homes[parameter].module != module || call_takes_part(module));
}

// Marks the contribution as handed over. A result for a gradient that was not reported may be
// written only after certain work of streams (device_events.h). A thread that begins to wait for a
// call records this work for all contributions handed over by then. If a thread waits already, this
// thread records it for this contribution, or else the result could block the window until the step
// ends. Both sides use sequentially consistent atomics, so at least one of them sees the other.
static void call_say_handed(struct contribution *contribution)
{
    struct lockstep_session *session = contribution->module->session;
    atomic_store(&contribution->handed, true);
    if (atomic_load(&session->waiting) == 0 || session->config.solo)
        return;
    device_events_say_wait(session);
    transport_wake(session->transport);
}

// Waits until every report that was claimed under the serial is settled. The rest was claimed
// before.
static void call_await_report(const struct report *report, uint64_t serial, uint32_t ready_count)
{
    const uint32_t claimed = call_claimed(report, serial, ready_count);
    uint32_t tries = 0;
    while (claimed > 0 && atomic_load_explicit(&report->settled, memory_order_acquire) !=
                              claim_word(serial, claimed))
        thread_moment(&tries);
}

uint32_t claim_rest(struct contribution *contribution, uint64_t serial)
{
    const struct lockstep_module *module = contribution->module;
    uint32_t complete = 0;
    contribution->has_rest = false;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        const uint32_t count = module->parameters[p].ready_count;
        for (uint32_t r = 0; r < module->replicas && call_speaks_for(module, p); r++) {
            struct report *report = call_report_of(contribution, r, p);
            uint32_t before;
            const bool claimed = call_claim(report, serial, count, CLAIM_ENDED, &before);
            report->rest = claimed ? count - before : 0;
            contribution->has_rest |= claimed;
            complete += r == 0 && !claimed;
            call_await_report(report, serial, count);
        }
    }
    return complete;
}

// Settles the reports that the end of the call has claimed, in reversed order of definition: the
// order of a layout before one is learned.
static void call_settle_rest(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = contribution->has_rest ? module->parameter_count : 0; p-- > 0;) {
        for (uint32_t r = 0; r < module->replicas && call_speaks_for(module, p); r++) {
            const uint32_t rest = call_report_of(contribution, r, p)->rest;
            if (rest > 0)
                call_settle(contribution, p, rest);
        }
    }
}

void claim_hand_rest(struct contribution *contribution)
{
    call_settle_rest(contribution);
    call_say_handed(contribution);
}

// Withdraws the bucket of a parameter whose reports are incomplete: the bucket contributes nothing.
// It is not complete before these reports settle, so no other thread uses it yet. If the parameter
// is shared, its owner gets no warning that it was not used.
static void call_withdraw_bucket(struct contribution *contribution, uint32_t parameter)
{
    struct contribution *home = call_home(contribution, parameter);
    const uint32_t number = contribution->module->homes[parameter].parameter;
    home->runs[home->module->bucket_of[number]].withdrawn = true;
    home->withdrawn = true;
    if (home != contribution)
        home->gradients[number].excused = true;
}

void claim_withdraw(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        for (uint32_t r = 0; r < module->replicas && call_speaks_for(module, p); r++) {
            if (call_report_of(contribution, r, p)->rest > 0)
                call_withdraw_bucket(contribution, p);
        }
    }
    call_settle_rest(contribution);
    call_say_handed(contribution);
}

// ---- Reports -----------------------------------------------------------------------------------

static void call_count_ready(struct lockstep_session *session)
{
    const uint64_t now = clock_now_us();
    uint64_t none = 0;
    if (atomic_load_explicit(&session->step.times.first_ready, memory_order_relaxed) == 0)
        atomic_compare_exchange_strong_explicit(&session->step.times.first_ready, &none, now,
                                                memory_order_relaxed, memory_order_relaxed);
    atomic_store_explicit(&session->progress->ready_us, now, memory_order_relaxed);
}

static int call_check_report(const struct lockstep_module *module, const lockstep_call *call,
                             uint32_t replica, uint32_t parameter, const void *stream)
{
    if (call && !call_belongs(module, call))
        return error_set(LOCKSTEP_E_INVALID, "module '%s': this is not its call", module->name);
    if (replica >= module->replicas)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has replicas 0 to %" PRIu32 "; %" PRIu32 " is none of them",
                         module->name, module->replicas - 1, replica);
    if (stream && !module->session->devices.first)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': a stream is given, and this rank has no device: set "
                         "config.device",
                         module->name);
    return call_check_parameter(module, parameter);
}

static _Atomic(void *) *call_memory(struct contribution *contribution, uint32_t replica,
                                    uint32_t parameter)
{
    if (replica == 0)
        return &call_gradient(contribution, parameter)->memory;
    return &replica_gradient(call_home(contribution, parameter), replica,
                             contribution->module->homes[parameter].parameter)
                ->memory;
}

// The arguments of a report.
struct reported {
    uint32_t replica;
    uint32_t parameter;
    void *memory; // The gradient's memory. NULL: the registered memory.
    void *stream; // The stream that produces the gradient. NULL: it is in memory already.
};

// A failure if the report gives no memory and the gradient has none.
static int call_check_memory(struct contribution *contribution, struct gradient *gradient,
                             const struct reported *reported)
{
    const struct lockstep_module *module = contribution->module;
    const uint32_t parameter = reported->parameter;
    _Atomic(void *) *memory = reported->replica == 0
                                  ? &gradient->memory
                                  : call_memory(contribution, reported->replica, parameter);
    if (reported->memory || atomic_load_explicit(memory, memory_order_relaxed) ||
        module->shapes[parameter].elements == 0)
        return 0;
    if (contribution->index > 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': call %" PRIu32 " has gradient memory of its own, and none "
                         "is given for '%s'",
                         module->name, contribution->index + 1, module->parameters[parameter].name);
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': the gradient of '%s' was registered without memory and none is "
                     "given now",
                     module->name, module->parameters[parameter].name);
}

// Checks memory and stream of a report, and reserves a place for the stream in the gradient's
// bucket. Runs before the report changes anything else, so that a failure leaves no trace.
static int call_check_device(struct contribution *contribution, const struct reported *reported)
{
    const struct home *home = &contribution->module->homes[reported->parameter];
    const int status = residency_check_gradient(
        home->module, home->parameter,
        &(struct passed_gradient){reported->replica, reported->memory, reported->stream});
    if (status < 0 || !reported->stream || home->module->shapes[home->parameter].elements == 0)
        return status;
    return device_events_reserve(
        call_home(contribution, reported->parameter),
        &(struct ready_report){reported->replica, home->parameter, reported->stream});
}

static int call_note_stream(struct contribution *contribution, const struct reported *reported)
{
    const struct home *home = &contribution->module->homes[reported->parameter];
    if (!reported->stream || home->module->shapes[home->parameter].elements == 0)
        return 0;
    return device_events_record(
        call_home(contribution, reported->parameter),
        &(struct ready_report){reported->replica, home->parameter, reported->stream});
}

// Notes the memory and the use of a reported gradient. For a shared parameter, in its owner.
static void call_note_report(struct contribution *contribution, struct gradient *gradient,
                             const struct reported *reported)
{
    const struct home *home = &contribution->module->homes[reported->parameter];
    struct report *report = reported->replica == 0
                                ? &gradient->report
                                : call_report_of(call_home(contribution, reported->parameter),
                                                 reported->replica, home->parameter);
    if (reported->memory)
        atomic_store_explicit(call_memory(contribution, reported->replica, reported->parameter),
                              reported->memory, memory_order_relaxed);
    atomic_store_explicit(&report->used, true, memory_order_relaxed);
    atomic_store_explicit(&gradient->used, true, memory_order_relaxed);
    call_count_ready(contribution->module->session);
}

// A report as places.c expects it.
static struct placed call_placed(struct contribution *contribution, const struct reported *reported)
{
    return (struct placed){
        .contribution = call_home(contribution, reported->parameter),
        .parameter = contribution->module->homes[reported->parameter].parameter,
        .replica = reported->replica,
        .by = {contribution->module, reported->parameter},
        .memory = reported->memory,
    };
}

// Claims a report whose memory has to be checked against other places. Both happen under the mutex,
// so a refused report leaves no trace.
static int call_claim_placed(const struct opened *open, const struct reported *reported,
                             struct report *report, uint32_t *before)
{
    struct lockstep_session *session = open->call->module->session;
    const struct placed placed = call_placed(open->call->contribution, reported);
    const uint32_t ready_count = open->call->module->parameters[reported->parameter].ready_count;
    int status;
    mutex_lock(&session->places.mutex);
    status = places_check_locked(session, &placed);
    if (status == 0 && !call_claim(report, open->serial, ready_count, 0, before))
        status = call_ready_error(open, reported->parameter, *before);
    if (status == 0)
        places_take_locked(session, &placed);
    mutex_unlock(&session->places.mutex);
    return status;
}

// Checks the memory again, because the gradient became watched while its report was claimed.
static int call_check_again(const struct opened *open, const struct reported *reported)
{
    struct lockstep_session *session = open->call->module->session;
    const struct placed placed = call_placed(open->call->contribution, reported);
    mutex_lock(&session->places.mutex);
    const int status = places_check_locked(session, &placed);
    mutex_unlock(&session->places.mutex);
    return status;
}

// Notes and settles a claimed report. status: a failure if another thread's report uses the same
// memory; the gradient is not noted then. A report whose stream has failed is settled, too, so that
// no rank waits for it: the failure of the device ends the job anyway.
static int call_finish_report(const struct opened *open, const struct reported *reported,
                              struct gradient *gradient, uint32_t before, int status)
{
    struct contribution *contribution = open->call->contribution;
    const struct lockstep_module *module = contribution->module;
    const uint32_t ready_count = module->parameters[reported->parameter].ready_count;
    struct report *report = call_report_of(contribution, reported->replica, reported->parameter);
    if (status == 0) {
        call_note_report(contribution, gradient, reported);
        status = call_note_stream(contribution, reported);
    }
    if (reported->replica == 0 && before + 1 == ready_count)
        progress_gradient(module->session->progress);
    if (open->last)
        call_settle_gradient(contribution, gradient, reported->parameter, 1);
    call_say_settled(report, open->serial, ready_count);
    return status;
}

// Checks, claims and settles a report in the open call.
static int call_take(const struct opened *open, const struct reported *reported)
{
    struct contribution *contribution = open->call->contribution;
    const struct lockstep_module *module = contribution->module;
    const uint32_t parameter = reported->parameter;
    struct report *report = call_report_of(contribution, reported->replica, parameter);
    struct gradient *gradient = call_gradient(contribution, parameter);
    const atomic_bool *watched = &gradient->report.watched;
    uint32_t before = 0;
    int status = call_check_memory(contribution, gradient, reported);
    if (status == 0 && module->session->devices.first)
        status = call_check_device(contribution, reported);
    if (status < 0)
        return status;
    if (reported->memory || atomic_load_explicit(watched, memory_order_relaxed)) {
        status = call_claim_placed(open, reported, report, &before);
        if (status < 0)
            return status;
    } else {
        if (!call_claim(report, open->serial, module->parameters[parameter].ready_count, 0,
                        &before))
            return call_ready_error(open, parameter, before);
        if (atomic_load(watched))
            status = call_check_again(open, reported);
    }
    return call_finish_report(open, reported, gradient, before, status);
}

int lockstep_replica_ready(lockstep_module *module, lockstep_call *call, uint32_t replica,
                           uint32_t parameter, void *gradient, void *stream)
{
    const struct reported reported = {replica, parameter, gradient, stream};
    struct opened open;
    int status = module_check(module);
    if (status == 0)
        status = call_check_report(module, call, replica, parameter, stream);
    if (status < 0)
        return status;
    open = opened_read(module);
    if (!open.call || (call && call != open.call))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ready outside a call (before "
                         "lockstep_call_begin or after lockstep_call_end)",
                         module->name, module->parameters[parameter].name);
    return call_take(&open, &reported);
}

int lockstep_grad_ready(lockstep_module *module, lockstep_call *call, uint32_t parameter,
                        void *gradient, void *stream)
{
    return lockstep_replica_ready(module, call, 0, parameter, gradient, stream);
}

// Declares the parameter unused for all replicas. Fails at the first replica that has reported it;
// the replicas before that one stay declared.
static int call_declare_unused(const struct lockstep_call *call, uint32_t parameter)
{
    const struct lockstep_module *module = call->module;
    for (uint32_t r = 0; r < module->replicas; r++) {
        struct report *report = call_report_of(call->contribution, r, parameter);
        uint32_t before;
        if (!call_claim(report, call->serial, 1, CLAIM_DECLARED, &before))
            return call_unused_error(module, parameter, before);
        if (r + 1 == module->replicas)
            call_gradient(call->contribution, parameter)->excused = true;
        if (call->last)
            call_settle(call->contribution, parameter, module->parameters[parameter].ready_count);
        call_say_settled(report, call->serial, 1);
    }
    progress_gradient(module->session->progress);
    return 0;
}

int lockstep_call_unused(lockstep_call *call, const uint32_t *parameters, uint32_t count)
{
    int status = call_check_open(call);
    if (status == 0 && !parameters && count > 0)
        status = error_set(LOCKSTEP_E_INVALID, "parameters is NULL and count is %" PRIu32, count);
    for (uint32_t i = 0; status == 0 && i < count; i++)
        status = call_check_parameter(call->module, parameters[i]);
    for (uint32_t i = 0; status == 0 && i < count; i++)
        status = call_declare_unused(call, parameters[i]);
    return status;
}
