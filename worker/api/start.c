// SPDX-License-Identifier: Apache-2.0
//
// The state that ranks share: lockstep_start (verify, then broadcast), the state hash and the state
// check. Runs on the trainer's thread. Everything travels in plain collectives of the library.
//
// lockstep_start sends hashes first. The root's hash of every tensor goes to all ranks (8 bytes
// each). Every rank marks the tensors that differ from the root's, the marks are summed over all
// ranks, and only tensors with a mark travel. If all ranks are equal already, only hashes travel.
//
// Between verification and broadcast, ranks with devices agree on where every tensor is
// (worker/session/module/residency.h). A tensor on this rank's device is copied to the host to be
// hashed. It travels as a plain collective on device memory, which the transport carries out.
//
// A death does not end lockstep_start in a session that goes on: what a death has hit is attempted
// again (worker/session/attempt.h). A rank keeps copies of the tensors that it receives, and puts
// them back before the next attempt. So each attempt begins with the values that every rank had
// when it called lockstep_start, and no rank is left with a mixture when the root is the lost rank.

#include "base/hash64.h"
#include "base/text.h"
#include "worker/api/buffers.h"
#include "worker/api/grouped.h"
#include "worker/api/grouped_state.h"
#include "worker/api/module.h"
#include "worker/api/step_device.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/device_events.h"
#include "worker/session/module/leaves.h"
#include "worker/session/module/manifest.h"
#include "worker/session/module/overlap.h"
#include "worker/session/module/replicas.h"
#include "worker/session/module/residency.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"
#include "worker/watch/watch.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Tensors in flight at a time. The root needs no answer to a broadcast, so it may be a batch and
// the sum after it ahead of the other ranks, which park what they have not begun.
#define STATE_BATCH 128
static_assert(STATE_BATCH < LOCKSTEP_MAX_PLAIN && STATE_BATCH + 1 < LOCKSTEP_EARLY_COLLECTIVES,
              "a batch can be begun, and parked where it is early");
#define STATE_BATCH_KNOWN 32 // The same if a death may end them: their outcomes are kept.
#define STATE_PIECE_BYTES ((size_t)1024 * 1024) // A tensor on the device is hashed in such pieces.

struct state_tensor {
    const struct lockstep_module *module;
    const struct tensor *tensor;
    bool buffer;
};

struct state_list {
    struct state_tensor *tensors; // [count]
    uint64_t *hashes; // [count]: hashes of this rank's tensors.
    int64_t *vector; // [count]: the hashes or marks that travel.
    bool *differs; // [count]: true if this rank's tensor differs from the root's.
    void **kept; // [count]: copies of tensors that this rank receives. NULL: there is none.
    uint32_t count;
};

static void state_free(struct state_list *list)
{
    free(list->tensors);
    free(list->hashes);
    free(list->vector);
    free(list->differs);
    for (uint32_t i = 0; list->kept && i < list->count; i++)
        free(list->kept[i]);
    free(list->kept);
}

static void state_add(struct state_list *list, const struct lockstep_module *module,
                      const struct tensor *tensor, bool buffer)
{
    if (tensor->ignored || (buffer && tensor->flags == LOCKSTEP_BUFFER_IGNORE))
        return;
    list->tensors[list->count++] = (struct state_tensor){module, tensor, buffer};
}

static int state_hash_device(const struct lockstep_session *session, const struct tensor *tensor,
                             uint64_t *result)
{
    const size_t bytes = tensor->elements * dtype_size(tensor->dtype);
    char *piece = malloc(STATE_PIECE_BYTES);
    struct hash64 hash;
    int status = !piece ? error_set(LOCKSTEP_E_SYSTEM, "no memory") : 0;
    hash64_init(&hash, 0);
    for (size_t at = 0; at < bytes && status == 0; at += STATE_PIECE_BYTES) {
        const size_t size = bytes - at < STATE_PIECE_BYTES ? bytes - at : STATE_PIECE_BYTES;
        if (device_copy(session->devices.first, piece, (const char *)tensor->data + at, size) < 0)
            status = device_events_failed(session);
        else
            hash64_update(&hash, piece, size);
    }
    *result = hash64_final(&hash);
    free(piece);
    return status;
}

static int state_hash(const struct lockstep_session *session, const struct tensor *tensor,
                      uint64_t *result)
{
    if (tensor->on_device && tensor->elements > 0)
        return state_hash_device(session, tensor, result);
    *result = hash64(tensor->data, tensor->elements * dtype_size(tensor->dtype));
    return 0;
}

