// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives below the public functions: allreduce, broadcast and barrier by name. Trainer
// threads begin them and wait for them; the driver launches and completes them. The order core is
// not involved: frames are matched by the hash of the name and the number of its use.

#include "worker/session/work.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/kernels/kernels.h"
#include "worker/session/anysource.h"
#include "worker/session/group.h"
#include "worker/session/names.h"
#include "worker/session/plain.h"
#include "worker/session/session.h"
#include "worker/session/shape.h"
#include "worker/session/stage.h"
#include "worker/session/world.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// ---- Making work -------------------------------------------------------------------------------

uint64_t work_signature(const struct collective *collective)
{
    const uint64_t identity[] = {(uint64_t)collective->kind,
                                 (uint64_t)collective->dtype,
                                 (uint64_t)collective->op,
                                 collective->root,
                                 collective->elements,
                                 (uint64_t)collective->partial,
                                 (uint64_t)collective->final,
                                 (uint64_t)collective->exponent,
                                 (uint64_t)collective->algorithm,
                                 collective->on_devices};
    return hash64(identity, sizeof(identity));
}

struct lockstep_work *work_take_locked(struct lockstep_session *session)
{
    struct lockstep_work *work = session->works.first_free;
    mutex_assert_held(&session->mutex);
    if (work) {
        session->works.first_free = work->next_free;
        session->works.taken++;
    } else {
        (void)error_set(LOCKSTEP_E_INVALID, "%d collectives are in flight: wait for one first",
                        LOCKSTEP_MAX_PLAIN);
    }
    return work;
}

static bool work_is_repeated(const struct lockstep_work *work)
{
    return work >= work->session->works.all + LOCKSTEP_MAX_PLAIN;
}

// Frees the work. Work of a group of buffers does not go back to the trainer's free list.
static void work_free_locked(struct lockstep_work *work)
{
    struct lockstep_session *session = work->session;
    mutex_assert_held(&session->mutex);
    if (work->state == WORK_FREE)
        return;
    work->state = WORK_FREE;
    work->asynchronous = false;
    lent_remove_locked(work);
    if (work->kind != 0)
        plain_end_locked(work);
    if (work_is_repeated(work))
        return;
    work->next_free = session->works.first_free;
    session->works.first_free = work;
    session->works.taken--;
}

bool work_is_pair(const struct lockstep_work *work)
{
    return work->kind == LOCKSTEP_SEND || work->kind == LOCKSTEP_RECEIVE;
}

void work_address(const struct lockstep_work *work, struct collective *small)
{
    small->algorithm = ALGORITHM_DIRECT;
    small->parts = NULL;
    if (work_is_pair(work))
        small->parts = &work->both;
    else if (work->group && !work->group->whole)
        small->parts = &work->group->everyone;
    else
        small->algorithm = world_algorithm(work->session, small);
}

// If one rank calls a broadcast differently, the root and the ranks before that rank would complete
// it without an error. So an allreduce of one element with the same signature runs beside it: no
// rank completes that before all ranks have begun the same broadcast. In shared memory that holds
// for every collective.
void work_confirm(struct lockstep_work *work)
{
    const struct collective *collective = &work->collective;
    if (collective->algorithm == ALGORITHM_SHARED)
        return;
    work->confirmed = true;
    work->barrier_extent =
        (struct extent){.in = &work->barrier, .out = &work->barrier, .elements = 1};
    work->confirmation = (struct collective){
        .kind = COLLECTIVE_ALLREDUCE,
        .dtype = DTYPE_INT32,
        .op = REDUCE_SUM,
        .tag = collective->tag,
        .signature = collective->signature,
        .extents = &work->barrier_extent,
        .extent_count = 1,
        .elements = 1,
        .weight = 1,
        .context = work,
    };
    work_address(work, &work->confirmation);
    work->confirmation.tag.space = hash64(&collective->tag.space, sizeof(collective->tag.space));
}

