// SPDX-License-Identifier: Apache-2.0
//
// Checks whether an honest peer can have sent the payload of a wave. Every number in a received
// payload is checked here before it is used as an index, a count or a bound. Pure, any thread.
//
// A payload can be the merged payloads of several ranks. If two payloads of different ranks pass
// the check, their merged payload passes, too. So a rank that checks every payload that it receives
// never sends a payload that another rank refuses, and a peer whose payload is refused has made the
// payload up.

#include "worker/order/check.h"

#include "base/utf8.h"
#include "worker/order/metric_list.h"
#include "worker/order/parts.h"
#include "worker/order/payloads.h"
#include "worker/transport/flow/wave.h"

#include <string.h>

// ---- The open wave -----------------------------------------------------------------------------

// True if the phase is valid UTF-8, padded with zeros.
static bool check_phase(const char *phase)
{
    const char *end = memchr(phase, '\0', LOCKSTEP_NAME_BYTES);
    if (!end || !utf8_valid(phase, (size_t)(end - phase)))
        return false;
    for (const char *at = end; at < phase + LOCKSTEP_NAME_BYTES; at++) {
        if (*at != '\0')
            return false;
    }
    return true;
}

const char *order_open_check(const void *context, const struct wave_origin *origin,
                             const void *payload, const void *own)
{
    const struct open_wave *wave = payload;
    const uint32_t ranks = wave_origin_ranks(origin);
    (void)context;
    (void)own;
    if (wave->exhausted > ranks)
        return "it counts more ranks without data than it speaks for";
    if ((wave->first == OPEN_NOBODY) != (wave->exhausted == ranks))
        return "it names no rank with data although there are some, or one although there are none";
    if (wave->first != OPEN_NOBODY && !wave_origin_has(origin, wave->first))
        return "it names a rank with data that it does not speak for";
    if (!check_phase(wave->phase) || (wave->first == OPEN_NOBODY && wave->phase[0] != '\0'))
        return "its phase is no text";
    return NULL;
}

// ---- The close wave ----------------------------------------------------------------------------

static const char *check_extra(const struct wave_bounds *bounds, const struct close_wave *wave,
                               uint32_t index)
{
    const struct call_id *extra = &wave->extras[index];
    if (extra->module >= bounds->module_count)
        return "it names a module that is not registered";
    if (extra->call >= bounds->calls[extra->module])
        return "it names a call that its module cannot have";
    if (index > 0 && order_call_compare(&wave->extras[index - 1], extra) >= 0)
        return "its calls are not in order";
    return NULL;
}

const char *order_close_check(const void *context, const struct wave_origin *origin,
                              const void *payload, const void *own)
{
    const struct close_wave *wave = payload;
    const struct close_wave *held = own;
    const char *wrong = NULL;
    if (wave->extra_total > LOCKSTEP_MAX_EXTRA_CALLS + 1 || wave->too_many > 1)
        return "it counts more calls than a close wave does";
    for (uint32_t i = 0; i < wave->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS && !wrong; i++)
        wrong = check_extra(context, wave, i);
    // The number is the minimum over all ranks, and this rank is one of them.
    if (!wrong && wave_origin_ranks(origin) == origin->world &&
        wave->plan_number > held->plan_number)
        wrong = "it is the agreement of all ranks on a plan that this rank does not have";
    return wrong;
}

// ---- The commit wave ---------------------------------------------------------------------------

static const char *check_unused_one(const struct wave_bounds *bounds,
                                    const struct wave_origin *origin,
                                    const struct commit_wave *wave, uint32_t index)
{
    const struct unused_parameter *unused = &wave->unused[index];
    if (unused->module >= bounds->module_count)
        return "it names a module that is not registered";
    if (unused->parameter >= bounds->parameters[unused->module])
        return "it names a parameter that its module does not have";
    if (unused->call >= bounds->calls[unused->module])
        return "it names a call that its module cannot have";
    if (!wave_origin_has(origin, unused->rank))
        return "it names a rank that it does not speak for";
    if (unused->severity > UNUSED_IS_ACCEPTED)
        return "it names a parameter without a policy";
    if (index > 0 && order_unused_compare(&wave->unused[index - 1], unused) >= 0)
        return "its parameters are not in order";
    return NULL;
}

// Returns the most (parameter, rank) pairs without a gradient that `ranks` ranks can count.
static uint64_t check_unused_most(const struct wave_bounds *bounds, uint32_t ranks)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < bounds->module_count; i++)
        most += (uint64_t)bounds->parameters[i] * bounds->calls[i];
    return most * ranks;
}

