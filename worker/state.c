// SPDX-License-Identifier: Apache-2.0
//
// The state that ranks share: lockstep_start (verify, then broadcast), the state hash and the state
// check. Runs on the trainer's thread, over the session's own plain collectives; so it needs no
// messages of its own on the data plane.
//
// Start sends hashes first: the root's hash of every tensor goes to all (8 bytes each), every rank
// marks what differs, the marks are OR-ed, and only marked tensors travel. On ranks that are equal
// already nothing but hashes moves.

#include "base/hash.h"
#include "base/text.h"
#include "worker/error.h"
#include "worker/kernels.h"
#include "worker/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STATE_BATCH 64 // Tensors in flight; well below LOCKSTEP_MAX_PLAIN.

struct state_tensor {
    const struct lockstep_module *module;
    const struct tensor *tensor;
    bool buffer;
};

struct state_list {
    struct state_tensor *tensors; // [count]
    uint64_t *hashes; // [count]: of this rank.
    int64_t *vector; // [count]: what travels.
    uint32_t count;
};

static void state_free(struct state_list *list)
{
    free(list->tensors);
    free(list->hashes);
    free(list->vector);
}

static void state_add(struct state_list *list, const struct lockstep_module *module,
                      const struct tensor *tensor, bool buffer)
{
    if (buffer && tensor->flags == LOCKSTEP_BUFFER_IGNORE)
        return;
    list->tensors[list->count++] = (struct state_tensor){module, tensor, buffer};
}

// All tensors that ranks share, in manifest order, with their hashes.
static int state_collect(const struct lockstep_session *session, struct state_list *list)
{
    const size_t room = session->tensor_count + 1;
    memset(list, 0, sizeof(*list));
    list->tensors = calloc(room, sizeof(*list->tensors));
    list->hashes = calloc(room, sizeof(*list->hashes));
    list->vector = calloc(room, sizeof(*list->vector));
    if (list->tensors == NULL || list->hashes == NULL || list->vector == NULL) {
        state_free(list);
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    }
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->parameter_count; i++)
            state_add(list, module, &module->parameters[i], false);
        for (uint32_t i = 0; i < module->buffer_count; i++)
            state_add(list, module, &module->buffers[i], true);
    }
    for (uint32_t i = 0; i < list->count; i++) {
        const struct tensor *tensor = list->tensors[i].tensor;
        list->hashes[i] = hash64(tensor->data, tensor->elements * dtype_size(tensor->dtype));
    }
    return 0;
}

static int state_collective(struct lockstep_session *session, const char *name, void *data,
                            uint64_t count, const struct collective *like)
{
    struct lockstep_work *work;
    const int status = collective_begin(session, name, data, count, like, &work);
    return status < 0 ? status : collective_wait(work, LOCKSTEP_WAIT_FOREVER);
}

// list->vector becomes, for each tensor, whether it differs here (1) from the root's.
static int state_compare(struct lockstep_session *session, uint32_t root, struct state_list *list)
{
    const struct collective broadcast = {
        .kind = COLLECTIVE_BROADCAST, .dtype = DTYPE_INT64, .root = root};
    int status;
    memcpy(list->vector, list->hashes, list->count * sizeof(list->vector[0]));
    status =
        state_collective(session, "lockstep/state/hashes", list->vector, list->count, &broadcast);
    for (uint32_t i = 0; i < list->count && status == 0; i++)
        list->vector[i] = (uint64_t)list->vector[i] != list->hashes[i];
    return status;
}

static int state_sum(struct lockstep_session *session, struct state_list *list)
{
    const struct collective sum = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT64, .op = REDUCE_SUM};
    return state_collective(session, "lockstep/state/differing", list->vector, list->count, &sum);
}

