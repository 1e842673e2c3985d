// SPDX-License-Identifier: Apache-2.0
//
// Finds out from heartbeats which ranks a blocked rank waits for. A heartbeat says what its rank
// waits for (struct await), and which collectives it has begun a while ago (struct overdue).
// Changes no state. Runs inside coordinator_step, and in views.

#include "coordinator/awaited.h"

#include "base/bits.h"
#include "coordinator/core.h"

bool awaited_member(const uint64_t members[LOCKSTEP_RANK_WORDS], uint32_t rank)
{
    uint64_t any = 0;
    for (uint32_t i = 0; i < LOCKSTEP_RANK_WORDS; i++)
        any |= members[i];
    return any == 0 || bits_has(members, rank);
}

bool awaited_concerns(const struct await *await, uint32_t rank)
{
    if (await->key.kind == AWAIT_NONE)
        return true;
    if (await->rooted)
        return await->root == rank;
    return awaited_member(await->members, rank);
}

bool awaited_begun(const struct await *await, const struct worker *worker)
{
    const struct up_heartbeat *beat = &worker->heartbeat;
    if (await->key.kind != AWAIT_COLLECTIVE || beat->held == DEVICE_HOLD_STREAM)
        return false;
    for (uint32_t i = 0; i < beat->overdue_count; i++)
        if (beat->overdue[i].space == await->key.space && beat->overdue[i].use == await->key.number)
            return true;
    return false;
}

bool awaited_culprit(const struct await *await, const struct worker *culprit, enum stall_kind kind)
{
    const bool held = kind == STALL_FROZEN || kind == STALL_STOPPED || kind == STALL_DEVICE;
    return awaited_concerns(await, culprit->rank) && (held || !awaited_begun(await, culprit));
}
