// SPDX-License-Identifier: Apache-2.0
//
// Calls: the backward passes of a module in a step, and the gradients that they report. Runs on
// trainer threads; it counts what is missing in each bucket, and hands complete buckets to the
// engine. What then happens is decided in order.c.
//
// Every call has a serial number. In each call a gradient is complete after so many reports as its
// ready_count says, of each replica. What is still to come of them is spoken for by exactly one
// party: a thread that reports one more, lockstep_call_unused, or the end of the call. Who it is is
// decided by one compare-and-swap on the report's claim, which is made of the serial of the call
// and of the reports so far in it.
//
// Gradients of all calls of a step add up in the trainer's memory, so a parameter travels once,
// with the last call: there every claim takes so many reports from what the gradient awaits, and
// whoever takes the last ones *hands it over* to its bucket, exactly once. In the calls before it
// is only noted that it is used. When the last call never comes, step_end takes what is left, under
// a serial of its own. In a step that accumulates no call is the last one. Where calls have
// gradients of their own, each is a last one, with a contribution of its own.
//
// A shared parameter has its claims in every module that has it, and one gradient, with its owner:
// that one awaits the reports of all.

#include "base/clock.h"
#include "base/text.h"
#include "worker/error.h"
#include "worker/handle.h"
#include "worker/ready.h"
#include "worker/residency.h"
#include "worker/session.h"

#include <inttypes.h>

// ---- Checks ------------------------------------------------------------------------------------

int module_check(struct lockstep_module *module)
{
    if (!handle_is(HANDLE_MODULE, module))
        return error_set(LOCKSTEP_E_INVALID, module == NULL
                                                 ? "the module is NULL"
                                                 : "this is not a module, or it was closed");
    return session_check(module->session);
}

int call_check(struct lockstep_call *call)
{
    if (!handle_is(HANDLE_CALL, call))
        return error_set(LOCKSTEP_E_INVALID, call == NULL ? "the call is NULL"
                                                          : "this is not a call, or its module "
                                                            "was closed");
    return session_check(call->module->session);
}

// A live call that is the open one of its module.
static int call_check_open(struct lockstep_call *call)
{
    const int status = call_check(call);
    if (status < 0)
        return status;
    if (atomic_load_explicit(&call->module->open, memory_order_acquire) != call)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': %s", call->module->name,
                         call->ended ? "its call has ended already" : "no call is open");
    return 0;
}

// Parameters of a module that have a gradient; a shared one has it with its owner.
static bool call_has_gradient(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    return home->module->shapes[home->parameter].trainable;
}

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

// The pointer is compared only: it may be anything.
static bool call_belongs(const struct lockstep_module *module, const struct lockstep_call *call)
{
    for (uint32_t i = 0; i < module->calls_per_step; i++) {
        if (call == &module->calls[i])
            return true;
    }
    return false;
}

// ---- Claiming ----------------------------------------------------------------------------------

// A claim is the serial of a call, and in its low bits how many reports there were in it, or why
// none can come any more.
#define CLAIM_BITS 16
#define CLAIM_ENDED 0xfffeu
#define CLAIM_DECLARED 0xffffu
static_assert(LOCKSTEP_MAX_READY_COUNT < CLAIM_ENDED, "a count of reports is none of the marks");

static struct report *call_report_of(struct contribution *contribution, uint32_t replica,
                                     uint32_t parameter)
{
    if (replica == 0)
        return &contribution->gradients[parameter].report;
    return &replica_gradient(contribution, replica, parameter)->report;
}

// Speaks for the gradient in this call when there were fewer than `limit` reports in it; *before is
// how many there were, or the mark. becomes: a mark, or 0 for one more report.
static bool call_claim(struct report *report, uint64_t serial, uint32_t limit, uint32_t becomes,
                       uint32_t *before)
{
    uint64_t seen = atomic_load_explicit(&report->claim, memory_order_relaxed);
    uint32_t next;
    do {
        *before = seen >> CLAIM_BITS == serial ? (uint32_t)(seen & CLAIM_DECLARED) : 0;
        if (*before >= limit)
            return false;
        next = becomes == 0 ? *before + 1 : becomes;
    } while (!atomic_compare_exchange_weak_explicit(&report->claim, &seen,
                                                    serial << CLAIM_BITS | next,
                                                    memory_order_acq_rel, memory_order_relaxed));
    return true;
}

// Speaks for all reports that are still to come in this call, and returns how many.
static uint32_t call_claim_rest(struct contribution *contribution, uint32_t replica,
                                uint32_t parameter, uint64_t serial)
{
    const uint32_t count = contribution->module->parameters[parameter].ready_count;
    struct report *report = call_report_of(contribution, replica, parameter);
    uint32_t before;
    return call_claim(report, serial, count, CLAIM_ENDED, &before) ? count - before : 0;
}

