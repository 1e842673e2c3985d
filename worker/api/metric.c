// SPDX-License-Identifier: Apache-2.0
//
// The public functions of metrics; worker/session/metrics.c has their values. Any thread.

#include "worker/order/metric_list.h"
#include "worker/session/metrics.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <string.h>

static_assert((int)METRIC_SUM == LOCKSTEP_METRIC_SUM && (int)METRIC_MEAN == LOCKSTEP_METRIC_MEAN &&
                  (int)METRIC_MIN == LOCKSTEP_METRIC_MIN && (int)METRIC_MAX == LOCKSTEP_METRIC_MAX,
              "the numbers are the same");

// Checks the name, and copies it.
static int metric_check(struct lockstep_session *session, const char *name,
                        char copy[LOCKSTEP_METRIC_NAME_BYTES])
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    memset(copy, 0, LOCKSTEP_METRIC_NAME_BYTES);
    if (name && strlen(name) < LOCKSTEP_METRIC_NAME_BYTES)
        memcpy(copy, name, strlen(name));
    if (!metric_list_name_valid(copy))
        return error_set(LOCKSTEP_E_INVALID,
                         "a metric's name has 1 to %d letters, digits and _ . / -",
                         LOCKSTEP_METRIC_NAME_BYTES - 1);
    return 0;
}

int lockstep_metric_add(lockstep_session *session, const char *name, lockstep_metric_kind kind,
                        double value)
{
    char copy[LOCKSTEP_METRIC_NAME_BYTES];
    int status = metric_check(session, name, copy);
    if (status < 0)
        return status;
    if ((int)kind < METRIC_SUM || (int)kind > METRIC_MAX)
        return error_set(LOCKSTEP_E_INVALID, "metric '%s': there is no kind %d", copy, (int)kind);
    mutex_lock(&session->mutex);
    status = metrics_add_locked(session, copy, (enum metric_kind)kind, value);
    mutex_unlock(&session->mutex);
    return status;
}

int lockstep_metric_read(lockstep_session *session, const char *name, double *value,
                         uint64_t *count)
{
    char copy[LOCKSTEP_METRIC_NAME_BYTES];
    const int status = metric_check(session, name, copy);
    if (status < 0)
        return status;
    if (!value)
        return error_set(LOCKSTEP_E_INVALID, "value is NULL: nowhere to put the metric's value");
    mutex_lock(&session->mutex);
    const struct metric_part *part = metric_list_find(&session->step.metrics.settled, copy, 0);
    *value = part ? metrics_value(part) : 0;
    if (count)
        *count = part ? part->count : 0;
    mutex_unlock(&session->mutex);
    return 0;
}