// So many elements may fit in memory, and a ring can number their stripes. A stripe has at least
// one chunk, and an element travels as 8 bytes at most.
uint64_t work_most(const struct lockstep_session *session, enum dtype dtype)
{
    const uint64_t chunk_elements = session->world.chunk_bytes / LOCKSTEP_CHUNK_LEAST_BYTES;
    const uint64_t memory = (uint64_t)INT64_MAX / dtype_size(dtype);
    const uint64_t stripes = chunk_elements * UINT32_MAX - 1;
    return session->config.solo || memory < stripes ? memory : stripes;
}

int work_check(const struct lockstep_session *session, const char *name, uint64_t count,
               const struct collective *like)
{
    if (!name || name[0] == '\0' || strlen(name) >= LOCKSTEP_NAME_BYTES ||
        !utf8_valid(name, strlen(name)))
        return error_set(LOCKSTEP_E_INVALID, "a collective's name has 1 to %d bytes of UTF-8",
                         LOCKSTEP_NAME_BYTES - 1);
    if (names_is_of_library(name))
        return error_set(LOCKSTEP_E_INVALID,
                         "collective '%s': names that begin with " WORK_LIBRARY_PREFIX
                         " are the library's",
                         name);
    if (like->root >= session->world.size)
        return error_set(LOCKSTEP_E_INVALID,
                         "collective '%s': there is no rank %" PRIu32 " in a "
                         "world of %" PRIu32,
                         name, like->root, session->world.size);
    if (dtype_size(like->dtype) == 0 || (unsigned)like->op > REDUCE_LAST)
        return error_set(LOCKSTEP_E_INVALID, "collective '%s': dtype %d or op %d is unknown", name,
                         (int)like->dtype, (int)like->op);
    if (like->op == REDUCE_MEAN && !dtype_is_float(like->dtype))
        return error_set(
            LOCKSTEP_E_INVALID,
            "collective '%s': a mean of %s does not exist; take the sum, and divide it", name,
            dtype_name(like->dtype));
    if (kernel_is_bitwise(like->op) && dtype_is_float(like->dtype))
        return error_set(LOCKSTEP_E_INVALID, "collective '%s': a bitwise %s of %s does not exist",
                         name, kernel_op_name(like->op), dtype_name(like->dtype));
    if (!kernel_supported(like->dtype, like->op))
        return error_set(LOCKSTEP_E_UNSUPPORTED, "collective '%s': %s is not supported yet", name,
                         dtype_name(like->dtype));
    if (count > work_most(session, like->dtype))
        return error_set(LOCKSTEP_E_INVALID,
                         "collective '%s': %" PRIu64 " elements do not fit in "
                         "memory",
                         name, count);
    return 0;
}

// ---- Forms -------------------------------------------------------------------------------------

static bool form_is(const struct plain_form *form, const char *name, uint64_t count,
                    const struct collective *like)
{
    return name && form->name_bytes > 0 && form->elements == count && form->kind == like->kind &&
           form->dtype == like->dtype && form->op == like->op && form->root == like->root &&
           strcmp(form->name, name) == 0;
}

// Fills in the form from the arguments, with the algorithm and the signature. False: there are
// SESSION_MAX_NAMES other names already; the error text is set.
static bool form_fill_locked(struct lockstep_session *session, const char *name, uint64_t count,
                             const struct collective *like, struct plain_form *form)
{
    struct collective collective = *like;
    const size_t length = strlen(name);
    const uint64_t hash = hash64(name, length);
    form->name_bytes = 0;
    form->use = names_use_locked(session, name, NULL, hash == 0 ? 1 : hash);
    if (!form->use)
        return false;
    collective.elements = count;
    collective.algorithm = world_algorithm(session, &collective);
    form->kind = like->kind;
    form->dtype = like->dtype;
    form->op = like->op;
    form->root = like->root;
    form->elements = count;
    form->algorithm = collective.algorithm;
    form->signature = work_signature(&collective);
    text_copy(form->name, sizeof(form->name), name);
    form->name_bytes = length + 1;
    return true;
}

void work_forget_form(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    session->works.form.name_bytes = 0;
    mutex_unlock(&session->mutex);
}