// Lists all parameters and buffers of the modules that all ranks have, in manifest order, with
// their hashes. grouped_state.c has those of groups.
static int state_collect(const struct lockstep_session *session, struct state_list *list)
{
    const size_t room = session->tensor_count + 1;
    int status = 0;
    memset(list, 0, sizeof(*list));
    list->tensors = calloc(room, sizeof(*list->tensors));
    list->hashes = calloc(room, sizeof(*list->hashes));
    list->vector = calloc(room, sizeof(*list->vector));
    list->differs = calloc(room, sizeof(*list->differs));
    list->kept = calloc(room, sizeof(*list->kept));
    if (!list->tensors || !list->hashes || !list->vector || !list->differs || !list->kept) {
        state_free(list);
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    }
    for (uint32_t m = 0; m < session->common_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->parameter_count; i++) {
            // A shared parameter is listed with its owner only.
            if (home_is_own(module, i))
                state_add(list, module, &module->parameters[i], false);
        }
        for (uint32_t i = 0; i < module->buffer_count; i++)
            state_add(list, module, &module->buffers[i], true);
    }
    for (uint32_t i = 0; i < list->count && status == 0; i++)
        status = state_hash(session, list->tensors[i].tensor, &list->hashes[i]);
    if (status < 0)
        state_free(list);
    return status;
}

static int state_collective(struct lockstep_session *session, const char *name, void *data,
                            uint64_t count, const struct collective *like)
{
    struct lockstep_work *work;
    return work_call(session, name, data, count, like, LOCKSTEP_WAIT_FOREVER, &work);
}

// Sets list->vector: 1 for a tensor that differs on this rank from the root's, else 0.
static int state_compare(struct lockstep_session *session, uint32_t root, struct state_list *list)
{
    const struct collective broadcast = {
        .kind = COLLECTIVE_BROADCAST, .dtype = DTYPE_INT64, .root = root};
    int status;
    memcpy(list->vector, list->hashes, list->count * sizeof(list->vector[0]));
    status =
        state_collective(session, "lockstep/state/hashes", list->vector, list->count, &broadcast);
    for (uint32_t i = 0; i < list->count && status == 0; i++)
        list->vector[i] = list->differs[i] = (uint64_t)list->vector[i] != list->hashes[i];
    return status;
}

static int state_sum(struct lockstep_session *session, struct state_list *list)
{
    const struct collective sum = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT64, .op = REDUCE_SUM};
    return state_collective(session, "lockstep/state/differing", list->vector, list->count, &sum);
}

// Returns when every rank has all tensors of its batch.
static int state_end_batch(struct lockstep_session *session)
{
    const struct collective sum = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT32, .op = REDUCE_SUM};
    int32_t one = 1;
    return state_collective(session, "lockstep/state/batch", &one, 1, &sum);
}

static bool state_copy(const struct lockstep_session *session, const struct tensor *tensor,
                       void *to, const void *from)
{
    const size_t bytes = tensor->elements * dtype_size(tensor->dtype);
    if (tensor->on_device)
        return device_copy(session->devices.first, to, from, bytes) == 0;
    memcpy(to, from, bytes);
    return true;
}

// A tensor that is equal to the root's receives the bytes that it has.
static int state_keep(const struct lockstep_session *session, struct state_list *list, uint32_t i)
{
    const struct tensor *tensor = list->tensors[i].tensor;
    if (!list->differs[i] || !agreement_is_on(session))
        return 0;
    list->kept[i] = malloc(tensor->elements * dtype_size(tensor->dtype));
    if (!list->kept[i])
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for a copy of '%s'", tensor->name);
    return state_copy(session, tensor, list->kept[i], tensor->data) ? 0
                                                                    : device_events_failed(session);
}

static int state_put_back(const struct lockstep_session *session, const struct state_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct tensor *tensor = list->tensors[i].tensor;
        if (list->kept[i] && !state_copy(session, tensor, tensor->data, list->kept[i]))
            return device_events_failed(session);
    }
    return LOCKSTEP_E_CHANGED;
}

