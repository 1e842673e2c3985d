// SPDX-License-Identifier: Apache-2.0
//
// Metrics of the job. The values that a rank adds to a metric are combined here until step_end, and
// then travel in the commit wave under the metric's name. Every rank gets the same bits back
// (worker/order/metric_list.c) and keeps them as the metric's last result. So values count if and
// only if their step settles. Guarded by session.mutex; any thread.
//
// A metric keeps the kind that it had first. Two ranks may use a name that is new to both in one
// step, each for another kind. The result then has two entries of that name, and every rank finds
// the same fault. Results of a name with a fault are dropped, on every rank.

#include "worker/session/metrics.h"

#include "worker/order/metric_list.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <string.h>

const char *metrics_kind_name(uint32_t kind)
{
    static const char *const names[] = {"?", "sum", "mean", "minimum", "maximum"};
    return names[kind <= METRIC_MAX ? kind : 0];
}

double metrics_value(const struct metric_part *part)
{
    return part->kind == METRIC_MEAN ? metric_list_value(part->value / part->count) : part->value;
}

// Returns how many metrics this rank knows, without those of this name.
static uint32_t metrics_others(const struct metrics *metrics, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < metrics->settled.count; i++)
        count += strcmp(metrics->settled.parts[i].name, name) != 0;
    for (uint32_t i = 0; i < metrics->pending.count; i++) {
        const char *other = metrics->pending.parts[i].name;
        count += strcmp(other, name) != 0 && !metric_list_find(&metrics->settled, other, 0);
    }
    return count;
}

static int metrics_check_add(const struct metrics *metrics, const char *name, enum metric_kind kind)
{
    const struct metric_part *pending = metric_list_find(&metrics->pending, name, 0);
    const struct metric_part *settled = metric_list_find(&metrics->settled, name, 0);
    const struct metric_part *known = settled ? settled : pending;
    if (known && known->kind != kind)
        return error_set(LOCKSTEP_E_INVALID, "metric '%s' is a %s; it is now added to as a %s",
                         name, metrics_kind_name(known->kind), metrics_kind_name(kind));
    if (metrics_others(metrics, name) >= LOCKSTEP_MAX_METRICS)
        return error_set(LOCKSTEP_E_INVALID, "a job has at most %d metrics; '%s' is one more",
                         LOCKSTEP_MAX_METRICS, name);
    if (pending && pending->count >= LOCKSTEP_MAX_METRIC_VALUES)
        return error_set(LOCKSTEP_E_INVALID,
                         "metric '%s': a rank adds at most %u values in one step", name,
                         LOCKSTEP_MAX_METRIC_VALUES);
    return 0;
}

int metrics_add_locked(struct lockstep_session *session, const char *name, enum metric_kind kind,
                       double value)
{
    struct metrics *metrics = &session->step.metrics;
    struct metric_list one = {.count = 1};
    mutex_assert_held(&session->mutex);
    const int status = metrics_check_add(metrics, name, kind);
    if (status < 0)
        return status;
    memcpy(one.parts[0].name, name, strlen(name));
    one.parts[0].value = metric_list_value(value);
    one.parts[0].kind = kind;
    one.parts[0].count = 1;
    metric_list_merge(&metrics->pending, &one);
    return 0;
}

void metrics_tell(const struct lockstep_session *session, struct up_heartbeat *beat)
{
    const struct metric_list *settled = &session->step.metrics.settled;
    mutex_assert_held(&session->mutex);
    beat->metric_count = settled->count;
    for (uint32_t i = 0; i < settled->count; i++) {
        struct metric_state *told = &beat->metrics[i];
        memcpy(told->name, settled->parts[i].name, sizeof(told->name));
        told->kind = settled->parts[i].kind;
        told->count = settled->parts[i].count;
        told->value = metrics_value(&settled->parts[i]);
    }
}

void metrics_contribute(struct lockstep_session *session, struct commit_wave *wave)
{
    mutex_assert_held(&session->mutex);
    wave->metrics = session->step.metrics.pending;
    metrics_drop_locked(session);
}

void metrics_drop_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    memset(&session->step.metrics.pending, 0, sizeof(session->step.metrics.pending));
}

// Returns the kind that a name has in a list, if it is another one than that of `part`; else 0.
static uint32_t metrics_other_kind(const struct metric_list *list, const struct metric_part *part)
{
    for (uint32_t kind = METRIC_SUM; kind <= METRIC_MAX; kind++) {
        if (kind != part->kind && metric_list_find(list, part->name, kind))
            return kind;
    }
    return 0;
}

// Returns another kind of that name, which the job knew before this step or has in this step; 0:
// there is none.
static uint32_t metrics_disputed(const struct metrics *metrics, const struct commit_wave *result,
                                 const struct metric_part *part)
{
    const uint32_t before = metrics_other_kind(&metrics->settled, part);
    return before != 0 ? before : metrics_other_kind(&result->metrics, part);
}

// Takes over one result. A new name needs room.
static void metrics_store(struct metric_list *settled, const struct metric_part *part)
{
    uint32_t at = 0;
    while (at < settled->count && metric_list_compare(&settled->parts[at], part) < 0)
        at++;
    if (at == settled->count || metric_list_compare(&settled->parts[at], part) != 0) {
        if (settled->count == LOCKSTEP_MAX_METRICS)
            return;
        memmove(&settled->parts[at + 1], &settled->parts[at],
                (settled->count - at) * sizeof(*part));
        settled->count++;
    }
    settled->parts[at] = *part;
}

void metrics_apply(struct lockstep_session *session, const struct commit_wave *result)
{
    struct metrics *metrics = &session->step.metrics;
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < result->metrics.count; i++) {
        if (metrics_disputed(metrics, result, &result->metrics.parts[i]) == 0)
            metrics_store(&metrics->settled, &result->metrics.parts[i]);
    }
}

struct metrics_fault metrics_find_fault(struct lockstep_session *session,
                                        const struct commit_wave *result)
{
    struct metrics_fault fault = {.many = result->metrics.overflow != 0};
    mutex_lock(&session->mutex);
    for (uint32_t i = 0; i < result->metrics.count && !fault.many && !fault.name; i++) {
        const struct metric_part *part = &result->metrics.parts[i];
        const uint32_t other = metrics_disputed(&session->step.metrics, result, part);
        if (other != 0)
            fault = (struct metrics_fault){.name = part, .kinds = {part->kind, other}};
        else
            fault.many = !metric_list_find(&session->step.metrics.settled, part->name, 0);
    }
    mutex_unlock(&session->mutex);
    return fault;
}
