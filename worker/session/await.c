// SPDX-License-Identifier: Apache-2.0
//
// The trainer's present wait; await.h says what it is for. Trainer threads write it and the watch
// reads it, all under the session's mutex. So the watch reads a consistent state: the trainer has
// entered its wait, and everything that it did before is counted.

#include "worker/session/await.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/hash64.h"
#include "base/text.h"
#include "worker/session/group.h"
#include "worker/session/session.h"
#include "worker/session/work_told.h"

#include <stdatomic.h>
#include <string.h>

// A send that waits because its receiver is behind may go when the receiver says what it has taken.
// Those words may be on their way. So such a wait counts only when no bytes have moved between the
// two for this time.
#define AWAIT_HELD_MS 5000

// ---- Waits -------------------------------------------------------------------------------------

// The function that this thread has entered last. Thread-local, because several threads may wait
// at the same time.
static _Thread_local enum api_function entered;
static _Thread_local uint32_t entered_module;

void await_enter(enum api_function function, uint32_t module)
{
    entered = function;
    entered_module = module;
}

struct standing await_work(const struct lockstep_work *work)
{
    return (struct standing){.key = {.kind = AWAIT_COLLECTIVE,
                                     .space = work->collective.tag.space,
                                     .number = work->collective.tag.slot},
                             .function = entered,
                             .module = entered_module,
                             .work = work};
}

struct standing await_other(enum await_kind kind, enum api_function function, uint64_t number)
{
    return (struct standing){.key = {.kind = kind, .number = number},
                             .function = function,
                             .module = LOCKSTEP_MAX_MODULES};
}

void await_begin_locked(struct lockstep_session *session, const struct standing *standing)
{
    mutex_assert_held(&session->mutex);
    if (session->awaiting.blocked++ > 0)
        session->awaiting.several = true;
    session->awaiting.standing = standing;
    session->awaiting.number++;
}

void await_end_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    session->awaiting.blocked--;
    session->awaiting.standing = NULL;
}

void await_begun_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    if (session->awaiting.blocked > 0)
        session->awaiting.several = true;
}

// ---- What this rank has not done ---------------------------------------------------------------

static bool await_step_ended(const struct lockstep_session *session, uint64_t step)
{
    if (session->step.number != step || session->step.window_open)
        return session->step.number > step;
    return session->step.ending || !session->step.is_open;
}

// How many collectives with this name this rank has begun. space: the hash of the name. The work of
// a group of buffers counts its own uses.
static uint64_t await_uses(const struct lockstep_session *session, uint64_t space)
{
    for (uint32_t g = 0; g < session->buffers.group_count; g++) {
        const struct lockstep_work *work = session->buffers.groups[g].work;
        if (hash64(work->name, strlen(work->name)) == space)
            return work->uses;
    }
    return names_uses_locked(session, space);
}

// True if this rank has not made the call, and cannot make it while the trainer is blocked. Another
// thread could make the call. So the result is false if config.trainer_threads is above 1, or if
// several threads have called the library. The result is also false if the rank waits for a call
// under LOCKSTEP_ORDER_ZERO_DEFER: this wait gives up the calls that other ranks could wait for. No
// rank waits for a module whose call was aborted; but separate calls that are not made stay missing
// until a plan says which calls a step has.
static bool await_call_lacks(const struct lockstep_session *session, const struct await_key *key)
{
    const uint32_t index = (uint32_t)key->space;
    const bool gives_up = session->config.order == LOCKSTEP_ORDER_ZERO_DEFER &&
                          session->awaiting.standing->key.kind == AWAIT_CALL;
    struct thread_note notes[2];
    if (gives_up || session->config.trainer_threads > 1 ||
        callers_list(&session->gate.callers, notes, 2) > 1 || index >= session->module_count ||
        session->modules[index]->grouped.absent || await_step_ended(session, key->number) ||
        session->step.accumulating)
        return false;
    if (session->step.number < key->number)
        return true;
    const struct lockstep_module *module = session->modules[index];
    if (module->made.aborted_step == key->number &&
        !(module->separate_calls && session->step.learning))
        return false;
    return module->separate_calls ? module->made.count <= key->space >> 32
                                  : module->made.count < module->calls_per_step;
}

