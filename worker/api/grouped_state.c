// SPDX-License-Identifier: Apache-2.0
//
// The state of modules with a group: it is made equal among the members, as start.c does it among
// all ranks, and compared. The root is the session's if it is a member, else the first member. A
// rank goes through its modules in their order, which is the same on all ranks, so groups that
// overlap do not wait for each other. Runs on the trainer's thread.

#include "worker/api/grouped_state.h"

#include "base/hash64.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/session/group.h"
#include "worker/session/plain.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STATE_FLIGHT 32 // Tensors in flight at a time.
#define STATE_NAMED 16 // How many differing tensors an error text names.

struct grouped_state {
    struct lockstep_session *session;
    const struct lockstep_module *module;
    uint32_t root; // A place in the group.
    uint32_t count;
    const struct tensor **tensors; // [count]
    int64_t *hashes; // [count]: of this rank's tensors.
    int64_t *vector; // [count]: the hashes, then the marks, that travel.
    void **kept; // [count]: as in start.c.
    int (*end)(struct grouped_state *state); // What follows the comparison.
};

static int state_send(struct grouped_state *state);

static void state_free(struct grouped_state *state)
{
    free(state->tensors);
    free(state->hashes);
    free(state->vector);
    for (uint32_t i = 0; state->kept && i < state->count; i++)
        free(state->kept[i]);
    free(state->kept);
}

static void state_add(struct grouped_state *state, const struct tensor *tensor)
{
    state->hashes[state->count] =
        (int64_t)hash64(tensor->data, tensor->elements * dtype_size(tensor->dtype));
    state->tensors[state->count++] = tensor;
}

static int state_open(struct grouped_state *state)
{
    const struct lockstep_module *module = state->module;
    const struct lockstep_group *group = module->grouped.group;
    const size_t room = (size_t)module->parameter_count + module->buffer_count + 1;
    mutex_lock(&state->session->mutex);
    for (uint32_t i = 0; i < group->size; i++) {
        if (group->ranks[i].rank == state->session->world.root)
            state->root = i;
    }
    mutex_unlock(&state->session->mutex);
    state->tensors = calloc(room, sizeof(*state->tensors));
    state->hashes = calloc(room, sizeof(*state->hashes));
    state->vector = calloc(room, sizeof(*state->vector));
    state->kept = calloc(room, sizeof(*state->kept));
    if (!state->tensors || !state->hashes || !state->vector || !state->kept)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (uint32_t i = 0; i < module->parameter_count; i++) {
        if (home_is_own(module, i) && !module->parameters[i].ignored)
            state_add(state, &module->parameters[i]);
    }
    for (uint32_t i = 0; i < module->buffer_count; i++) {
        if (!module->buffers[i].ignored && module->buffers[i].flags != LOCKSTEP_BUFFER_IGNORE)
            state_add(state, &module->buffers[i]);
    }
    return 0;
}

static int state_begin(const struct grouped_state *state, lockstep_collective_kind kind,
                       const char *name, const struct tensor *what, struct lockstep_work **work)
{
    struct lockstep_collective collective = LOCKSTEP_COLLECTIVE_INIT;
    collective.kind = kind;
    collective.name = name;
    collective.group = state->module->grouped.group;
    collective.count = what->elements;
    collective.dtype = (lockstep_dtype)what->dtype;
    collective.op = LOCKSTEP_SUM;
    collective.root = kind == LOCKSTEP_BROADCAST ? state->root : 0;
    collective.input = collective.output = what->data;
    return plain_begin_library(state->session, &collective, work);
}

static int state_vector(const struct grouped_state *state, lockstep_collective_kind kind,
                        const char *name)
{
    const struct tensor vector = {
        .data = state->vector, .elements = state->count, .dtype = DTYPE_INT64};
    struct lockstep_work *work;
    const int status = state_begin(state, kind, name, &vector, &work);
    return status < 0 ? status : work_wait(work, LOCKSTEP_WAIT_FOREVER);
}

// Copies a tensor that differs from the root's, if it is to be received.
static int state_keep(struct grouped_state *state, uint32_t i)
{
    const struct tensor *tensor = state->tensors[i];
    const size_t bytes = tensor->elements * dtype_size(tensor->dtype);
    if (state->vector[i] == 0 || state->end != state_send || !agreement_is_on(state->session))
        return 0;
    state->kept[i] = malloc(bytes);
    if (!state->kept[i])
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for a copy of '%s'", tensor->name);
    memcpy(state->kept[i], tensor->data, bytes);
    return 0;
}

