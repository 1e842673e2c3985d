// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives: allreduce, broadcast and barrier by name, blocking and asynchronous. Called on
// trainer threads; the driver launches and completes them. They need no order: frames are matched
// by the hash of the name and by how often that name was used.

#include "worker/api/collective.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/device/device.h"
#include "worker/engine/tune.h"
#include "worker/kernels/kernels.h"
#include "worker/session/fork.h"
#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY_PREFIX "lockstep/" // Of the names that are not the trainer's.

// Who calls: the names that each uses are not the other's.
enum caller {
    CALLER_TRAINER,
    CALLER_LIBRARY,
};

// ---- Making work -------------------------------------------------------------------------------

uint64_t collective_signature(const struct collective *collective)
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

static struct name_use *collective_name_locked(struct lockstep_session *session, uint64_t hash)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < SESSION_MAX_NAMES; i++) {
        struct name_use *use = &session->names[(hash + i) % SESSION_MAX_NAMES];
        if (use->hash == 0)
            use->hash = hash;
        if (use->hash == hash)
            return use;
    }
    return NULL;
}

static struct lockstep_work *collective_take_work_locked(struct lockstep_session *session)
{
    struct lockstep_work *work = session->free_work;
    mutex_assert_held(&session->mutex);
    if (work) {
        session->free_work = work->next_free;
        session->works_taken++;
    }
    return work;
}

static bool work_is_repeated(const struct lockstep_work *work)
{
    return work >= work->session->work + LOCKSTEP_MAX_PLAIN;
}

// ---- Borrowed memory ---------------------------------------------------------------------------

// The memory is looked at as long as it is borrowed, not as long as the work is in flight: whether
// it is done already is chance.
static void lent_add_locked(struct lockstep_work *work, const struct lent_range *range)
{
    struct lockstep_session *session = work->session;
    mutex_assert_held(&session->mutex);
    session->lent[session->lent_count] = *range;
    session->lent_to[session->lent_count++] = work;
    work->lent = session->lent_count;
}

static void lent_remove_locked(struct lockstep_work *work)
{
    struct lockstep_session *session = work->session;
    mutex_assert_held(&session->mutex);
    if (work->lent == 0)
        return;
    session->lent_count--;
    session->lent[work->lent - 1] = session->lent[session->lent_count];
    session->lent_to[work->lent - 1] = session->lent_to[session->lent_count];
    session->lent_to[work->lent - 1]->lent = work->lent;
    work->lent = 0;
}

// Two collectives that write the same memory: the result would depend on which is done first.
static int lent_check_locked(const struct lockstep_session *session, const struct plain_form *form,
                             const struct lent_range *range)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < session->lent_count; i++) {
        const struct lent_range *lent = &session->lent[i];
        const struct lockstep_work *other = session->lent_to[i];
        const uintptr_t begin = lent->begin > range->begin ? lent->begin : range->begin;
        const uintptr_t end = lent->end < range->end ? lent->end : range->end;
        if (begin < end)
            return error_set(LOCKSTEP_E_INVALID,
                             "collective '%s' (use %" PRIu32 ") and collective '%s' (use %" PRIu32
                             "), which was not waited for, overlap in memory: they have %zu bytes "
                             "at %p in common. Wait for that one first, or give each memory of "
                             "its own",
                             form->name, form->use->uses + 1, other->name,
                             other->collective.tag.slot + 1, (size_t)(end - begin), (void *)begin);
    }
    return 0;
}

// Work that repeats belongs to its group of buffers.
static void collective_free_locked(struct lockstep_work *work)
{
    struct lockstep_session *session = work->session;
    mutex_assert_held(&session->mutex);
    if (work->state == WORK_FREE)
        return;
    work->state = WORK_FREE;
    lent_remove_locked(work);
    if (work_is_repeated(work))
        return;
    work->next_free = session->free_work;
    session->free_work = work;
    session->works_taken--;
}

