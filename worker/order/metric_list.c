// SPDX-License-Identifier: Apache-2.0
//
// The metrics of a step, as a list in the commit wave. Pure.
//
// Sums are rounded, so the merge of two lists is commutative and not associative. All ranks get the
// same bits all the same: wave.h says why. A result is commutative to the last bit only if NaNs and
// zeros are, too. So every NaN is replaced by one NaN, and -0 counts as less than +0.

#include "worker/order/metric_list.h"

#include "worker/order/order.h"

#include <math.h>
#include <string.h>

bool metric_list_name_valid(const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    const char *end = memchr(name, '\0', LOCKSTEP_METRIC_NAME_BYTES);
    if (!end || end == name || strspn(name, letters) != (size_t)(end - name))
        return false;
    for (const char *at = end; at < name + LOCKSTEP_METRIC_NAME_BYTES; at++) {
        if (*at != '\0')
            return false;
    }
    return true;
}

double metric_list_value(double value)
{
    return isnan(value) ? (double)NAN : value;
}

double metric_list_combine(enum metric_kind kind, double a, double b)
{
    if (isnan(a) || isnan(b))
        return (double)NAN;
    if (kind == METRIC_MIN)
        return a < b || (a == b && signbit(a)) ? a : b;
    if (kind == METRIC_MAX)
        return a > b || (a == b && !signbit(a)) ? a : b;
    return metric_list_value(a + b); // Infinities of both signs add up to a NaN.
}

int metric_list_compare(const struct metric_part *a, const struct metric_part *b)
{
    const int order = memcmp(a->name, b->name, sizeof(a->name));
    if (order != 0)
        return order;
    return a->kind < b->kind ? -1 : a->kind > b->kind;
}

const struct metric_part *metric_list_find(const struct metric_list *list, const char *name,
                                           uint32_t kind)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct metric_part *part = &list->parts[i];
        if (strcmp(part->name, name) == 0 && (kind == 0 || part->kind == kind))
            return part;
    }
    return NULL;
}

static struct metric_part metric_list_sum(const struct metric_part *a, const struct metric_part *b)
{
    struct metric_part sum = *a;
    sum.value = metric_list_combine((enum metric_kind)a->kind, a->value, b->value);
    sum.count += b->count; // LOCKSTEP_MAX_METRIC_VALUES bounds the sum.
    return sum;
}

void metric_list_merge(struct metric_list *into, const struct metric_list *from)
{
    struct metric_part merged[2 * LOCKSTEP_MAX_METRICS];
    uint32_t count = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    while (i < into->count || j < from->count) {
        int order = i >= into->count ? 1 : -1;
        if (i < into->count && j < from->count)
            order = metric_list_compare(&into->parts[i], &from->parts[j]);
        if (order == 0)
            merged[count++] = metric_list_sum(&into->parts[i++], &from->parts[j++]);
        else
            merged[count++] = order < 0 ? into->parts[i++] : from->parts[j++];
    }
    into->overflow |= from->overflow;
    if (count > LOCKSTEP_MAX_METRICS) {
        into->overflow = 1;
        count = LOCKSTEP_MAX_METRICS;
    }
    memcpy(into->parts, merged, count * sizeof(merged[0]));
    into->count = count;
}