static int state_send_batch(struct lockstep_session *session, uint32_t root,
                            struct state_list *list, uint32_t *next)
{
    struct lockstep_work *works[STATE_BATCH];
    const uint32_t most = agreement_is_on(session) ? STATE_BATCH_KNOWN : STATE_BATCH;
    uint32_t count = 0;
    int status = 0;
    for (; *next < list->count && count < most && status == 0; (*next)++) {
        const struct tensor *tensor = list->tensors[*next].tensor;
        const struct collective broadcast = {.kind = COLLECTIVE_BROADCAST,
                                             .dtype = tensor->dtype,
                                             .root = root,
                                             .device =
                                                 tensor->on_device ? session->devices.first : NULL};
        if (list->vector[*next] == 0 || tensor->elements == 0)
            continue;
        status = state_keep(session, list, *next);
        if (status == 0)
            status = work_begin(session, "lockstep/state/tensor", tensor->data, tensor->elements,
                                &broadcast, &works[count]);
        if (status == 0)
            count++;
    }
    for (uint32_t i = 0; i < count; i++) {
        const int waited = work_wait(works[i], LOCKSTEP_WAIT_FOREVER);
        if (status == 0)
            status = waited;
    }
    return status == 0 && *next < list->count ? state_end_batch(session) : status;
}

// Makes all parameters and buffers equal to those of the root.
static int state_broadcast(struct lockstep_session *session, void *context)
{
    const uint32_t root = session->world.root;
    struct state_list list;
    (void)context;
    int status = state_collect(session, &list);
    if (status < 0)
        return status;
    status = state_compare(session, root, &list);
    if (status == 0)
        status = state_sum(session, &list);
    for (uint32_t next = 0; next < list.count && status == 0;)
        status = state_send_batch(session, root, &list, &next);
    if (status == LOCKSTEP_E_CHANGED)
        status = state_put_back(session, &list);
    state_free(&list);
    return status;
}

// ---- lockstep_start ----------------------------------------------------------------------------

static int state_verify(struct lockstep_session *session)
{
    const struct command command = {.kind = COMMAND_START};
    const struct standing standing = await_other(AWAIT_START, API_START, ++session->starts);
    const struct wish wish = {.flag = &session->answered.verified,
                              .deadline_ms = COND_NO_DEADLINE,
                              .standing = &standing};
    int status;
    session->manifest_hash = module_manifest_hash(session);
    mutex_lock(&session->mutex);
    session->answered.verified = false;
    drive_until_locked(session, &command, &wish);
    status = session_failure_locked(session);
    mutex_unlock(&session->mutex);
    return status;
}

// If ranks have devices: agrees with all ranks on which tensors are on devices, makes the groups of
// buffers anew, because they depend on that, and reserves device memory.
static int state_settle_places(struct lockstep_session *session, void *context)
{
    const struct command command = {.kind = COMMAND_RESERVE};
    const struct wish wish = {.flag = &session->answered.reserved, .deadline_ms = COND_NO_DEADLINE};
    int status = residency_agree(session);
    (void)context;
    if (status < 0 || session->config.solo)
        return status;
    buffers_fini(session);
    status = buffers_make(session);
    if (status < 0)
        return status;
    mutex_lock(&session->mutex);
    session->answered.reserved = false;
    drive_until_locked(session, &command, &wish);
    status = session_failure_locked(session);
    mutex_unlock(&session->mutex);
    return status;
}

static int state_start(struct lockstep_session *session)
{
    grouped_forget(session);
    int status = leaves_start(session);
    if (status == 0 && !session->config.solo) {
        buffers_fini(session);
        status = buffers_make(session);
        if (status == 0)
            status = deferral_start(session);
        if (status == 0)
            status = state_verify(session);
        if (status == 0 && session->answered.grouped)
            status = attempt_run(session, ATTEMPT_GROUPED, grouped_agree, NULL);
    }
    if (status == 0)
        status = residency_matters(session)
                     ? attempt_run(session, ATTEMPT_PLACES, state_settle_places, NULL)
                     : residency_check_loaded(session);
    if (status == 0 && !session->config.solo)
        status = attempt_run(session, ATTEMPT_STATE, state_broadcast, NULL);
    if (status == 0 && !session->config.solo)
        status = grouped_state_sync(session);
    if (status < 0)
        return status;
    status = replica_copy_values(session);
    session->started = status == 0;
    return status;
}