// A broadcast would complete on its root, and on all before an odd one, without hearing of ranks
// that began another one. So beside it runs an allreduce of one element under the same signature,
// which nobody completes before all have begun the same broadcast. The library's own broadcasts
// follow a verified manifest and need none.
static void collective_confirm(struct lockstep_work *work)
{
    const struct collective *collective = &work->collective;
    work->confirmed = collective->kind == COLLECTIVE_BROADCAST &&
                      strncmp(work->name, LIBRARY_PREFIX, strlen(LIBRARY_PREFIX)) != 0;
    if (!work->confirmed)
        return;
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
    work->confirmation.algorithm = tune_algorithm(work->session, &work->confirmation);
    work->confirmation.tag.space = hash64(&collective->tag.space, sizeof(collective->tag.space));
}

// True if memory may hold so many elements, and a ring can number its stripes. A stripe has at
// least one chunk, and an element travels as 8 bytes at most.
static bool collective_fits(const struct lockstep_session *session, uint64_t count,
                            enum dtype dtype)
{
    const uint64_t chunk_elements = session->chunk_bytes / LOCKSTEP_CHUNK_LEAST_BYTES;
    return count <= (uint64_t)INT64_MAX / dtype_size(dtype) &&
           (session->config.solo || count / chunk_elements < UINT32_MAX);
}