static const char *check_unused(const struct wave_bounds *bounds, const struct wave_origin *origin,
                                const struct commit_wave *wave)
{
    const uint64_t total = wave->unused_total;
    uint64_t named[UNUSED_IS_ACCEPTED + 1] = {0};
    if (wave->unused_named > ORDER_UNUSED_NAMED || wave->unused_named > total)
        return "it names more unused parameters than it counts";
    if (total > check_unused_most(bounds, wave_origin_ranks(origin)) ||
        wave->unused_errors > total || wave->unused_warnings > total - wave->unused_errors)
        return "it counts more unused parameters than there are";
    for (uint32_t i = 0; i < wave->unused_named; i++) {
        const char *wrong = check_unused_one(bounds, origin, wave, i);
        if (wrong)
            return wrong;
        named[wave->unused[i].severity]++;
    }
    if (named[UNUSED_IS_ERROR] > wave->unused_errors ||
        named[UNUSED_IS_WARNING] > wave->unused_warnings ||
        named[UNUSED_IS_ACCEPTED] > total - wave->unused_errors - wave->unused_warnings)
        return "it names more unused parameters than it counts";
    return NULL;
}

static const char *check_aborted_one(const struct wave_bounds *bounds,
                                     const struct wave_origin *origin,
                                     const struct commit_wave *wave, uint32_t index)
{
    const struct aborted_call *aborted = &wave->aborted[index];
    if (aborted->module >= bounds->module_count)
        return "it names a module that is not registered";
    if (!wave_origin_has(origin, aborted->rank))
        return "it names a rank that it does not speak for";
    if (aborted->accepted > 1)
        return "it names a call that was given up without a policy";
    if (index > 0 && order_aborted_compare(&wave->aborted[index - 1], aborted) >= 0)
        return "its calls that were given up are not in order";
    return NULL;
}

static const char *check_aborted(const struct wave_bounds *bounds, const struct wave_origin *origin,
                                 const struct commit_wave *wave)
{
    uint32_t accepted = 0;
    if (wave->aborted_named > ORDER_ABORTED_NAMED || wave->aborted_named > wave->aborted_total)
        return "it names more calls that were given up than it counts";
    if (wave->aborted_total > bounds->module_count * wave_origin_ranks(origin) ||
        wave->aborted_errors > wave->aborted_total)
        return "it counts more calls that were given up than there are";
    for (uint32_t i = 0; i < wave->aborted_named; i++) {
        const char *wrong = check_aborted_one(bounds, origin, wave, i);
        if (wrong)
            return wrong;
        accepted += wave->aborted[i].accepted;
    }
    if (accepted > wave->aborted_total - wave->aborted_errors ||
        wave->aborted_named - accepted > wave->aborted_errors)
        return "it names more calls that were given up than it counts";
    return NULL;
}

static const char *check_counters(const struct wave_origin *origin, const struct commit_wave *wave)
{
    const int64_t most = LOCKSTEP_MAX_COUNT * (int64_t)wave_origin_ranks(origin);
    if (wave->counter_count > LOCKSTEP_MAX_COUNTERS || wave->counter_overflow > 1)
        return "it has more counters than a job may have";
    for (uint32_t i = 0; i < wave->counter_count; i++) {
        if (wave->counters[i].name <= (i > 0 ? wave->counters[i - 1].name : 0))
            return "its counters are not in order";
        if (wave->counters[i].delta < -most || wave->counters[i].delta > most)
            return "it adds more to a counter than its ranks can";
    }
    return NULL;
}

static const char *check_metric(const struct wave_origin *origin, const struct metric_list *list,
                                uint32_t index)
{
    const struct metric_part *part = &list->parts[index];
    if (!metric_list_name_valid(part->name))
        return "a metric has no name";
    if (part->kind < METRIC_SUM || part->kind > METRIC_MAX)
        return "a metric is of no kind";
    if (part->count == 0 ||
        part->count > (uint64_t)LOCKSTEP_MAX_METRIC_VALUES * wave_origin_ranks(origin))
        return "a metric has more values than its ranks can add, or none";
    if (index > 0 && metric_list_compare(&list->parts[index - 1], part) >= 0)
        return "its metrics are not in order";
    return NULL;
}

static const char *check_metrics(const struct wave_origin *origin, const struct metric_list *list)
{
    const char *wrong = NULL;
    if (list->count > LOCKSTEP_MAX_METRICS || list->overflow > 1)
        return "it has more metrics than a job may have";
    for (uint32_t i = 0; i < list->count && !wrong; i++)
        wrong = check_metric(origin, list, i);
    return wrong;
}

const char *order_commit_check(const void *context, const struct wave_origin *origin,
                               const void *payload, const void *own)
{
    const struct wave_bounds *bounds = context;
    const struct commit_wave *wave = payload;
    const uint64_t modules =
        bounds->module_count < 64 ? ((uint64_t)1 << bounds->module_count) - 1 : UINT64_MAX;
    const char *wrong = check_unused(bounds, origin, wave);
    (void)own;
    if (!wrong)
        wrong = check_aborted(bounds, origin, wave);
    if (!wrong)
        wrong = check_counters(origin, wave);
    if (!wrong)
        wrong = check_metrics(origin, &wave->metrics);
    if (!wrong && (wave->called & ~modules) != 0)
        wrong = "it says that a module was called that is not registered";
    if (!wrong && (wave->weighted & ~wave->called) != 0)
        wrong = "it gives a weight to a module that no rank has called";
    return wrong;
}
