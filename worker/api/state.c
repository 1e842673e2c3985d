// SPDX-License-Identifier: Apache-2.0
//
// Compares values and makes them equal. Runs on the trainer's thread. Everything travels in plain
// collectives of the library.
//
// Hashes travel first: the root's hash of every tensor goes to all ranks (8 bytes each). Every rank
// marks the tensors that differ from the root's, the marks are summed over all ranks, and only
// tensors with a mark travel. If all ranks are equal already, only hashes travel. A tensor on this
// rank's device is copied to the host to be hashed. It travels as a plain collective on device
// memory, which the transport carries out.
//
// A death ends the attempt that it hits (worker/session/attempt.h), and the next one begins with
// the values that every rank had before: a rank keeps copies of the tensors that it receives, and
// puts them back. So no rank is left with a mixture when the root is the lost rank.

#include "worker/api/state.h"

#include "base/hash64.h"
#include "base/text.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/session/group.h"
#include "worker/session/module/device_events.h"
#include "worker/session/plain.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Tensors in flight at a time. The root needs no answer to a broadcast, so it may be a batch and
// the sum after it ahead of the other ranks, which park what they have not begun.
#define STATE_BATCH 128
static_assert(STATE_BATCH < LOCKSTEP_MAX_PLAIN && STATE_BATCH + 1 < LOCKSTEP_EARLY_COLLECTIVES,
              "a batch can be begun, and parked where it is early");
// The same in a group, and where a death may end them: then their outcomes are kept.
#define STATE_BATCH_KNOWN 32
#define STATE_PIECE_BYTES ((size_t)1024 * 1024) // A tensor on the device is hashed in such pieces.
#define STATE_NAMED 16 // How many differing tensors an error text names.

static size_t state_bytes(const struct tensor *tensor)
{
    return tensor->elements * dtype_size(tensor->dtype);
}

// ---- The list ----------------------------------------------------------------------------------

static int state_hash_device(const struct lockstep_session *session, const struct tensor *tensor,
                             uint64_t *result)
{
    const size_t bytes = state_bytes(tensor);
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
    *result = hash64(tensor->data, state_bytes(tensor));
    return 0;
}

static void state_add(struct shared_state *state, const struct lockstep_module *module,
                      const struct tensor *tensor, bool buffer)
{
    if (tensor->ignored || (buffer && tensor->flags == LOCKSTEP_BUFFER_IGNORE))
        return;
    state->tensors[state->count++] = (struct state_tensor){module, tensor, buffer};
}

static void state_add_module(struct shared_state *state, const struct lockstep_module *module)
{
    for (uint32_t i = 0; i < module->parameter_count; i++) {
        // A shared parameter is listed with its owner only.
        if (home_is_own(module, i))
            state_add(state, module, &module->parameters[i], false);
    }
    for (uint32_t i = 0; i < module->buffer_count; i++)
        state_add(state, module, &module->buffers[i], true);
}

// The root is the session's; in a group that does not have it, the first member.
static uint32_t state_root(struct lockstep_session *session, const struct lockstep_group *group)
{
    uint32_t root = group ? 0 : session->world.root;
    mutex_lock(&session->mutex);
    for (uint32_t i = 0; group && i < group->size; i++) {
        if (group->ranks[i].rank == session->world.root)
            root = i;
    }
    mutex_unlock(&session->mutex);
    return root;
}

int state_open(struct lockstep_session *session, const struct lockstep_module *grouped,
               struct shared_state *state)
{
    const struct lockstep_group *group = grouped ? grouped->grouped.group : NULL;
    const size_t room = session->tensor_count + 1;
    int status = 0;
    *state = (struct shared_state){
        .session = session,
        .group = group,
        .root = state_root(session, group),
        .tensors = calloc(room, sizeof(*state->tensors)),
        .hashes = calloc(room, sizeof(*state->hashes)),
        .vector = calloc(room, sizeof(*state->vector)),
        .differs = calloc(room, sizeof(*state->differs)),
        .kept = calloc(room, sizeof(*state->kept)),
    };
    if (!state->tensors || !state->hashes || !state->vector || !state->differs || !state->kept)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    if (grouped)
        state_add_module(state, grouped);
    for (uint32_t m = 0; !grouped && m < session->common_count; m++)
        state_add_module(state, session->modules[m]);
    for (uint32_t i = 0; i < state->count && status == 0; i++)
        status = state_hash(session, state->tensors[i].tensor, &state->hashes[i]);
    return status;
}