static bool await_lacks(const struct lockstep_session *session, const struct await_key *key)
{
    switch (key->kind) {
    case AWAIT_STEP:
        return !await_step_ended(session, key->number);
    case AWAIT_OPENING:
        return session->step.openings < key->number;
    case AWAIT_START:
        return session->starts < key->number;
    case AWAIT_COLLECTIVE:
        // A receive from any source may begin it while the trainer is blocked.
        return session->works.unmatched_count == 0 &&
               await_uses(session, key->space) <= key->number;
    case AWAIT_CALL:
        return await_call_lacks(session, key);
    case AWAIT_NONE:
        break;
    }
    return false;
}

// ---- Reading -----------------------------------------------------------------------------------

// A broadcast of the library has no confirmation, so it completes on a rank without hearing from
// all ranks: await->rooted is true for it. In shared memory no broadcast does.
static void await_fill_work(const struct lockstep_work *work, struct await *await)
{
    const struct collective *collective = &work->collective;
    await->rooted = collective->kind == COLLECTIVE_BROADCAST && !work->confirmed &&
                    collective->algorithm != ALGORITHM_SHARED;
    await->root = await->rooted ? collective->root : 0;
    if (work->kind == LOCKSTEP_SEND || work->kind == LOCKSTEP_RECEIVE) {
        bits_add(await->members, work->session->world.rank);
        bits_add(await->members, group_rank(work->group, work->member));
    } else if (work->group) {
        memcpy(await->members, work->group->members, sizeof(await->members));
    }
    if (await->function == API_WORK_WAIT || await->function == API_BARRIER ||
        await->function == API_ALLREDUCE || await->function == API_BROADCAST ||
        await->function == API_COLLECTIVE_RUN || await->function == API_GROUP_CREATE) {
        text_copy(await->name, sizeof(await->name), work->name);
        work_told_detail(work, await->detail, sizeof(await->detail));
    }
}

// A call of a module with a group concerns the members only.
static void await_fill_call(const struct lockstep_session *session, uint32_t index,
                            struct await *await)
{
    if (index < session->module_count && session->modules[index]->grouped.group)
        memcpy(await->members, session->modules[index]->grouped.group->members,
               sizeof(await->members));
}

static void await_fill_locked(const struct lockstep_session *session,
                              const struct down_query *query, struct await *await)
{
    const struct standing *standing = session->awaiting.standing;
    await->key = standing->key;
    await->function = standing->function;
    await->module = standing->module;
    await->step = session->step.number;
    await->open = session->step.number > 0 && !await_step_ended(session, session->step.number);
    if (standing->work)
        await_fill_work(standing->work, await);
    else if (standing->key.kind == AWAIT_CALL)
        await_fill_call(session, (uint32_t)standing->key.space, await);
    for (uint32_t i = 0; i < query->key_count; i++) {
        if (await_lacks(session, &query->keys[i]))
            await->lacks[await->lack_count++] = query->keys[i];
    }
}

// False if the wait may end although no other rank does anything more.
static bool await_counts(const struct standing *standing)
{
    const struct lockstep_work *work = standing->work;
    if (!work || !work->passes)
        return true;
    const uint64_t held_ms = atomic_load_explicit(&work->collective.held_ms, memory_order_relaxed);
    return held_ms != 0 && clock_coarse_ms() >= held_ms + AWAIT_HELD_MS;
}

void await_read(struct lockstep_session *session, const struct down_query *query, uint64_t *seen,
                struct await *await)
{
    memset(await, 0, sizeof(*await));
    mutex_lock(&session->mutex);
    const bool stands = session->awaiting.standing && *seen == session->awaiting.number &&
                        !session->awaiting.several && session->gate.failure == 0 &&
                        await_counts(session->awaiting.standing);
    *seen = session->awaiting.number;
    if (stands)
        await_fill_locked(session, query, await);
    mutex_unlock(&session->mutex);
}
