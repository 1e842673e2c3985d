// SPDX-License-Identifier: Apache-2.0
//
// Job-wide counters. What a rank adds to a counter is its delta. The delta stays here until
// step_end, and then travels in the commit wave under the hash of the counter's name. Every rank
// adds the same sums to its totals. So a total is as of the last settled step, and a delta counts
// if and only if its step settles. Guarded by session.mutex; any thread.
//
// Ranks add up the deltas of a step in different orders, so no sum of a step may overflow:
// lockstep_counter_add bounds each delta. All ranks add the same sums to a total in the same order,
// so a total may saturate at the end of its range and still be the same on all ranks.

#include "worker/session/counters.h"

#include "base/utf8.h"
#include "worker/session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A name that is cut ends with "~" and four digits of its hash, so that two long names with one
// beginning stay apart.
#define COUNTER_MARK_BYTES 5

struct counter *counter_find_locked(struct lockstep_session *session, uint64_t hash, bool create)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_COUNTERS; i++) {
        struct counter *counter = &session->counters.table[i];
        if (counter->hash == hash)
            return counter;
        if (counter->hash == 0) {
            if (!create)
                return NULL;
            counter->hash = hash;
            return counter;
        }
    }
    return NULL;
}

void counter_note_name(struct counter *counter, const char *name)
{
    const size_t size = strlen(name);
    const bool cut = size >= sizeof(counter->name);
    const size_t room = sizeof(counter->name) - (cut ? COUNTER_MARK_BYTES : 0);
    size_t bytes = 0;
    if (counter->name[0] != '\0' || !utf8_valid(name, size))
        return;
    while (bytes < size && bytes + utf8_length(name + bytes, size - bytes) < room)
        bytes += utf8_length(name + bytes, size - bytes);
    memcpy(counter->name, name, bytes);
    if (cut)
        snprintf(counter->name + bytes, COUNTER_MARK_BYTES + 1, "~%04x",
                 (unsigned)(counter->hash & 0xffff));
}

void counter_tell(const struct lockstep_session *session, struct up_heartbeat *beat)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_COUNTERS; i++) {
        const struct counter *counter = &session->counters.table[i];
        if (counter->name[0] == '\0')
            continue;
        struct counter_state *told = &beat->counters[beat->counter_count++];
        memcpy(told->name, counter->name, sizeof(told->name));
        told->total = counter->total;
    }
}

static int counter_compare(const void *a, const void *b)
{
    const uint64_t x = ((const struct counter_delta *)a)->name;
    const uint64_t y = ((const struct counter_delta *)b)->name;
    return x < y ? -1 : x > y;
}

void counter_contribute(struct lockstep_session *session, struct commit_wave *wave)
{
    mutex_assert_held(&session->mutex);
    wave->counter_count = 0;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_COUNTERS; i++) {
        struct counter *counter = &session->counters.table[i];
        if (counter->hash == 0 || counter->pending == 0)
            continue;
        wave->counters[wave->counter_count++] =
            (struct counter_delta){.name = counter->hash, .delta = counter->pending};
        counter->pending = 0;
    }
    qsort(wave->counters, wave->counter_count, sizeof(wave->counters[0]), counter_compare);
}

void counter_drop_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_COUNTERS; i++)
        session->counters.table[i].pending = 0;
}

static int64_t counter_sum(int64_t total, int64_t delta)
{
    int64_t sum;
    if (__builtin_add_overflow(total, delta, &sum))
        return delta < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

void counter_apply(struct lockstep_session *session, const struct commit_wave *result)
{
    mutex_assert_held(&session->mutex);
    session->counters.overflow |= result->counter_overflow != 0;
    for (uint32_t i = 0; i < result->counter_count; i++) {
        struct counter *counter = counter_find_locked(session, result->counters[i].name, true);
        if (!counter)
            session->counters.overflow = true;
        else
            counter->total = counter_sum(counter->total, result->counters[i].delta);
    }
}
