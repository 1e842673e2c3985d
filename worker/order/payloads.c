// SPDX-License-Identifier: Apache-2.0
//
// The payloads of the exchanges of a step, and how two payloads are merged. Pure. A merge is exact,
// commutative and associative, so all ranks get the same bits, whatever the shape of the tree. The
// exception are metrics, whose merge is commutative only: see metric_list.c.

#include "worker/order/payloads.h"

#include "worker/order/metric_list.h"
#include "worker/order/parts.h"

#include <assert.h>
#include <string.h>

void order_open_merge(void *into, const void *from)
{
    struct open_wave *a = into;
    const struct open_wave *b = from;
    a->exhausted += b->exhausted;
    if (b->first >= a->first)
        return;
    a->first = b->first;
    memcpy(a->phase, b->phase, sizeof(a->phase));
}

int order_call_compare(const struct call_id *a, const struct call_id *b)
{
    if (a->call != b->call)
        return a->call < b->call ? -1 : 1;
    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    return 0;
}

static bool close_contains(const struct close_wave *wave, const struct call_id *id)
{
    for (uint32_t i = 0; i < wave->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS; i++) {
        if (order_call_compare(&wave->extras[i], id) == 0)
            return true;
    }
    return false;
}

void order_close_add(struct close_wave *wave, struct call_id id)
{
    uint32_t kept = wave->extra_total;
    if (close_contains(wave, &id))
        return;
    if (kept >= LOCKSTEP_MAX_EXTRA_CALLS) {
        wave->extra_total = LOCKSTEP_MAX_EXTRA_CALLS + 1;
        kept = LOCKSTEP_MAX_EXTRA_CALLS;
        if (order_call_compare(&id, &wave->extras[kept - 1]) > 0)
            return;
        kept--;
    } else {
        wave->extra_total++;
    }
    uint32_t at = kept;
    while (at > 0 && order_call_compare(&wave->extras[at - 1], &id) > 0) {
        wave->extras[at] = wave->extras[at - 1];
        at--;
    }
    wave->extras[at] = id;
}

void order_close_merge(void *into, const void *from)
{
    struct close_wave *a = into;
    const struct close_wave *b = from;
    const bool saturated =
        a->extra_total > LOCKSTEP_MAX_EXTRA_CALLS || b->extra_total > LOCKSTEP_MAX_EXTRA_CALLS;
    a->too_many |= b->too_many;
    if (b->plan_number < a->plan_number)
        a->plan_number = b->plan_number;
    for (uint32_t i = 0; i < b->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS; i++)
        order_close_add(a, b->extras[i]);
    if (saturated)
        a->extra_total = LOCKSTEP_MAX_EXTRA_CALLS + 1;
}

int order_unused_compare(const struct unused_parameter *a, const struct unused_parameter *b)
{
    if (a->severity != b->severity)
        return a->severity < b->severity ? -1 : 1;
    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    if (a->call != b->call)
        return a->call < b->call ? -1 : 1;
    if (a->parameter != b->parameter)
        return a->parameter < b->parameter ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return 0;
}

static void commit_merge_unused(struct commit_wave *a, const struct commit_wave *b)
{
    struct unused_parameter merged[ORDER_UNUSED_NAMED];
    uint32_t count = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    while (count < ORDER_UNUSED_NAMED && (i < a->unused_named || j < b->unused_named)) {
        const bool take_a =
            j >= b->unused_named ||
            (i < a->unused_named && order_unused_compare(&a->unused[i], &b->unused[j]) <= 0);
        merged[count++] = take_a ? a->unused[i++] : b->unused[j++];
    }
    memcpy(a->unused, merged, count * sizeof(merged[0]));
    a->unused_named = count;
    a->unused_total += b->unused_total;
    a->unused_errors += b->unused_errors;
    a->unused_warnings += b->unused_warnings;
}

int order_aborted_compare(const struct aborted_call *a, const struct aborted_call *b)
{
    if (a->accepted != b->accepted)
        return a->accepted < b->accepted ? -1 : 1;
    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return 0;
}

static void commit_merge_aborted(struct commit_wave *a, const struct commit_wave *b)
{
    struct aborted_call merged[ORDER_ABORTED_NAMED];
    uint32_t count = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    while (count < ORDER_ABORTED_NAMED && (i < a->aborted_named || j < b->aborted_named)) {
        const bool take_a =
            j >= b->aborted_named ||
            (i < a->aborted_named && order_aborted_compare(&a->aborted[i], &b->aborted[j]) <= 0);
        merged[count++] = take_a ? a->aborted[i++] : b->aborted[j++];
    }
    memcpy(a->aborted, merged, count * sizeof(merged[0]));
    a->aborted_named = count;
    a->aborted_total += b->aborted_total;
    a->aborted_errors += b->aborted_errors;
}

static void commit_merge_counters(struct commit_wave *a, const struct commit_wave *b)
{
    struct counter_delta merged[2 * LOCKSTEP_MAX_COUNTERS];
    uint32_t count = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    assert(a->counter_count <= LOCKSTEP_MAX_COUNTERS && b->counter_count <= LOCKSTEP_MAX_COUNTERS);
    while (i < a->counter_count || j < b->counter_count) {
        if (j >= b->counter_count ||
            (i < a->counter_count && a->counters[i].name < b->counters[j].name)) {
            merged[count++] = a->counters[i++];
        } else if (i >= a->counter_count || b->counters[j].name < a->counters[i].name) {
            merged[count++] = b->counters[j++];
        } else {
            merged[count] = a->counters[i++];
            merged[count++].delta += b->counters[j++].delta; // LOCKSTEP_MAX_COUNT bounds the sum.
        }
    }
    a->counter_overflow |= b->counter_overflow;
    if (count > LOCKSTEP_MAX_COUNTERS) {
        a->counter_overflow = 1;
        count = LOCKSTEP_MAX_COUNTERS;
    }
    memcpy(a->counters, merged, count * sizeof(merged[0]));
    a->counter_count = count;
}

void order_commit_merge(void *into, const void *from)
{
    struct commit_wave *a = into;
    const struct commit_wave *b = from;
    a->called |= b->called;
    a->weighted |= b->weighted;
    commit_merge_unused(a, b);
    commit_merge_aborted(a, b);
    commit_merge_counters(a, b);
    metric_list_merge(&a->metrics, &b->metrics);
}