// What the form does not say comes from `like`.
static void work_fill(struct lockstep_work *work, const struct plain_form *form,
                      const struct collective *like, const struct collective_tag *tag)
{
    struct collective *collective = &work->collective;
    *collective = *like;
    collective->tag = *tag;
    collective->elements = form->elements;
    collective->weight = 1;
    collective->context = work;
    collective->extents = &work->extent;
    collective->extent_count = form->elements == 0 ? 0 : 1;
    collective->algorithm = form->algorithm;
    collective->signature = form->signature;
    memcpy(work->name, form->name, form->name_bytes);
}

// Takes free work and fills it in from the form. The caller has to post or launch it. In a solo
// session the work is done at once. In this order: a collective that a death has ended fails before
// it begins; the trainer's memory must not be lent already; then nothing can fail any more but for
// lack of free work, so only then the use of the name counts. An attempt counts no use.
static int work_make_locked(struct lockstep_session *session, const struct plain_form *form,
                            enum work_caller caller, void *data, const struct collective *like,
                            struct lockstep_work **made)
{
    const bool attempt = caller == CALLER_LIBRARY && session->works.attempt.active;
    struct collective_tag tag = {.space = form->use->hash, .slot = form->use->uses};
    if (attempt)
        attempt_tag_locked(session, &tag);
    if (session->works.outcomes.count > 0 &&
        agreement_outcome(&session->works.outcomes, tag.space, tag.slot) == OUTCOME_CHANGED) {
        if (!attempt)
            form->use->uses++;
        return attempt ? attempt_failed()
                       : agreement_error_locked(session, "collective", form->name);
    }
    const bool reads = form->kind == COLLECTIVE_BROADCAST && form->root == session->world.rank;
    const struct lent_range range = {(uintptr_t)data,
                                     (uintptr_t)data + form->elements * dtype_size(like->dtype),
                                     .written = !reads};
    const int status = caller == CALLER_TRAINER && data
                           ? lent_check_locked(session, form->name, form->use->uses, &range)
                           : 0;
    if (status < 0)
        return status;
    struct lockstep_work *work = work_take_locked(session);
    if (!work)
        return LOCKSTEP_E_INVALID;
    if (data)
        lent_add_locked(work, &range);
    else
        data = &work->barrier;
    await_begun_locked(session);
    work->state = session->config.solo ? WORK_DONE : WORK_IN_FLIGHT;
    work->begun_ms = clock_coarse_ms();
    work->extent = (struct extent){.in = data, .out = data, .elements = form->elements};
    if (session->config.solo && like->kind == COLLECTIVE_ALLREDUCE && !like->device)
        kernel_reduce_alone(like->dtype, data, form->elements);
    work_fill(work, form, like, &tag);
    if (!attempt)
        form->use->uses++;
    // Broadcasts of the library follow a verified manifest, and need no confirmation, but for the
    // accord after a death.
    work->confirmed = false;
    if (like->kind == COLLECTIVE_BROADCAST && (attempt || !names_is_of_library(work->name)))
        work_confirm(work);
    work->changed = work->lost = work->handed = false;
    work->agreement.attempt = attempt;
    work->agreement.wanted = (caller == CALLER_TRAINER || attempt) && !session->config.solo &&
                             session->config.on_failure == LOCKSTEP_ON_FAILURE_CONTINUE;
    if (work->agreement.wanted)
        agreement_make(work);
    *made = work;
    return 0;
}

