// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives, described for people and for heartbeats: work_told.h has the contract. Driver
// and watch thread.

#include "worker/session/work_told.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/session/anysource.h"
#include "worker/session/group.h"
#include "worker/session/names.h"
#include "worker/session/session.h"
#include "worker/session/shape.h"
#include "worker/session/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WORK_TOLD_RANKS 16 // Ranks of a new group that a text names.
#define WORK_TOLD_PARTS 8 // Parts of a side whose elements a text names.

// Adds the ranks of a group that is being made: "ranks 0, 1, 2".
static void work_told_ranks(const struct lockstep_group *group, struct text *text)
{
    uint32_t i = 0;
    for (; i < group->size && i < WORK_TOLD_RANKS; i++)
        text_append(text, "%s%" PRIu32, i == 0 ? "ranks " : ", ", group->ranks[i].rank);
    if (i < group->size)
        text_append(text, " and %" PRIu32 " more", group->size - i);
}

static void work_told_kind(const struct lockstep_work *work, struct text *text)
{
    const bool pair = work->kind == LOCKSTEP_SEND || work->kind == LOCKSTEP_RECEIVE;
    text_append(text, "%s", shape_name(work->kind));
    if (anysource_is(work))
        text_append(text, " from any source");
    else if (pair)
        text_append(text, " %s rank %" PRIu32, work->kind == LOCKSTEP_SEND ? "to" : "from",
                    group_rank(work->group, work->member));
    if (pair && work->tag != 0)
        text_append(text, " with tag %" PRIu32, work->tag);
    if (work->group)
        text_append(text, " of group '%s'", work->group->name);
}

void work_told_detail(const struct lockstep_work *work, char *bytes, size_t size)
{
    struct text text;
    text_init(&text, bytes, size);
    if (work->creates)
        work_told_ranks(work->group, &text);
    else if (work->kind != 0)
        work_told_kind(work, &text);
}

// Adds the elements of the parts of a side: "sends 3, 4, 5".
static void work_told_parts(struct text *text, const char *does,
                            const struct collective_part *parts, uint32_t count)
{
    for (uint32_t i = 0; i < count && i < WORK_TOLD_PARTS; i++)
        text_append(text, "%s%" PRIu64, i == 0 ? does : ", ", parts[i].elements);
    if (count > WORK_TOLD_PARTS)
        text_append(text, " and %" PRIu32 " more", count - WORK_TOLD_PARTS);
}

// Writes how the trainer called a collective of any kind.
static void work_told_run(const struct lockstep_work *work, char *bytes, size_t size)
{
    const struct collective *collective = &work->collective;
    const uint64_t count = work->count;
    struct text text;
    text_init(&text, bytes, size);
    text_append(&text, "lockstep_collective_run ");
    work_told_kind(work, &text);
    if (work->kind == LOCKSTEP_BARRIER)
        return;
    if (work->varies) {
        const struct collective_parts *parts = collective->parts;
        text_append(&text, " with parts of %s", dtype_name(collective->dtype));
        if (parts) {
            const bool both = parts->send_count > 0 && parts->receive_count > 0;
            work_told_parts(&text, " (sends ", parts->sends, parts->send_count);
            work_told_parts(&text, both ? "; receives " : " (receives ", parts->receives,
                            parts->receive_count);
            text_append(&text, ")");
        }
    } else
        text_append(&text, " with %" PRIu64 " element%s of %s", count, count == 1 ? "" : "s",
                    dtype_name(collective->dtype));
    if (shape_reduces(work->kind))
        text_append(&text, ", %s", kernel_op_name(collective->op));
    if (shape_is_rooted(work->kind))
        text_append(&text, ", root %" PRIu32, work->member);
}

// True if the collective is the same as one of lockstep_allreduce, _broadcast and _barrier.
static bool work_told_is_named(const struct lockstep_work *work)
{
    return work->kind == 0 ||
           (!work->group && (work->kind == LOCKSTEP_ALLREDUCE || work->kind == LOCKSTEP_BROADCAST ||
                             work->kind == LOCKSTEP_BARRIER));
}

void work_told_form(const struct lockstep_work *work, char *text, size_t bytes)
{
    const struct collective *collective = &work->collective;
    if (work->creates) {
        snprintf(text, bytes, "lockstep_group_create");
        return;
    }
    if (!work_told_is_named(work)) {
        work_told_run(work, text, bytes);
        return;
    }
    const bool broadcast = collective->kind == COLLECTIVE_BROADCAST;
    const int used = snprintf(text, bytes, "lockstep_%s with %" PRIu64 " element%s of %s, ",
                              broadcast ? "broadcast" : "allreduce", collective->elements,
                              collective->elements == 1 ? "" : "s", dtype_name(collective->dtype));
    if (names_is_of_library(work->name))
        text[0] = '\0';
    else if (work->extent.in == &work->barrier && collective->elements == 1)
        snprintf(text, bytes, "lockstep_barrier");
    else if (broadcast)
        snprintf(text + used, bytes - (size_t)used, "root %" PRIu32, collective->root);
    else
        snprintf(text + used, bytes - (size_t)used, "%s", kernel_op_name(collective->op));
}

// ---- Overdue work ------------------------------------------------------------------------------

// True if a collective of the trainer is in flight for LOCKSTEP_OVERDUE_MS. Collectives of the
// library never count: all ranks have agreed on them.
static bool work_told_overdue_locked(const struct lockstep_work *work, uint64_t now_ms)
{
    mutex_assert_held(&work->session->mutex);
    return work->state == WORK_IN_FLIGHT && now_ms - work->begun_ms >= LOCKSTEP_OVERDUE_MS &&
           !names_is_of_library(work->name);
}

// Inserts the work into the list, which has the oldest first. A full list drops its youngest.
// Returns the new count.
static uint32_t work_told_insert(const struct lockstep_work **oldest, uint32_t count,
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

static void work_told_awaited_locked(const struct lockstep_session *session,
                                     struct up_heartbeat *beat)
{
    const struct lockstep_work *work = session->works.awaited;
    mutex_assert_held(&session->mutex);
    if (!work || names_is_of_library(work->name))
        return;
    text_copy(beat->collective, sizeof(beat->collective), work->name);
    beat->collective_use = work->collective.tag.slot;
    work_told_detail(work, beat->collective_detail, sizeof(beat->collective_detail));
}

void work_told_beat(struct lockstep_session *session, struct up_heartbeat *beat)
{
    const struct lockstep_work *oldest[LOCKSTEP_OVERDUE_NAMED];
    const uint64_t now_ms = clock_coarse_ms();
    uint32_t count = 0;
    mutex_lock(&session->mutex);
    work_told_awaited_locked(session, beat);
    for (uint32_t i = 0; session->works.taken > 0 && i < LOCKSTEP_MAX_PLAIN; i++)
        if (work_told_overdue_locked(&session->works.all[i], now_ms))
            count = work_told_insert(oldest, count, &session->works.all[i]);
    for (uint32_t i = 0; i < count; i++)
        beat->overdue[i] = (struct overdue){.space = oldest[i]->collective.tag.space,
                                            .use = oldest[i]->collective.tag.slot,
                                            .signature = oldest[i]->collective.signature};
    mutex_unlock(&session->mutex);
    beat->overdue_count = count;
}