void state_free(struct shared_state *state)
{
    free(state->tensors);
    free(state->hashes);
    free(state->vector);
    free(state->differs);
    for (uint32_t i = 0; state->kept && i < state->count; i++)
        free(state->kept[i]);
    free(state->kept);
}

// ---- Collectives -------------------------------------------------------------------------------

// Begins a sum, or else a broadcast by the root.
static int state_begin(const struct shared_state *state, bool sums, const char *name,
                       const struct tensor *what, struct lockstep_work **work)
{
    const uint32_t root = sums ? 0 : state->root;
    if (!state->group) {
        const struct collective like = {.kind = sums ? COLLECTIVE_ALLREDUCE : COLLECTIVE_BROADCAST,
                                        .dtype = what->dtype,
                                        .op = REDUCE_SUM,
                                        .root = root,
                                        .device =
                                            what->on_device ? state->session->devices.first : NULL};
        return work_begin(state->session, name, what->data, what->elements, &like, work);
    }
    struct lockstep_collective collective = LOCKSTEP_COLLECTIVE_INIT;
    collective.kind = sums ? LOCKSTEP_ALLREDUCE : LOCKSTEP_BROADCAST;
    collective.name = name;
    collective.group = (struct lockstep_group *)(uintptr_t)state->group;
    collective.count = what->elements;
    collective.dtype = (lockstep_dtype)what->dtype;
    collective.op = LOCKSTEP_SUM;
    collective.root = root;
    collective.input = collective.output = what->data;
    return plain_begin_library(state->session, &collective, work);
}

static int state_call(const struct shared_state *state, bool sums, const char *name,
                      const struct tensor *what)
{
    struct lockstep_work *work;
    const int status = state_begin(state, sums, name, what, &work);
    return status < 0 ? status : work_wait(work, LOCKSTEP_WAIT_FOREVER);
}

// Sets `differs`, and in `vector` on how many ranks a tensor differs from the root's.
static int state_mark(struct shared_state *state)
{
    const struct tensor vector = {
        .data = state->vector, .elements = state->count, .dtype = DTYPE_INT64};
    memcpy(state->vector, state->hashes, state->count * sizeof(state->vector[0]));
    const int status = state_call(state, false, "lockstep/state/hashes", &vector);
    if (status < 0)
        return status;
    for (uint32_t i = 0; i < state->count; i++)
        state->vector[i] = state->differs[i] = (uint64_t)state->vector[i] != state->hashes[i];
    return state_call(state, true, "lockstep/state/differing", &vector);
}

// ---- Sending -----------------------------------------------------------------------------------

static bool state_copy(const struct lockstep_session *session, const struct tensor *tensor,
                       void *to, const void *from)
{
    if (tensor->on_device)
        return device_copy(session->devices.first, to, from, state_bytes(tensor)) == 0;
    memcpy(to, from, state_bytes(tensor));
    return true;
}

// A tensor that is equal to the root's receives the bytes that it has.
static int state_keep(struct shared_state *state, uint32_t i)
{
    const struct lockstep_session *session = state->session;
    const struct tensor *tensor = state->tensors[i].tensor;
    if (!state->differs[i] || !agreement_is_on(session))
        return 0;
    state->kept[i] = malloc(state_bytes(tensor));
    if (!state->kept[i])
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for a copy of '%s'", tensor->name);
    return state_copy(session, tensor, state->kept[i], tensor->data)
               ? 0
               : device_events_failed(session);
}