// Makes work from the arguments of a call. Checks the arguments of the trainer, not the library's.
static int work_form_locked(struct lockstep_session *session, enum work_caller caller,
                            const char *name, void *data, uint64_t count,
                            const struct collective *like, struct lockstep_work **work)
{
    struct plain_form library; // Not kept: works.form is for the trainer's calls.
    struct plain_form *form = caller == CALLER_TRAINER ? &session->works.form : &library;
    if (caller == CALLER_LIBRARY && attempt_check_locked(session) < 0)
        return LOCKSTEP_E_CHANGED;
    if (caller == CALLER_TRAINER && like->kind == COLLECTIVE_BROADCAST) {
        const int told = agreement_numbers_locked(session);
        if (told < 0)
            return told;
    }
    if (caller != CALLER_TRAINER || !form_is(form, name, count, like)) {
        const int status = caller == CALLER_TRAINER ? work_check(session, name, count, like) : 0;
        if (status < 0)
            return status;
        if (!form_fill_locked(session, name, count, like, form))
            return LOCKSTEP_E_INVALID;
    }
    return work_make_locked(session, form, caller, data, like, work);
}

int work_begin_by(struct lockstep_session *session, enum work_caller caller, const char *name,
                  void *data, uint64_t count, const struct collective *like,
                  struct lockstep_work **work)
{
    mutex_lock(&session->mutex);
    const int status = work_form_locked(session, caller, name, data, count, like, work);
    if (status == 0 && caller == CALLER_TRAINER) {
        (*work)->asynchronous = true;
        if (session->config.solo)
            notify_done_locked(*work);
    }
    mutex_unlock(&session->mutex);
    if (status == 0 && !session->config.solo)
        session_post(session, (struct command){.kind = COMMAND_PLAIN, .work = *work});
    return status;
}

int work_begin(struct lockstep_session *session, const char *name, void *data, uint64_t count,
               const struct collective *like, struct lockstep_work **work)
{
    return work_begin_by(session, CALLER_LIBRARY, name, data, count, like, work);
}

void work_repeat(struct lockstep_work *work, const struct collective *like)
{
    struct lockstep_session *session = work->session;
    struct collective *collective = &work->collective;
    *collective = *like;
    collective->tag = (struct collective_tag){
        .step = 0, .space = hash64(work->name, strlen(work->name)), .slot = work->uses++};
    collective->weight = 1;
    collective->context = work;
    mutex_lock(&session->mutex);
    work->state = WORK_IN_FLIGHT;
    mutex_unlock(&session->mutex);
    session_post(session, (struct command){.kind = COMMAND_PLAIN, .work = work});
}

// ---- Driver ------------------------------------------------------------------------------------

// What depends on the world is chosen when the work is launched: a death may have changed the
// world.
static void work_choose_repeated(struct lockstep_work *work)
{
    struct collective *collective = &work->collective;
    const struct order *order = work->session->engine.order;
    work->step = order->open ? order->step : 0;
    if (collective->kind == COLLECTIVE_BROADCAST)
        collective->root = work->session->world.root;
    collective->algorithm = world_algorithm(work->session, collective);
    collective->signature = work_signature(collective);
}

void work_travel(struct lockstep_work *work)
{
    struct transport *transport = work->session->transport;
    transport_launch(transport, &work->collective);
    if (work->confirmed)
        transport_launch(transport, &work->confirmation);
}

void work_launch(struct lockstep_work *work)
{
    if (work_is_repeated(work))
        work_choose_repeated(work);
    work->missing = work->confirmed ? 2 : 1;
    work->session->engine.plain_in_flight++;
    work->session->engine.buffers_in_flight += work_is_repeated(work);
    if (anysource_is(work))
        anysource_begin(work);
    else
        work_travel(work);
}

bool work_exchange(struct lockstep_work *work)
{
    return !work->confirmed && !work->stage && !work->agreement.wanted &&
           transport_exchange(work->session->transport, &work->collective);
}

void work_exchanged_locked(struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    work->state = WORK_DONE;
}

void work_done(struct lockstep_work *work)
{
    struct lockstep_session *session = work->session;
    if (--work->missing > 0 || agreement_follows(work))
        return;
    session->engine.plain_in_flight--;
    session->engine.buffers_in_flight -= work_is_repeated(work);
    work_end(work, false);
}

