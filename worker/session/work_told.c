// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives, described for people and for heartbeats: work_told.h has the contract. Driver
// and watch thread.

#include "worker/session/work_told.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void work_told_form(const struct lockstep_work *work, char *text, size_t bytes)
{
    const struct collective *collective = &work->collective;
    const bool broadcast = collective->kind == COLLECTIVE_BROADCAST;
    const int used = snprintf(text, bytes, "lockstep_%s with %" PRIu64 " element%s of %s, ",
                              broadcast ? "broadcast" : "allreduce", collective->elements,
                              collective->elements == 1 ? "" : "s", dtype_name(collective->dtype));
    if (strncmp(work->name, WORK_LIBRARY_PREFIX, strlen(WORK_LIBRARY_PREFIX)) == 0)
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
           strncmp(work->name, WORK_LIBRARY_PREFIX, strlen(WORK_LIBRARY_PREFIX)) != 0;
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
    if (!work || strncmp(work->name, WORK_LIBRARY_PREFIX, strlen(WORK_LIBRARY_PREFIX)) == 0)
        return;
    text_copy(beat->collective, sizeof(beat->collective), work->name);
    beat->collective_use = work->collective.tag.slot;
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
