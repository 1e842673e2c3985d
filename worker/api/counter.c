// SPDX-License-Identifier: Apache-2.0
//
// Job-wide counters. A delta is kept here until step_end, travels in the commit wave under the hash
// of its name, and every rank adds the same sums to its totals. So a total is as of a step, and a
// delta counts exactly when its step did. Guarded by session.mutex; any thread.
//
// Ranks add up the deltas of a step in different orders. So no sum of a step may leave the range:
// it is bounded where it comes in. All ranks add the same sums to a total in the same order, so a
// total may stop at the end of the range, and is the same on all of them.
//
// The functions for the marks of the trainer live here too: they are as small and as passive.

#include "worker/api/counter.h"

#include "base/hash64.h"
#include "base/utf8.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct counter *counter_find_locked(struct lockstep_session *session, uint64_t hash,
                                           bool create)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_COUNTERS; i++) {
        struct counter *counter = &session->counters[i];
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

static int counter_check(struct lockstep_session *session, const char *name)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!name || name[0] == '\0' || strlen(name) >= LOCKSTEP_NAME_BYTES)
        return error_set(LOCKSTEP_E_INVALID, "a counter's name has 1 to %d bytes",
                         LOCKSTEP_NAME_BYTES - 1);
    return 0;
}

static int counter_check_sum(int64_t pending, const char *name, int64_t delta)
{
    if (delta < -LOCKSTEP_MAX_COUNT - pending || delta > LOCKSTEP_MAX_COUNT - pending)
        return error_set(LOCKSTEP_E_INVALID,
                         "counter '%s': %" PRId64 " and %" PRId64 " more in this step are beyond "
                         "2^%d, the most that a rank adds in one step",
                         name, pending, delta, LOCKSTEP_MAX_COUNT_BITS);
    return 0;
}

// What is refused leaves no counter behind.
static int counter_add_locked(struct lockstep_session *session, const char *name, int64_t delta)
{
    const uint64_t hash = hash64(name, strlen(name));
    struct counter *counter = counter_find_locked(session, hash, false);
    const int status = counter_check_sum(!counter ? 0 : counter->pending, name, delta);
    if (status < 0)
        return status;
    if (!counter)
        counter = counter_find_locked(session, hash, true);
    if (!counter)
        return error_set(LOCKSTEP_E_INVALID, "a job has at most %d counters; '%s' is one more",
                         LOCKSTEP_MAX_COUNTERS, name);
    counter->pending += delta;
    return 0;
}

int lockstep_counter_add(lockstep_session *session, const char *name, int64_t delta)
{
    int status = counter_check(session, name);
    if (status < 0)
        return status;
    mutex_lock(&session->mutex);
    status = counter_add_locked(session, name, delta);
    mutex_unlock(&session->mutex);
    return status;
}

int lockstep_counter_read(lockstep_session *session, const char *name, int64_t *total)
{
    const struct counter *counter;
    const int status = counter_check(session, name);
    if (status < 0)
        return status;
    if (!total)
        return error_set(LOCKSTEP_E_INVALID, "total is NULL: nowhere to put the counter's value");
    mutex_lock(&session->mutex);
    counter = counter_find_locked(session, hash64(name, strlen(name)), false);
    *total = !counter ? 0 : counter->total;
    mutex_unlock(&session->mutex);
    return 0;
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
        struct counter *counter = &session->counters[i];
        if (counter->hash == 0 || counter->pending == 0)
            continue;
        wave->counters[wave->counter_count++] =
            (struct counter_delta){.name = counter->hash, .delta = counter->pending};
        counter->pending = 0;
    }
    qsort(wave->counters, wave->counter_count, sizeof(wave->counters[0]), counter_compare);
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
    session->counter_overflow |= result->counter_overflow != 0;
    for (uint32_t i = 0; i < result->counter_count; i++) {
        struct counter *counter = counter_find_locked(session, result->counters[i].name, true);
        if (!counter)
            session->counter_overflow = true;
        else
            counter->total = counter_sum(counter->total, result->counters[i].delta);
    }
}

// ---- Where the trainer is ----------------------------------------------------------------------

static int counter_check_mark(struct lockstep_session *session, const char *text)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!text || !utf8_valid(text, strlen(text)))
        return error_set(LOCKSTEP_E_INVALID, "a mark is a text in UTF-8");
    return 0;
}

int lockstep_mark(lockstep_session *session, const char *text)
{
    const int status = counter_check_mark(session, text);
    if (status < 0)
        return status;
    mutex_lock(&session->mutex);
    progress_mark_locked(&session->tracker, text);
    mutex_unlock(&session->mutex);
    return 0;
}

int lockstep_pause(lockstep_session *session, const char *reason, uint64_t expected_ms)
{
    const char *text = !reason ? "paused" : reason;
    const int status = counter_check_mark(session, text);
    if (status < 0)
        return status;
    const struct visit visit = progress_enter(&session->tracker, API_PAUSE, PROGRESS_NO_MODULE, 0);
    mutex_lock(&session->mutex);
    progress_pause_locked(&session->tracker, text, expected_ms);
    mutex_unlock(&session->mutex);
    return progress_leave(&visit, 0);
}

int lockstep_resume(lockstep_session *session)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    const struct visit visit = progress_enter(&session->tracker, API_RESUME, PROGRESS_NO_MODULE, 0);
    mutex_lock(&session->mutex);
    progress_resume_locked(&session->tracker);
    mutex_unlock(&session->mutex);
    return progress_leave(&visit, 0);
}
