// SPDX-License-Identifier: Apache-2.0
//
// Job-wide counters. What a rank adds to a counter is its delta. The delta stays here until
// step_end, and then travels in the commit wave under the hash of the counter's name. Every rank
// adds the same sums to its totals. So a total is as of the last settled step, and a delta counts
// if and only if its step settles. Guarded by session.mutex; any thread.
//
// A job has LOCKSTEP_MAX_COUNTERS counters: the names that settled steps have added to first, and
// among those of one step the ones with the lowest hashes. So all ranks have the same ones. A name
// that only this rank has used so far is in the table, too, and takes no room of theirs.
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

// Returns the entry of a name, or the free entry where it belongs. NULL: neither is there.
static struct counter *counter_entry(struct lockstep_session *session, uint64_t hash)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < COUNTER_ENTRIES; i++) {
        struct counter *counter = &session->counters.table[i];
        if (counter->hash == hash || counter->hash == 0)
            return counter;
    }
    return NULL;
}

struct counter *counter_find_locked(struct lockstep_session *session, uint64_t hash)
{
    struct counter *counter = counter_entry(session, hash);
    return counter && counter->hash == hash ? counter : NULL;
}

struct counter *counter_create_locked(struct lockstep_session *session, uint64_t hash)
{
    struct counter *counter = counter_entry(session, hash);
    if (!counter || counter - session->counters.table >= LOCKSTEP_MAX_COUNTERS)
        return NULL;
    counter->hash = hash;
    return counter;
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
    for (uint32_t i = 0; i < COUNTER_ENTRIES && beat->counter_count < LOCKSTEP_MAX_COUNTERS; i++) {
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

// The table may have more pending names than a wave: those that only this rank knows, beside those
// that other ranks have added to since.
void counter_contribute(struct lockstep_session *session, struct commit_wave *wave)
{
    struct counter_delta deltas[COUNTER_ENTRIES];
    uint32_t count = 0;
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < COUNTER_ENTRIES; i++) {
        struct counter *counter = &session->counters.table[i];
        if (counter->pending == 0)
            continue;
        deltas[count++] = (struct counter_delta){.name = counter->hash, .delta = counter->pending};
        counter->pending = 0;
    }
    qsort(deltas, count, sizeof(deltas[0]), counter_compare);
    wave->counter_overflow = count > LOCKSTEP_MAX_COUNTERS;
    wave->counter_count = wave->counter_overflow ? LOCKSTEP_MAX_COUNTERS : count;
    memcpy(wave->counters, deltas, wave->counter_count * sizeof(deltas[0]));
}

void counter_drop_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < COUNTER_ENTRIES; i++)
        session->counters.table[i].pending = 0;
}

static int64_t counter_sum(int64_t total, int64_t delta)
{
    int64_t sum;
    if (__builtin_add_overflow(total, delta, &sum))
        return delta < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

// Every rank settles the same names in the same order, so all ranks refuse the same one.
static struct counter *counter_settle(struct lockstep_session *session, uint64_t hash)
{
    struct counter *counter = counter_entry(session, hash);
    if (counter && counter->settled)
        return counter;
    if (!counter || session->counters.settled == LOCKSTEP_MAX_COUNTERS)
        return NULL;
    counter->hash = hash;
    counter->settled = true;
    session->counters.settled++;
    return counter;
}

// Forgets the names that only this rank has used, if there is no room for any of them.
static void counter_forget_refused(struct lockstep_session *session)
{
    struct counter *table = session->counters.table;
    uint32_t kept = 0;
    if (session->counters.settled < LOCKSTEP_MAX_COUNTERS)
        return;
    for (uint32_t i = 0; i < COUNTER_ENTRIES; i++) {
        const struct counter counter = table[i];
        memset(&table[i], 0, sizeof(table[i]));
        if (counter.settled || counter.pending != 0)
            table[kept++] = counter;
    }
}

void counter_apply(struct lockstep_session *session, const struct commit_wave *result)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < result->counter_count; i++) {
        struct counter *counter = counter_settle(session, result->counters[i].name);
        if (counter)
            counter->total = counter_sum(counter->total, result->counters[i].delta);
    }
    counter_forget_refused(session);
}

bool counter_is_many(struct lockstep_session *session, const struct commit_wave *result)
{
    bool many = result->counter_overflow != 0;
    mutex_lock(&session->mutex);
    for (uint32_t i = 0; i < result->counter_count && !many; i++) {
        const struct counter *counter = counter_find_locked(session, result->counters[i].name);
        many = !counter || !counter->settled;
    }
    mutex_unlock(&session->mutex);
    return many;
}