// Of what the trainer calls.
static int collective_check(const struct lockstep_session *session, const char *name,
                            uint64_t count, const struct collective *like)
{
    if (!name || name[0] == '\0' || strlen(name) >= LOCKSTEP_NAME_BYTES ||
        !utf8_valid(name, strlen(name)))
        return error_set(LOCKSTEP_E_INVALID, "a collective's name has 1 to %d bytes of UTF-8",
                         LOCKSTEP_NAME_BYTES - 1);
    if (strncmp(name, LIBRARY_PREFIX, strlen(LIBRARY_PREFIX)) == 0)
        return error_set(
            LOCKSTEP_E_INVALID,
            "collective '%s': names that begin with " LIBRARY_PREFIX " are the library's", name);
    if (like->root >= session->world_size)
        return error_set(LOCKSTEP_E_INVALID,
                         "collective '%s': there is no rank %" PRIu32 " in a "
                         "world of %" PRIu32,
                         name, like->root, session->world_size);
    if (dtype_size(like->dtype) == 0 || (unsigned)like->op > REDUCE_OR)
        return error_set(LOCKSTEP_E_INVALID, "collective '%s': dtype %d or op %d is unknown", name,
                         (int)like->dtype, (int)like->op);
    if (like->op == REDUCE_MEAN && !dtype_is_float(like->dtype))
        return error_set(LOCKSTEP_E_INVALID,
                         "collective '%s': a mean of %s does not exist; use "
                         "LOCKSTEP_SUM",
                         name, dtype_name(like->dtype));
    if (like->op == REDUCE_OR && dtype_is_float(like->dtype))
        return error_set(LOCKSTEP_E_INVALID, "collective '%s': a bitwise OR of %s does not exist",
                         name, dtype_name(like->dtype));
    if (!kernel_supported(like->dtype, like->op))
        return error_set(LOCKSTEP_E_UNSUPPORTED, "collective '%s': %s is not supported yet", name,
                         dtype_name(like->dtype));
    if (!collective_fits(session, count, like->dtype))
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

// False: there are too many names.
static bool form_fill_locked(struct lockstep_session *session, const char *name, uint64_t count,
                             const struct collective *like, struct plain_form *form)
{
    struct collective collective = *like;
    const size_t length = strlen(name);
    const uint64_t hash = hash64(name, length);
    form->name_bytes = 0;
    form->use = collective_name_locked(session, hash == 0 ? 1 : hash);
    if (!form->use)
        return false;
    collective.elements = count;
    collective.algorithm = tune_algorithm(session, &collective);
    form->kind = like->kind;
    form->dtype = like->dtype;
    form->op = like->op;
    form->root = like->root;
    form->elements = count;
    form->algorithm = collective.algorithm;
    form->signature = collective_signature(&collective);
    text_copy(form->name, sizeof(form->name), name);
    form->name_bytes = length + 1;
    return true;
}

void collective_forget_form(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    session->form.name_bytes = 0;
    mutex_unlock(&session->mutex);
}

// Work that is in flight for the session, and is not begun yet.
static int collective_make_locked(struct lockstep_session *session, const struct plain_form *form,
                                  enum caller caller, void *data, const struct collective *like,
                                  struct lockstep_work **made)
{
    const struct lent_range range = {(uintptr_t)data,
                                     (uintptr_t)data + form->elements * dtype_size(like->dtype)};
    const int status =
        caller == CALLER_TRAINER && data ? lent_check_locked(session, form, &range) : 0;
    if (status < 0)
        return status;
    struct lockstep_work *work = collective_take_work_locked(session);
    if (!work)
        return error_set(LOCKSTEP_E_INVALID, "%d collectives are in flight: wait for one first",
                         LOCKSTEP_MAX_PLAIN);
    struct collective *collective = &work->collective;
    if (data)
        lent_add_locked(work, &range);
    else
        data = &work->barrier;
    await_begun_locked(session);
    work->state = session->config.solo ? WORK_DONE : WORK_IN_FLIGHT;
    work->begun_ms = clock_coarse_ms();
    work->extent = (struct extent){.in = data, .out = data, .elements = form->elements};
    memcpy(work->name, form->name, form->name_bytes);
    *collective = *like;
    collective->tag =
        (struct collective_tag){.step = 0, .space = form->use->hash, .slot = form->use->uses++};
    collective->elements = form->elements;
    collective->weight = 1;
    collective->context = work;
    collective->extents = &work->extent;
    collective->extent_count = form->elements == 0 ? 0 : 1;
    collective->algorithm = form->algorithm;
    collective->signature = form->signature;
    collective_confirm(work);
    *made = work;
    return 0;
}

// The same of what is called with these arguments. The trainer's own are checked.
static int collective_take_locked(struct lockstep_session *session, enum caller caller,
                                  const char *name, void *data, uint64_t count,
                                  const struct collective *like, struct lockstep_work **work)
{
    struct plain_form library; // Not kept: the trainer may not use such a name.
    struct plain_form *form = caller == CALLER_TRAINER ? &session->form : &library;
    if (caller == CALLER_LIBRARY || !form_is(form, name, count, like)) {
        const int status =
            caller == CALLER_TRAINER ? collective_check(session, name, count, like) : 0;
        if (status < 0)
            return status;
        if (!form_fill_locked(session, name, count, like, form))
            return error_set(LOCKSTEP_E_INVALID,
                             "collectives have at most %d different names; use a "
                             "name again instead of numbering it",
                             SESSION_MAX_NAMES);
    }
    return collective_make_locked(session, form, caller, data, like, work);
}

static int collective_begin_by(struct lockstep_session *session, enum caller caller,
                               const char *name, void *data, uint64_t count,
                               const struct collective *like, struct lockstep_work **work)
{
    mutex_lock(&session->mutex);
    const int status = collective_take_locked(session, caller, name, data, count, like, work);
    mutex_unlock(&session->mutex);
    if (status == 0 && !session->config.solo)
        session_post(session, (struct command){.kind = COMMAND_PLAIN, .pointer = *work});
    return status;
}

int collective_begin(struct lockstep_session *session, const char *name, void *data, uint64_t count,
                     const struct collective *like, struct lockstep_work **work)
{
    return collective_begin_by(session, CALLER_LIBRARY, name, data, count, like, work);
}

void collective_repeat(struct lockstep_work *work, const struct collective *like)
{
    struct lockstep_session *session = work->session;
    struct collective *collective = &work->collective;
    *collective = *like;
    collective->tag = (struct collective_tag){
        .step = 0, .space = hash64(work->name, strlen(work->name)), .slot = work->uses++};
    collective->weight = 1;
    collective->context = work;
    collective->algorithm = tune_algorithm(session, collective);
    collective->signature = collective_signature(collective);
    mutex_lock(&session->mutex);
    work->state = WORK_IN_FLIGHT;
    mutex_unlock(&session->mutex);
    session_post(session, (struct command){.kind = COMMAND_PLAIN, .pointer = work});
}

void work_form(const struct lockstep_work *work, char *text, size_t bytes)
{
    static const char *const ops[] = {[REDUCE_SUM] = "sum",
                                      [REDUCE_MEAN] = "mean",
                                      [REDUCE_MIN] = "min",
                                      [REDUCE_MAX] = "max",
                                      [REDUCE_OR] = "or"};
    const struct collective *collective = &work->collective;
    const bool broadcast = collective->kind == COLLECTIVE_BROADCAST;
    const int used = snprintf(text, bytes, "lockstep_%s with %" PRIu64 " element%s of %s, ",
                              broadcast ? "broadcast" : "allreduce", collective->elements,
                              collective->elements == 1 ? "" : "s", dtype_name(collective->dtype));
    if (strncmp(work->name, LIBRARY_PREFIX, strlen(LIBRARY_PREFIX)) == 0)
        text[0] = '\0';
    else if (work->extent.in == &work->barrier && collective->elements == 1)
        snprintf(text, bytes, "lockstep_barrier");
    else if (broadcast)
        snprintf(text + used, bytes - (size_t)used, "root %" PRIu32, collective->root);
    else
        snprintf(text + used, bytes - (size_t)used, "%s", ops[collective->op]);
}

// ---- Overdue work ------------------------------------------------------------------------------

// The library's own collectives follow what all ranks have agreed.
static bool work_is_overdue_locked(const struct lockstep_work *work, uint64_t now_ms)
{
    mutex_assert_held(&work->session->mutex);
    return work->state == WORK_IN_FLIGHT && now_ms - work->begun_ms >= LOCKSTEP_OVERDUE_MS &&
           strncmp(work->name, LIBRARY_PREFIX, strlen(LIBRARY_PREFIX)) != 0;
}

// Puts one into the list, which is in the order of age. Of a full list the youngest leaves.
static uint32_t work_insert(const struct lockstep_work **oldest, uint32_t count,
                            const struct lockstep_work *work)
{
    uint32_t at = count;
    while (at > 0 && oldest[at - 1]->begun_ms > work->begun_ms) {
        if (at < LOCKSTEP_OVERDUE_NAMED)
            oldest[at] = oldest[at - 1];
        at--;
    }
    if (at < LOCKSTEP_OVERDUE_NAMED)
        oldest[at] = work;
    return count < LOCKSTEP_OVERDUE_NAMED ? count + 1 : count;
}

static void collective_tell_awaited_locked(const struct lockstep_session *session,
                                           struct up_heartbeat *beat)
{
    const struct lockstep_work *work = session->awaited;
    mutex_assert_held(&session->mutex);
    if (!work || strncmp(work->name, LIBRARY_PREFIX, strlen(LIBRARY_PREFIX)) == 0)
        return;
    text_copy(beat->collective, sizeof(beat->collective), work->name);
    beat->collective_use = work->collective.tag.slot;
}

void collective_tell(struct lockstep_session *session, struct up_heartbeat *beat)
{
    const struct lockstep_work *oldest[LOCKSTEP_OVERDUE_NAMED];
    const uint64_t now_ms = clock_coarse_ms();
    uint32_t count = 0;
    mutex_lock(&session->mutex);
    collective_tell_awaited_locked(session, beat);
    for (uint32_t i = 0; session->works_taken > 0 && i < LOCKSTEP_MAX_PLAIN; i++)
        if (work_is_overdue_locked(&session->work[i], now_ms))
            count = work_insert(oldest, count, &session->work[i]);
    for (uint32_t i = 0; i < count; i++)
        beat->overdue[i] = (struct overdue){.space = oldest[i]->collective.tag.space,
                                            .use = oldest[i]->collective.tag.slot,
                                            .signature = oldest[i]->collective.signature};
    mutex_unlock(&session->mutex);
    beat->overdue_count = count;
}

// ---- What the driver does with it --------------------------------------------------------------

void work_launch(struct lockstep_work *work)
{
    struct transport *transport = work->session->transport;
    work->missing = work->confirmed ? 2 : 1;
    work->session->plain_in_flight++;
    work->session->buffers_in_flight += work_is_repeated(work);
    transport_launch(transport, &work->collective);
    if (work->confirmed)
        transport_launch(transport, &work->confirmation);
}

bool work_exchange(struct lockstep_work *work)
{
    return !work->confirmed && transport_exchange(work->session->transport, &work->collective);
}

void work_exchanged_locked(struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    work->state = WORK_DONE;
}

void work_done(struct lockstep_work *work)
{
    struct lockstep_session *session = work->session;
    if (--work->missing > 0)
        return;
    session->plain_in_flight--;
    session->buffers_in_flight -= work_is_repeated(work);
    mutex_lock(&session->mutex);
    work->state = WORK_DONE;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

// Gives the command, if there is one, and waits. told: the trainer does nothing until the work is
// done or the session has failed, so other ranks may be told of the wait. The driver lets go of all
// memory before a session fails, so failed work is free at once.
static int collective_await_locked(struct lockstep_work *work, const struct command *command,
                                   uint32_t timeout_ms, bool told)
{
    struct lockstep_session *session = work->session;
    const struct standing standing = await_work(work);
    const struct wish wish = {.work = work,
                              .deadline_ms = timeout_ms == LOCKSTEP_WAIT_FOREVER
                                                 ? COND_NO_DEADLINE
                                                 : clock_now_ms() + timeout_ms,
                              .standing = told ? &standing : NULL};
    char late[SESSION_LATE_BYTES];
    int status = 0;
    mutex_assert_held(&session->mutex);
    session->awaited = work;
    drive_until_locked(session, command, &wish);
    session->awaited = NULL;
    if (work->state != WORK_DONE && session->failure != 0)
        status = session_failure_locked(session);
    else if (work->state == WORK_FREE)
        status = error_set(LOCKSTEP_E_INVALID,
                           "collective '%s' was waited for already: its work "
                           "is free",
                           work->name);
    else if (work->state != WORK_DONE) {
        session_late_text(session, late);
        status = error_set(LOCKSTEP_E_TIMEOUT,
                           "collective '%s' did not complete within %" PRIu32 " ms%s", work->name,
                           timeout_ms, late);
    }
    if (status != LOCKSTEP_E_TIMEOUT)
        collective_free_locked(work);
    return status;
}

int collective_wait(struct lockstep_work *work, uint32_t timeout_ms)
{
    struct lockstep_session *session = work->session;
    mutex_lock(&session->mutex);
    // After a timeout the trainer may do what others wait for.
    const bool told = timeout_ms == LOCKSTEP_WAIT_FOREVER;
    const int status = collective_await_locked(work, NULL, timeout_ms, told);
    mutex_unlock(&session->mutex);
    return status;
}

static int collective_call_by(struct lockstep_session *session, enum caller caller,
                              const char *name, void *data, uint64_t count,
                              const struct collective *like, uint32_t timeout_ms,
                              struct lockstep_work **work)
{
    struct command command = {.kind = COMMAND_PLAIN};
    mutex_lock(&session->mutex);
    int status = collective_take_locked(session, caller, name, data, count, like, work);
    if (status == 0) {
        command.pointer = *work;
        status = collective_await_locked(*work, session->config.solo ? NULL : &command, timeout_ms,
                                         true);
    }
    mutex_unlock(&session->mutex);
    return status;
}

int collective_call(struct lockstep_session *session, const char *name, void *data, uint64_t count,
                    const struct collective *like, uint32_t timeout_ms, struct lockstep_work **work)
{
    return collective_call_by(session, CALLER_LIBRARY, name, data, count, like, timeout_ms, work);
}

// ---- The public layer --------------------------------------------------------------------------

// Memory of this rank's device travels from there, whatever others have.
static int collective_find(const struct lockstep_session *session, const char *name,
                           const void *data, uint64_t count, struct collective *like)
{
    if (!session->device || !data)
        return 0;
    const int status = collective_check(session, name, count, like); // The text below names it.
    if (status < 0)
        return status;
    const enum memory_place place = device_place(session->device, data);
    like->device = place == MEMORY_ON_DEVICE ? session->device : NULL;
    if (place != MEMORY_ELSEWHERE)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "collective '%s': its data is in the memory of another device than cuda:%d, "
                     "which is this session's (config.device)",
                     name, device_facts(session->device)->ordinal);
}

static int collective_async(struct lockstep_session *session, const char *name, void *data,
                            uint64_t count, struct collective *like, struct lockstep_work **work)
{
    int status;
    if (!work)
        return error_set(LOCKSTEP_E_INVALID, "work is NULL: nowhere to put the handle");
    *work = NULL;
    status = session_check(session);
    if (status == 0)
        status = collective_find(session, name, data, count, like);
    if (status == 0)
        status = collective_begin_by(session, CALLER_TRAINER, name, data, count, like, work);
    if (status < 0)
        *work = NULL;
    return status;
}

// Its time is over. The other ranks may have the result: this one cannot go on as if nothing was.
// The text says what it was before.
static void collective_give_up(struct lockstep_session *session, struct lockstep_work *work)
{
    char text[LOCKSTEP_TEXT_BYTES];
    text_copy(text, sizeof(text), lockstep_error_text());
    session_abort(session, LOCKSTEP_E_TIMEOUT, text);
    collective_wait(work, LOCKSTEP_WAIT_FOREVER);
    (void)error_set(LOCKSTEP_E_TIMEOUT, "%s", text);
}

static enum api_function collective_function(const struct collective *like, const void *data)
{
    if (like->kind == COLLECTIVE_BROADCAST)
        return API_BROADCAST;
    return !data ? API_BARRIER : API_ALLREDUCE;
}

static int collective_blocking(struct lockstep_session *session, const char *name, void *data,
                               uint64_t count, struct collective *like, uint32_t timeout_ms)
{
    struct lockstep_work *work;
    int status = session_check(session);
    if (status == 0)
        status = collective_find(session, name, data, count, like);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&session->tracker, API_COLLECTIVE, PROGRESS_NO_MODULE, 0);
    await_enter(collective_function(like, data), LOCKSTEP_MAX_MODULES);
    status =
        collective_call_by(session, CALLER_TRAINER, name, data, count, like, timeout_ms, &work);
    if (status == LOCKSTEP_E_TIMEOUT)
        collective_give_up(session, work);
    return progress_leave(&visit, status);
}