static int call_ready_error(const struct lockstep_module *module, uint32_t parameter,
                            uint32_t before)
{
    const struct tensor *tensor = &module->parameters[parameter];
    const uint64_t step = module->session->step;
    if (before < CLAIM_ENDED && tensor->ready_count > 1)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ready %" PRIu32 " times in call %" PRIu32
                         " of step %" PRIu64 "; its ready_count is %" PRIu32,
                         module->name, tensor->name, before + 1, module->calls_made, step,
                         tensor->ready_count);
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': parameter '%s' is ready %s in call %" PRIu32 " of step %" PRIu64,
                     module->name, tensor->name,
                     before == CLAIM_DECLARED ? "after it was declared unused"
                     : before == CLAIM_ENDED  ? "after its end"
                                              : "twice",
                     module->calls_made, step);
}

static int call_unused_error(const struct lockstep_module *module, uint32_t parameter,
                             uint32_t before)
{
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': parameter '%s' is declared unused %s in call %" PRIu32
                     " of step %" PRIu64,
                     module->name, module->parameters[parameter].name,
                     before == CLAIM_DECLARED ? "twice" : "after it was ready", module->calls_made,
                     module->session->step);
}

// ---- Handing over ------------------------------------------------------------------------------

// Where the gradient of a call's parameter travels: there, or with the owner.
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

// One gradient less is missing in its bucket; the last one hands the bucket to the engine.
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
    contribution->ready_order[place] = parameter;
    if (atomic_fetch_sub_explicit(&run->missing, 1, memory_order_acq_rel) != 1)
        return;
    trace_event(&module->session->trace, TRACE_BUCKET_READY, module->session->step, module->index,
                contribution->index, bucket, 0);
    if (!module->session->config.solo)
        session_post(module->session, (struct command){.kind = COMMAND_READY,
                                                       .module = module->index,
                                                       .call = contribution->index,
                                                       .bucket = bucket});
}

// So many reports less are awaited; the last ones hand the gradient over.
static void call_settle(struct contribution *contribution, uint32_t parameter, uint32_t reports)
{
    struct gradient *gradient = call_gradient(contribution, parameter);
    if (atomic_fetch_sub_explicit(&gradient->awaited, reports, memory_order_acq_rel) == reports)
        call_hand(call_home(contribution, parameter),
                  contribution->module->homes[parameter].parameter);
}

// Whether the module contributes to the open step: it was called, or a module that shares a
// parameter of it was.
static bool call_takes_part(const struct lockstep_module *module)
{
    const uint64_t step = module->session->step;
    return module->called_step == step || module->touched_step == step;
}

// Whether the end of a call or of the step speaks for the parameter. A module that takes no part
// still says that nothing comes of what it shares.
static bool call_speaks_for(const struct lockstep_module *module, uint32_t parameter)
{
    return call_has_gradient(module, parameter) &&
           (module->homes[parameter].module != module || call_takes_part(module));
}

// A thread that waits for a call has said behind what results may be written of those that were
// handed over before. Of this one nobody else says it until the step ends, and held results keep
// others out of the window: so either that thread has seen it, or it is seen here that one waits.
static void call_say_handed(struct contribution *contribution)
{
    struct lockstep_session *session = contribution->module->session;
    atomic_store(&contribution->handed, true);
    if (atomic_load(&session->waiting) == 0 || session->config.solo)
        return;
    ready_say_wait(session);
    transport_wake(session->transport);
}

// All that nobody has spoken for under this serial. In definition order reversed, like the layout
// before anything was learned.
static void call_hand_rest(struct contribution *contribution, uint64_t serial)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = module->parameter_count; p-- > 0;) {
        for (uint32_t r = 0; r < module->replicas && call_speaks_for(module, p); r++) {
            const uint32_t rest = call_claim_rest(contribution, r, p, serial);
            if (rest > 0)
                call_settle(contribution, p, rest);
        }
    }
    call_say_handed(contribution);
}

// The bucket of a parameter of which something is missing contributes nothing. It is not complete
// until that is settled, so it still belongs to this thread. What was given up is no reproach to
// the owner of a shared parameter.
static void call_withdraw_bucket(struct contribution *contribution, uint32_t parameter)
{
    struct contribution *home = call_home(contribution, parameter);
    const uint32_t number = contribution->module->homes[parameter].parameter;
    home->runs[home->module->bucket_of[number]].withdrawn = true;
    home->withdrawn = true;
    if (home != contribution)
        home->gradients[number].excused = true;
}