int lockstep_start(lockstep_session *session)
{
    int status = session_check(session);
    if (status < 0)
        return status;
    // Other ranks may have registered or closed a module of a group without this one.
    if (session->started && session->answered.ever_grouped && !session->step.is_open &&
        !session->step.window_open) {
        status = step_device_land(session, COND_NO_DEADLINE);
        if (status == 0)
            status = module_stop(session);
        if (status < 0)
            return status;
    }
    if (session->started)
        return error_set(LOCKSTEP_E_INVALID,
                         "the session has been started already; no module was registered and no "
                         "module was closed since%s",
                         session->answered.ever_grouped
                             ? ", and a step or window is open"
                             : ", and the job has never had a module of a group");
    if (session->world.root >= session->world.size)
        return error_set(LOCKSTEP_E_CONFIG,
                         "config.root %" PRIu32 " does not fit the world of %" PRIu32
                         " that has formed",
                         session->world.root, session->world.size);
    const int overlap = overlap_check_moved(session);
    if (overlap < 0)
        return overlap;
    const struct visit visit = progress_enter(&session->tracker, API_START, PROGRESS_NO_MODULE, 0);
    watch_find_python(session->watch);
    await_enter(API_START, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, state_start(session));
}

// ---- Hash and check ----------------------------------------------------------------------------

static int state_check_ready(struct lockstep_session *session)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!session->started || session->step.is_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "the state is shared after lockstep_start and outside a step");
    return 0;
}

int lockstep_state_hash(lockstep_session *session, uint64_t *hash)
{
    struct state_list list;
    struct hash64 all;
    int status = state_check_ready(session);
    if (status == 0 && !hash)
        status = error_set(LOCKSTEP_E_INVALID, "hash is NULL: nowhere to put it");
    if (status == 0)
        status = state_collect(session, &list);
    if (status < 0)
        return status;
    hash64_init(&all, 0);
    hash64_update(&all, list.hashes, list.count * sizeof(list.hashes[0]));
    grouped_state_hash(session, &all);
    *hash = hash64_final(&all);
    state_free(&list);
    return 0;
}

#define STATE_NAMED 16 // How many differing tensors an error text names.

static int state_report(const struct lockstep_session *session, const struct state_list *list)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    uint32_t differing = 0;
    text_init(&text, bytes, sizeof(bytes));
    for (uint32_t i = 0; i < list->count; i++)
        differing += list->vector[i] != 0;
    if (differing == 0)
        return 0;
    text_append(&text, "%" PRIu32 " of %" PRIu32 " tensors differ from those of rank %" PRIu32 ":",
                differing, list->count, session->world.root);
    for (uint32_t i = 0, named = 0; i < list->count && named < STATE_NAMED; i++) {
        const struct state_tensor *state = &list->tensors[i];
        if (list->vector[i] == 0)
            continue;
        text_append(&text, "\n  module '%s' %s '%s' on %" PRId64 " of %" PRIu32 " ranks",
                    state->module->name, state->buffer ? "buffer" : "parameter",
                    state->tensor->name, list->vector[i], session->world.size);
        named++;
    }
    if (differing > STATE_NAMED)
        text_append(&text, "\n  and %" PRIu32 " more", differing - STATE_NAMED);
    return error_set(LOCKSTEP_E_MISMATCH, "%s", bytes);
}

static int state_check(struct lockstep_session *session)
{
    struct state_list list;
    int status = state_collect(session, &list);
    if (status < 0)
        return status;
    status = state_compare(session, session->world.root, &list);
    if (status == 0)
        status = state_sum(session, &list);
    if (status == 0)
        status = state_report(session, &list);
    state_free(&list);
    return status < 0 ? status : grouped_state_check(session);
}

int lockstep_state_check(lockstep_session *session)
{
    const int status = state_check_ready(session);
    if (status < 0 || session->config.solo)
        return status;
    const struct visit visit = progress_enter(&session->tracker, API_STATE, PROGRESS_NO_MODULE, 0);
    await_enter(API_STATE_CHECK, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, state_check(session));
}

// The root of a broadcast does not wait for the other ranks. So a barrier follows: no rank returns
// before all ranks have called this function.
int lockstep_state_sync(lockstep_session *session)
{
    const struct collective barrier = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT32, .op = REDUCE_SUM};
    int status = state_check_ready(session);
    if (status < 0 || session->config.solo)
        return status;
    const struct visit visit = progress_enter(&session->tracker, API_STATE, PROGRESS_NO_MODULE, 0);
    await_enter(API_STATE_SYNC, LOCKSTEP_MAX_MODULES);
    buffers_begin(session, 0, NULL);
    status = buffers_await(session);
    if (status == 0)
        status = state_collective(session, "lockstep/state/synchronized", NULL, 1, &barrier);
    return progress_leave(&visit, status);
}