static struct collective collective_allreduce(lockstep_dtype dtype, lockstep_op op)
{
    return (struct collective){
        .kind = COLLECTIVE_ALLREDUCE, .dtype = (enum dtype)dtype, .op = (enum reduce_op)op};
}

static struct collective collective_broadcast(lockstep_dtype dtype, uint32_t root)
{
    return (struct collective){
        .kind = COLLECTIVE_BROADCAST, .dtype = (enum dtype)dtype, .root = root};
}

int lockstep_allreduce(lockstep_session *session, const char *name, void *data, uint64_t count,
                       lockstep_dtype dtype, lockstep_op op, uint32_t timeout_ms)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_allreduce(dtype, op);
    return collective_blocking(session, name, data, count, &like, timeout_ms);
}

int lockstep_allreduce_async(lockstep_session *session, const char *name, void *data,
                             uint64_t count, lockstep_dtype dtype, lockstep_op op,
                             lockstep_work **work)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_allreduce(dtype, op);
    return collective_async(session, name, data, count, &like, work);
}

int lockstep_broadcast(lockstep_session *session, const char *name, void *data, uint64_t count,
                       lockstep_dtype dtype, uint32_t root, uint32_t timeout_ms)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_broadcast(dtype, root);
    return collective_blocking(session, name, data, count, &like, timeout_ms);
}