static int state_put_back(const struct shared_state *state)
{
    for (uint32_t i = 0; i < state->count; i++) {
        const struct tensor *tensor = state->tensors[i].tensor;
        if (state->kept[i] && !state_copy(state->session, tensor, tensor->data, state->kept[i]))
            return device_events_failed(state->session);
    }
    return LOCKSTEP_E_CHANGED;
}

// Returns when every rank has all tensors of its batch. Broadcasts of a group are confirmed, so its
// members need no such end.
static int state_end_batch(const struct shared_state *state)
{
    int32_t one = 1;
    const struct tensor what = {.data = &one, .elements = 1, .dtype = DTYPE_INT32};
    return state->group ? 0 : state_call(state, true, "lockstep/state/batch", &what);
}

static int state_send_batch(struct shared_state *state, uint32_t *next)
{
    struct lockstep_work *works[STATE_BATCH];
    const uint32_t most =
        state->group || agreement_is_on(state->session) ? STATE_BATCH_KNOWN : STATE_BATCH;
    uint32_t count = 0;
    int status = 0;
    for (; *next < state->count && count < most && status == 0; (*next)++) {
        const struct tensor *tensor = state->tensors[*next].tensor;
        if (state->vector[*next] == 0 || tensor->elements == 0)
            continue;
        status = state_keep(state, *next);
        if (status == 0)
            status = state_begin(state, false, "lockstep/state/tensor", tensor, &works[count]);
        if (status == 0)
            count++;
    }
    for (uint32_t i = 0; i < count; i++) {
        const int waited = work_wait(works[i], LOCKSTEP_WAIT_FOREVER);
        if (status == 0)
            status = waited;
    }
    return status == 0 && *next < state->count ? state_end_batch(state) : status;
}

int state_send(struct shared_state *state)
{
    int status = 0;
    for (uint32_t next = 0; next < state->count && status == 0;)
        status = state_send_batch(state, &next);
    return status == LOCKSTEP_E_CHANGED ? state_put_back(state) : status;
}

int state_compare(struct lockstep_session *session, const struct lockstep_module *grouped,
                  int (*end)(struct shared_state *state))
{
    struct shared_state state;
    int status = state_open(session, grouped, &state);
    if (status == 0)
        status = state_mark(&state);
    if (status == 0)
        status = end(&state);
    state_free(&state);
    return status;
}

// ---- Reporting ---------------------------------------------------------------------------------

int state_report(struct shared_state *state)
{
    const struct lockstep_group *group = state->group;
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    uint32_t differing = 0;
    for (uint32_t i = 0; i < state->count; i++)
        differing += state->vector[i] != 0;
    if (differing == 0)
        return 0;
    text_init(&text, bytes, sizeof(bytes));
    if (group)
        text_append(&text, "module '%s' of group '%s': ", state->tensors[0].module->name,
                    group->name);
    else
        text_append(&text, "%" PRIu32 " of %" PRIu32 " ", differing, state->count);
    text_append(&text, "tensors differ from those of rank %" PRIu32 ":",
                group ? group_rank(group, state->root) : state->root);
    for (uint32_t i = 0, named = 0; i < state->count && named < STATE_NAMED; i++) {
        const struct state_tensor *one = &state->tensors[i];
        if (state->vector[i] == 0)
            continue;
        text_append(&text, "\n  ");
        if (!group)
            text_append(&text, "module '%s' %s ", one->module->name,
                        one->buffer ? "buffer" : "parameter");
        text_append(&text, "'%s' on %" PRId64 " of %" PRIu32 " %s", one->tensor->name,
                    state->vector[i], group ? group->size : state->session->world.size,
                    group ? "members" : "ranks");
        named++;
    }
    if (differing > STATE_NAMED)
        text_append(&text, "\n  and %" PRIu32 " more", differing - STATE_NAMED);
    return error_set(LOCKSTEP_E_MISMATCH, "%s", bytes);
}
