// SPDX-License-Identifier: Apache-2.0
//
// The public functions of job-wide counters; worker/session/counters.c has the table. Any thread.
//
// The functions for marks of the trainer are here, too.

#include "worker/session/counters.h"

#include "base/hash64.h"
#include "base/utf8.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <string.h>

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

// Adds delta to the counter, and creates the counter if needed. A refused delta creates none,
// and neither does 0.
static int counter_add_locked(struct lockstep_session *session, const char *name, int64_t delta)
{
    const uint64_t hash = hash64(name, strlen(name));
    struct counter *counter = counter_find_locked(session, hash);
    const int status = counter_check_sum(!counter ? 0 : counter->pending, name, delta);
    if (status < 0)
        return status;
    if (!counter && delta == 0) // Nothing travels, so no other rank would know the counter.
        return 0;
    if (!counter)
        counter = counter_create_locked(session, hash);
    if (!counter)
        return error_set(LOCKSTEP_E_INVALID, "a job has at most %d counters; '%s' is one more",
                         LOCKSTEP_MAX_COUNTERS, name);
    counter_note_name(counter, name);
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
    struct counter *counter;
    const int status = counter_check(session, name);
    if (status < 0)
        return status;
    if (!total)
        return error_set(LOCKSTEP_E_INVALID, "total is NULL: nowhere to put the counter's value");
    mutex_lock(&session->mutex);
    counter = counter_find_locked(session, hash64(name, strlen(name)));
    if (counter)
        counter_note_name(counter, name);
    *total = !counter ? 0 : counter->total;
    mutex_unlock(&session->mutex);
    return 0;
}

// ---- Marks and pauses -------------------------------------------------------------------------

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