// Claims what is left, and withdraws the buckets that it belongs to.
static void call_withhold(struct contribution *contribution, uint64_t serial)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        for (uint32_t r = 0; r < module->replicas && call_speaks_for(module, p); r++) {
            const uint32_t rest = call_claim_rest(contribution, r, p, serial);
            call_report_of(contribution, r, p)->withheld = rest;
            if (rest > 0)
                call_withdraw_bucket(contribution, p);
        }
    }
}

// The end of a call that was given up: every bucket that is not complete contributes nothing.
static void call_withdraw(struct contribution *contribution, uint64_t serial)
{
    const struct lockstep_module *module = contribution->module;
    call_withhold(contribution, serial);
    for (uint32_t p = module->parameter_count; p-- > 0;) {
        for (uint32_t r = 0; r < module->replicas && call_speaks_for(module, p); r++) {
            const uint32_t rest = call_report_of(contribution, r, p)->withheld;
            if (rest > 0)
                call_settle(contribution, p, rest);
        }
    }
    call_say_handed(contribution);
}

// A module that was called has its owners take part in the step. Whether it has reported anything
// of theirs is not asked: which modules a phase runs must not depend on what they use.
static void call_touch_owners(const struct lockstep_module *module)
{
    const uint64_t step = module->session->step;
    if (module->shared_count == 0 || module->called_step != step)
        return;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (module->homes[p].module != module)
            module->homes[p].module->touched_step = step;
    }
}

// Separate calls have handed over all that they had when they ended.
static void call_finish_module(struct lockstep_module *module)
{
    struct contribution *contribution = &module->contributions[0];
    if (module->separate_calls || atomic_load(&contribution->handed) ||
        (module->shared_count == 0 && !call_takes_part(module)))
        return;
    if (module->aborted_step == module->session->step)
        call_withdraw(contribution, ++module->serial);
    else
        call_hand_rest(contribution, ++module->serial);
}

// Kept for each gradient, because buckets may be other ones when the step has settled.
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

// Whether nothing more is to be reported of the parameter's first replica in this call.
static bool call_is_complete(const struct lockstep_call *call, uint32_t parameter)
{
    const uint64_t claim = atomic_load_explicit(
        &call->contribution->gradients[parameter].report.claim, memory_order_relaxed);
    return claim >> CLAIM_BITS == call->serial &&
           (claim & CLAIM_DECLARED) >= call->module->parameters[parameter].ready_count;
}

void call_missing(struct lockstep_module *module, struct answer_place *place)
{
    const struct lockstep_call *call = atomic_load_explicit(&module->open, memory_order_acquire);
    for (uint32_t p = 0; call != NULL && p < module->parameter_count; p++) {
        if (!call_has_gradient(module, p) || call_is_complete(call, p))
            continue;
        if (place->missing_count < LOCKSTEP_MISSING_NAMED)
            text_copy(place->missing[place->missing_count++], sizeof(place->missing[0]),
                      module->parameters[p].name);
        place->missing_total++;
    }
}

// ---- The public functions ----------------------------------------------------------------------

static int call_check_begin(struct lockstep_module *module)
{
    const struct lockstep_session *session = module->session;
    if (!session->step_open)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': lockstep_call_begin outside a step",
                         module->name);
    if (session->ending)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call in step %" PRIu64 ", which is in its end: wait for "
                         "it with lockstep_step_end",
                         module->name, session->step);
    if (session->exhausted)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call in step %" PRIu64 ", for which this rank said that "
                         "it is exhausted",
                         module->name, session->step);
    if (atomic_load(&module->open) != NULL)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its call is open: call lockstep_call_end first",
                         module->name);
    if (module->aborted_step == session->step)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call after lockstep_call_abort in step %" PRIu64
                         ": end the step",
                         module->name, session->step);
    if (module->separate_calls && session->accumulating)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its calls are separate, they do not add up over the steps "
                         "of a window: call it in the last one only",
                         module->name);
    if (module->calls_made == module->calls_per_step)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': one more call in step %" PRIu64
                         " than its calls_per_step, which is %" PRIu32,
                         module->name, session->step, module->calls_per_step);
    return 0;
}

// Only who waits while calls are open has the order core know of these: a call that does not travel
// yet is none to it.
static void call_tell(const struct lockstep_call *call, enum command_kind kind)
{
    struct lockstep_session *session = call->module->session;
    if (session->config.wait_while_open && !session->config.solo && call->last)
        session_post(session, (struct command){.kind = kind,
                                               .module = call->module->index,
                                               .call = call->contribution->index});
}