static void state_put_back(const struct grouped_state *state)
{
    for (uint32_t i = 0; i < state->count; i++)
        if (state->kept[i])
            memcpy(state->tensors[i]->data, state->kept[i],
                   state->tensors[i]->elements * dtype_size(state->tensors[i]->dtype));
}

// Sets state->vector: on how many members a tensor differs from the root's.
static int state_compare(struct grouped_state *state)
{
    int status;
    memcpy(state->vector, state->hashes, state->count * sizeof(state->vector[0]));
    status = state_vector(state, LOCKSTEP_BROADCAST, "lockstep/state/hashes");
    for (uint32_t i = 0; i < state->count && status == 0; i++) {
        state->vector[i] = state->vector[i] != state->hashes[i];
        status = state_keep(state, i);
    }
    if (status == 0)
        status = state_vector(state, LOCKSTEP_ALLREDUCE, "lockstep/state/differing");
    return status;
}

static int state_send(struct grouped_state *state)
{
    struct lockstep_work *works[STATE_FLIGHT];
    int status = 0;
    for (uint32_t next = 0; next < state->count && status == 0;) {
        uint32_t count = 0;
        for (; next < state->count && count < STATE_FLIGHT && status == 0; next++) {
            if (state->vector[next] == 0 || state->tensors[next]->elements == 0)
                continue;
            status = state_begin(state, LOCKSTEP_BROADCAST, "lockstep/state/tensor",
                                 state->tensors[next], &works[count]);
            count += status == 0;
        }
        for (uint32_t i = 0; i < count; i++) {
            const int waited = work_wait(works[i], LOCKSTEP_WAIT_FOREVER);
            if (status == 0)
                status = waited;
        }
    }
    return status;
}

static int state_report(struct grouped_state *state)
{
    const struct lockstep_module *module = state->module;
    const struct lockstep_group *group = module->grouped.group;
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    uint32_t differing = 0;
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "module '%s' of group '%s': tensors differ from those of rank %" PRIu32 ":",
                module->name, group->name, group_rank(group, state->root));
    for (uint32_t i = 0; i < state->count; i++) {
        if (state->vector[i] == 0 || differing++ >= STATE_NAMED)
            continue;
        text_append(&text, "\n  '%s' on %" PRId64 " of %" PRIu32 " members",
                    state->tensors[i]->name, state->vector[i], group->size);
    }
    if (differing > STATE_NAMED)
        text_append(&text, "\n  and %" PRIu32 " more", differing - STATE_NAMED);
    return differing == 0 ? 0 : error_set(LOCKSTEP_E_MISMATCH, "%s", bytes);
}

// context: the struct grouped_state with the module.
static int state_of_module(struct lockstep_session *session, void *context)
{
    const struct grouped_state *asked = context;
    struct grouped_state state = {.session = session, .module = asked->module, .end = asked->end};
    int status = state_open(&state);
    if (status == 0)
        status = state_compare(&state);
    if (status == 0)
        status = state.end(&state);
    if (status == LOCKSTEP_E_CHANGED)
        state_put_back(&state);
    state_free(&state);
    return status;
}

// Calls `end` for each module of a group that this rank has, after the comparison. Returns the
// first failure, but goes on after a difference: the other members do.
static int state_each(struct lockstep_session *session, int (*end)(struct grouped_state *))
{
    char text[LOCKSTEP_REPORT_BYTES] = "";
    int status = 0;
    for (uint32_t m = session->common_count; m < session->module_count; m++) {
        struct grouped_state state = {.module = session->modules[m], .end = end};
        if (state.module->grouped.absent)
            continue;
        const int one = end == state_send
                            ? attempt_run(session, ATTEMPT_MODULE + m, state_of_module, &state)
                            : state_of_module(session, &state);
        if (one < 0 && status == 0)
            text_copy(text, sizeof(text), lockstep_error_text());
        if (one < 0 && status == 0)
            status = one;
        if (one < 0 && one != LOCKSTEP_E_MISMATCH)
            break;
    }
    return status < 0 ? error_set(status, "%s", text) : 0;
}

int grouped_state_sync(struct lockstep_session *session)
{
    return state_each(session, state_send);
}

int grouped_state_check(struct lockstep_session *session)
{
    return state_each(session, state_report);
}

void grouped_state_hash(const struct lockstep_session *session, struct hash64 *hash)
{
    for (uint32_t m = session->common_count; m < session->module_count; m++) {
        struct grouped_state state = {.session = (struct lockstep_session *)(uintptr_t)session,
                                      .module = session->modules[m]};
        if (state.module->grouped.absent)
            continue;
        if (state_open(&state) == 0)
            hash64_update(hash, state.hashes, state.count * sizeof(state.hashes[0]));
        state_free(&state);
    }
}