int lockstep_broadcast_async(lockstep_session *session, const char *name, void *data,
                             uint64_t count, lockstep_dtype dtype, uint32_t root,
                             lockstep_work **work)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_broadcast(dtype, root);
    return collective_async(session, name, data, count, &like, work);
}

// A barrier is an allreduce of one element that nobody reads; without data the work brings its own.
int lockstep_barrier_async(lockstep_session *session, const char *name, lockstep_work **work)
{
    struct collective like = collective_allreduce(LOCKSTEP_INT32, LOCKSTEP_SUM);
    return collective_async(session, name, NULL, 1, &like, work);
}

int lockstep_barrier(lockstep_session *session, const char *name, uint32_t timeout_ms)
{
    struct collective like = collective_allreduce(LOCKSTEP_INT32, LOCKSTEP_SUM);
    return collective_blocking(session, name, NULL, 1, &like, timeout_ms);
}

int lockstep_work_wait(lockstep_work *work, uint32_t timeout_ms)
{
    if (fork_in_child())
        return error_set(LOCKSTEP_E_FORKED,
                         "this process was forked from the one that opened the session");
    if (!handle_is(HANDLE_WORK, work))
        return error_set(LOCKSTEP_E_INVALID, !work ? "the work is NULL"
                                                   : "this is not work, or its session was "
                                                     "closed");
    int status = session_check_sink();
    if (status == 0)
        status = session_check_interrupted(work->session);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&work->session->tracker, API_WORK_WAIT, PROGRESS_NO_MODULE, 0);
    await_enter(API_WORK_WAIT, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, collective_wait(work, timeout_ms));
}