static struct lockstep_call *call_open(struct lockstep_module *module)
{
    struct lockstep_call *begun;
    module->called_step = module->session->step;
    begun = &module->calls[module->calls_made++];
    begun->serial = ++module->serial;
    begun->step = module->session->step;
    begun->given_up = false;
    begun->last = module->separate_calls ||
                  (module->calls_made == module->calls_per_step && !module->session->accumulating);
    progress_call_begun(begun);
    atomic_store_explicit(&module->open, begun, memory_order_release);
    call_tell(begun, COMMAND_CALL_BEGIN);
    return begun;
}

int lockstep_call_begin(lockstep_module *module, lockstep_call **call)
{
    int status = module_check(module);
    if (status < 0)
        return status;
    if (call == NULL)
        return error_set(LOCKSTEP_E_INVALID, "call is NULL: nowhere to put the handle");
    *call = NULL;
    status = call_check_begin(module);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(module->session, API_CALL_BEGIN, module->index, module->calls_made);
    *call = call_open(module);
    return progress_leave(&visit, 0);
}

static void call_count_ready(struct lockstep_session *session)
{
    const uint64_t now = clock_now_us();
    uint64_t none = 0;
    if (atomic_load_explicit(&session->times.first_ready, memory_order_relaxed) == 0)
        atomic_compare_exchange_strong_explicit(&session->times.first_ready, &none, now,
                                                memory_order_relaxed, memory_order_relaxed);
    atomic_store_explicit(&session->progress->ready_us, now, memory_order_relaxed);
}

static int call_check_report(const struct lockstep_module *module, const lockstep_call *call,
                             uint32_t replica, uint32_t parameter, const void *stream)
{
    if (call != NULL && !call_belongs(module, call))
        return error_set(LOCKSTEP_E_INVALID, "module '%s': this is not its call", module->name);
    if (replica >= module->replicas)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has replicas 0 to %" PRIu32 "; %" PRIu32 " is none of them",
                         module->name, module->replicas - 1, replica);
    if (stream != NULL && module->session->device == NULL)
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
    return &replica_gradient(contribution, replica, parameter)->memory;
}

// A gradient, as it was reported.
struct reported {
    uint32_t replica;
    uint32_t parameter;
    void *memory; // NULL: where it was.
    void *stream; // That produces it. NULL: it is there.
};

// A report without memory means the one that was registered.
static int call_check_memory(struct contribution *contribution, const struct reported *reported)
{
    const struct lockstep_module *module = contribution->module;
    const uint32_t parameter = reported->parameter;
    _Atomic(void *) *memory = call_memory(contribution, reported->replica, parameter);
    if (reported->memory != NULL || atomic_load_explicit(memory, memory_order_relaxed) != NULL ||
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

// A stream has a place in the bucket in which the gradient travels, before anything is changed.
static int call_check_device(struct contribution *contribution, const struct reported *reported)
{
    const struct home *home = &contribution->module->homes[reported->parameter];
    const int status = residency_check_gradient(
        home->module, home->parameter,
        &(struct passed_gradient){reported->replica, reported->memory, reported->stream});
    if (status < 0 || reported->stream == NULL ||
        home->module->shapes[home->parameter].elements == 0)
        return status;
    return ready_reserve(
        call_home(contribution, reported->parameter),
        &(struct ready_report){reported->replica, home->parameter, reported->stream});
}

static int call_note_stream(struct contribution *contribution, const struct reported *reported)
{
    const struct home *home = &contribution->module->homes[reported->parameter];
    if (reported->stream == NULL || home->module->shapes[home->parameter].elements == 0)
        return 0;
    return ready_record(
        call_home(contribution, reported->parameter),
        &(struct ready_report){reported->replica, home->parameter, reported->stream});
}

static void call_note_report(struct contribution *contribution, const struct reported *reported)
{
    struct report *report = call_report_of(contribution, reported->replica, reported->parameter);
    struct gradient *gradient = call_gradient(contribution, reported->parameter);
    if (reported->memory != NULL)
        atomic_store_explicit(call_memory(contribution, reported->replica, reported->parameter),
                              reported->memory, memory_order_relaxed);
    atomic_store_explicit(&report->used, true, memory_order_relaxed);
    atomic_store_explicit(&gradient->used, true, memory_order_relaxed);
    call_count_ready(contribution->module->session);
}

// A report in the open call. One whose stream has failed is taken all the same, so that nobody
// waits for it: nothing of this rank's device arrives anywhere any more.
static int call_take(const struct lockstep_call *call, const struct reported *reported)
{
    const struct lockstep_module *module = call->module;
    const uint32_t parameter = reported->parameter;
    struct report *report = call_report_of(call->contribution, reported->replica, parameter);
    uint32_t before;
    int status = call_check_memory(call->contribution, reported);
    if (status == 0 && module->session->device != NULL)
        status = call_check_device(call->contribution, reported);
    if (status < 0)
        return status;
    if (!call_claim(report, call->serial, module->parameters[parameter].ready_count, 0, &before))
        return call_ready_error(module, parameter, before);
    call_note_report(call->contribution, reported);
    status = call_note_stream(call->contribution, reported);
    if (reported->replica == 0 && before + 1 == module->parameters[parameter].ready_count)
        progress_gradient(module->session->progress);
    if (call->last)
        call_settle(call->contribution, parameter, 1);
    return status;
}

int lockstep_replica_ready(lockstep_module *module, lockstep_call *call, uint32_t replica,
                           uint32_t parameter, void *gradient, void *stream)
{
    const struct reported reported = {replica, parameter, gradient, stream};
    const struct lockstep_call *open;
    int status = module_check(module);
    if (status == 0)
        status = call_check_report(module, call, replica, parameter, stream);
    if (status < 0)
        return status;
    open = atomic_load_explicit(&module->open, memory_order_acquire);
    if (open == NULL || (call != NULL && call != open))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ready outside a call (before "
                         "lockstep_call_begin or after lockstep_call_end)",
                         module->name, module->parameters[parameter].name);
    return call_take(open, &reported);
}

int lockstep_grad_ready(lockstep_module *module, lockstep_call *call, uint32_t parameter,
                        void *gradient, void *stream)
{
    return lockstep_replica_ready(module, call, 0, parameter, gradient, stream);
}

int lockstep_call_current(lockstep_module *module, lockstep_call **call)
{
    int status = module_check(module);
    if (call != NULL)
        *call = NULL;
    if (status == 0 && call == NULL)
        status = error_set(LOCKSTEP_E_INVALID, "call is NULL: nowhere to put the handle");
    if (status < 0)
        return status;
    *call = atomic_load_explicit(&module->open, memory_order_acquire);
    return *call != NULL
               ? 0
               : error_set(LOCKSTEP_E_INVALID, "module '%s': no call is open", module->name);
}

// Of all replicas. Those before one that was ready already stay declared.
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
    }
    progress_gradient(module->session->progress);
    return 0;
}