void work_end(struct lockstep_work *work, bool changed)
{
    struct lockstep_session *session = work->session;
    if (!changed && work->stage && stage_deliver(session, work->stage) < 0)
        return; // It stays in flight until the session has failed.
    mutex_lock(&session->mutex);
    work->changed = changed;
    work->state = WORK_DONE;
    drive_changed_locked(session);
    if (work->asynchronous)
        notify_done_locked(work);
    mutex_unlock(&session->mutex);
}

// The wait may be reported if the trainer does nothing until the work is done or the session has
// failed. Work that has failed is freed at once: when a session fails, its driver no longer touches
// user memory.
int work_await_locked(struct lockstep_work *work, const struct command *command,
                      uint32_t timeout_ms, bool told)
{
    struct lockstep_session *session = work->session;
    const struct standing standing = await_work(work);
    // Attempts do not count the uses of names. They follow a call of lockstep_start on all ranks.
    const bool reported = told && !work->agreement.attempt;
    const struct wish wish = {.work = work,
                              .deadline_ms = timeout_ms == LOCKSTEP_WAIT_FOREVER
                                                 ? COND_NO_DEADLINE
                                                 : clock_now_ms() + timeout_ms,
                              .standing = reported ? &standing : NULL};
    char late[SESSION_LATE_BYTES];
    int status = 0;
    mutex_assert_held(&session->mutex);
    session->works.awaited = work;
    drive_until_locked(session, command, &wish);
    session->works.awaited = NULL;
    if (work->state != WORK_DONE && session->gate.failure != 0)
        status = session_failure_locked(session);
    else if (work->state == WORK_DONE && work->changed && work->agreement.attempt)
        status = attempt_failed();
    else if (work->state == WORK_DONE && work->changed)
        status = work_is_pair(work)
                     ? agreement_parted_locked(session, shape_name(work->kind), work->name)
                     : agreement_error_locked(session, "collective", work->name);
    else if (work->state == WORK_FREE)
        status = error_set(LOCKSTEP_E_INVALID,
                           "collective '%s' was waited for already: its work "
                           "is free",
                           work->name);
    else if (work->state != WORK_DONE) {
        if (timeout_ms == 0)
            error_of(NULL); // The caller only asks, so this is no failure for the goodbye.
        session_late_text(session, late);
        status = error_set(LOCKSTEP_E_TIMEOUT,
                           "collective '%s' did not complete within %" PRIu32 " ms%s", work->name,
                           timeout_ms, late);
    }
    if (status != LOCKSTEP_E_TIMEOUT) {
        if (work->notify.given)
            notify_end_locked(work);
        work_free_locked(work);
    }
    return status;
}

int work_wait(struct lockstep_work *work, uint32_t timeout_ms)
{
    struct lockstep_session *session = work->session;
    mutex_lock(&session->mutex);
    // After a timeout the trainer goes on, and may do what other ranks wait for.
    const bool told = timeout_ms == LOCKSTEP_WAIT_FOREVER;
    const int status = work_await_locked(work, NULL, timeout_ms, told);
    mutex_unlock(&session->mutex);
    return status;
}

int work_call_by(struct lockstep_session *session, enum work_caller caller, const char *name,
                 void *data, uint64_t count, const struct collective *like, uint32_t timeout_ms,
                 bool told, struct lockstep_work **work)
{
    struct command command = {.kind = COMMAND_PLAIN};
    mutex_lock(&session->mutex);
    int status = work_form_locked(session, caller, name, data, count, like, work);
    if (status == 0) {
        command.work = *work;
        status = work_await_locked(*work, session->config.solo ? NULL : &command, timeout_ms, told);
    }
    mutex_unlock(&session->mutex);
    return status;
}

int work_call(struct lockstep_session *session, const char *name, void *data, uint64_t count,
              const struct collective *like, uint32_t timeout_ms, struct lockstep_work **work)
{
    return work_call_by(session, CALLER_LIBRARY, name, data, count, like, timeout_ms, true, work);
}

void work_hand_out(struct lockstep_work *work)
{
    mutex_lock(&work->session->mutex);
    work->asynchronous = true;
    if (work->state == WORK_DONE)
        notify_done_locked(work);
    mutex_unlock(&work->session->mutex);
}