static int state_send_batch(struct lockstep_session *session, uint32_t root,
                            const struct state_list *list, uint32_t *next)
{
    struct lockstep_work *works[STATE_BATCH];
    uint32_t count = 0;
    int status = 0;
    for (; *next < list->count && count < STATE_BATCH && status == 0; (*next)++) {
        const struct tensor *tensor = list->tensors[*next].tensor;
        const struct collective broadcast = {
            .kind = COLLECTIVE_BROADCAST, .dtype = tensor->dtype, .root = root};
        if (list->vector[*next] == 0 || tensor->elements == 0)
            continue;
        status = collective_begin(session, "lockstep/state/tensor", tensor->data, tensor->elements,
                                  &broadcast, &works[count]);
        if (status == 0)
            count++;
    }
    for (uint32_t i = 0; i < count; i++) {
        const int waited = collective_wait(works[i], LOCKSTEP_WAIT_FOREVER);
        if (status == 0)
            status = waited;
    }
    return status;
}

int state_broadcast(struct lockstep_session *session, uint32_t root)
{
    struct state_list list;
    int status = state_collect(session, &list);
    if (status < 0)
        return status;
    status = state_compare(session, root, &list);
    if (status == 0)
        status = state_sum(session, &list);
    for (uint32_t next = 0; next < list.count && status == 0;)
        status = state_send_batch(session, root, &list, &next);
    state_free(&list);
    return status;
}

// ---- lockstep_start ----------------------------------------------------------------------------

static int state_verify(struct lockstep_session *session)
{
    int status;
    session->manifest_hash = module_manifest_hash(session);
    mutex_lock(&session->mutex);
    session->verified = false;
    mutex_unlock(&session->mutex);
    session_post(session, (struct command){.kind = COMMAND_START});
    mutex_lock(&session->mutex);
    while (!session->verified && session->failure == 0)
        cond_wait(&session->changed, &session->mutex);
    status = session_failure_locked(session);
    mutex_unlock(&session->mutex);
    return status;
}

int lockstep_start(lockstep_session *session)
{
    int status = session_check(session);
    if (status < 0)
        return status;
    if (session->started)
        return error_set(LOCKSTEP_E_INVALID,
                         "the session has been started already, and no module was closed since");
    session_activity(session, ACTIVITY_STARTING);
    if (!session->config.solo) {
        status = state_verify(session);
        if (status == 0)
            status = state_broadcast(session, 0);
    }
    session_activity(session, ACTIVITY_OUTSIDE);
    if (status < 0)
        return status;
    session->started = true;
    return 0;
}

// ---- Hash and check ----------------------------------------------------------------------------

static int state_check_ready(struct lockstep_session *session)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!session->started || session->step_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "the state is compared after lockstep_start and outside a step");
    return 0;
}

int lockstep_state_hash(lockstep_session *session, uint64_t *hash)
{
    struct state_list list;
    int status = state_check_ready(session);
    if (status == 0 && hash == NULL)
        status = error_set(LOCKSTEP_E_INVALID, "hash is NULL: nowhere to put it");
    if (status == 0)
        status = state_collect(session, &list);
    if (status < 0)
        return status;
    *hash = hash64(list.hashes, list.count * sizeof(list.hashes[0]));
    state_free(&list);
    return 0;
}

#define STATE_NAMED 16 // Tensors that a report names.

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
    text_append(&text, "%" PRIu32 " of %" PRIu32 " tensors differ from those of rank 0:", differing,
                list->count);
    for (uint32_t i = 0, named = 0; i < list->count && named < STATE_NAMED; i++) {
        const struct state_tensor *state = &list->tensors[i];
        if (list->vector[i] == 0)
            continue;
        text_append(&text, "\n  module '%s' %s '%s' on %" PRId64 " of %" PRIu32 " ranks",
                    state->module->name, state->buffer ? "buffer" : "parameter",
                    state->tensor->name, list->vector[i], session->world_size);
        named++;
    }
    if (differing > STATE_NAMED)
        text_append(&text, "\n  and %" PRIu32 " more", differing - STATE_NAMED);
    return error_set(LOCKSTEP_E_MISMATCH, "%s", bytes);
}

int lockstep_state_check(lockstep_session *session)
{
    struct state_list list;
    int status = state_check_ready(session);
    if (status < 0 || session->config.solo)
        return status;
    status = state_collect(session, &list);
    if (status < 0)
        return status;
    status = state_compare(session, 0, &list);
    if (status == 0)
        status = state_sum(session, &list);
    if (status == 0)
        status = state_report(session, &list);
    state_free(&list);
    return status;
}