int lockstep_call_unused(lockstep_call *call, const uint32_t *parameters, uint32_t count)
{
    int status = call_check_open(call);
    if (status == 0 && parameters == NULL && count > 0)
        status = error_set(LOCKSTEP_E_INVALID, "parameters is NULL and count is %" PRIu32, count);
    for (uint32_t i = 0; status == 0 && i < count; i++)
        status = call_check_parameter(call->module, parameters[i]);
    for (uint32_t i = 0; status == 0 && i < count; i++)
        status = call_declare_unused(call, parameters[i]);
    return status;
}

// Nothing can be reported in it any more.
static void call_shut(struct lockstep_call *call)
{
    uint32_t complete = 0;
    atomic_store(&call->module->open, NULL);
    call->ended = true;
    for (uint32_t p = 0; p < call->module->parameter_count; p++)
        complete += call_is_complete(call, p);
    progress_call_over(call, complete);
}

static struct visit call_enter(const struct lockstep_call *call, enum api_function function)
{
    return progress_enter(call->module->session, function, call->module->index, call->number);
}

int lockstep_call_end(lockstep_call *call)
{
    const int status = call_check_open(call);
    if (status < 0)
        return status;
    const struct visit visit = call_enter(call, API_CALL_END);
    call_shut(call);
    if (call->last)
        call_hand_rest(call->contribution, call->serial);
    call_tell(call, COMMAND_CALL_END);
    return progress_leave(&visit, 0);
}

int lockstep_call_abort(lockstep_call *call)
{
    const int status = call_check_open(call);
    if (status < 0)
        return status;
    const struct visit visit = call_enter(call, API_CALL_ABORT);
    call_shut(call);
    call->given_up = true;
    call->module->aborted_step = call->module->session->step;
    if (call->last)
        call_withdraw(call->contribution, call->serial);
    call_tell(call, COMMAND_CALL_END);
    return progress_leave(&visit, 0);
}

// ---- Not built yet -----------------------------------------------------------------------------

int lockstep_call_next(lockstep_call *call, uint32_t timeout_ms, uint32_t *bucket)
{
    const int status = call_check(call);
    (void)timeout_ms;
    (void)bucket;
    return status < 0
               ? status
               : error_set(LOCKSTEP_E_UNSUPPORTED, "lockstep_call_next is not supported yet");
}
