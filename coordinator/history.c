// SPDX-License-Identifier: Apache-2.0
//
// A job's whole run: step times, communication, and metrics. These are the job's metrics and
// counters, which rank 0 reports, and numbers in the marks of its ranks. The mark "epoch 3
// loss=0.41 lr=1e-3" has two numbers, `loss` and `lr`. Where both have one name, the mark's number
// is left out. A job keeps the first LOCKSTEP_JOB_METRICS names. Runs inside coordinator_step.

#include "coordinator/history.h"

#include "coordinator/core.h"
#include "coordinator/job.h"

#include <stdlib.h>

#define HISTORY_NUMBER_BYTES 32
#define HISTORY_MOST 1e30 // A metric of a larger absolute value is ignored.

void history_init(struct history *history)
{
    history->count = 0;
    history->samples_each = 1;
    history->samples_last = 0;
    history->metric_count = 0;
}

// ---- Metrics -----------------------------------------------------------------------------------

struct history_sums {
    double sum[LOCKSTEP_JOB_METRICS];
    uint32_t ranks[LOCKSTEP_JOB_METRICS]; // Number of ranks that reported the metric.
    uint32_t agreed; // Bit i: rank 0 reports metric i for all ranks.
};

// Returns the index of a metric, and adds a new one; LOCKSTEP_JOB_METRICS: there is no room for it.
static uint32_t history_metric(struct history *history, const char *name, size_t bytes)
{
    uint32_t index = 0;
    while (index < history->metric_count && (strncmp(history->names[index], name, bytes) != 0 ||
                                             history->names[index][bytes] != '\0'))
        index++;
    if (index < history->metric_count || index == LOCKSTEP_JOB_METRICS)
        return index;
    memcpy(history->names[index], name, bytes);
    history->names[index][bytes] = '\0';
    history->metric_count++;
    return index;
}

// Parses a text that is one decimal number. strtod alone would also accept "inf" and "0x1".
static bool history_number(const char *text, size_t bytes, double *number)
{
    char copy[HISTORY_NUMBER_BYTES];
    char *end;
    if (bytes == 0 || bytes >= sizeof(copy) || strspn(text, "+-.0123456789eE") < bytes)
        return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    *number = strtod(copy, &end);
    return *end == '\0' && *number > -HISTORY_MOST && *number < HISTORY_MOST;
}

// Adds the metric that a word of a mark has, if it is "name=number".
static void history_word(struct history *history, const char *word, size_t bytes,
                         struct history_sums *sums)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    const size_t name = strspn(word, letters);
    double number;
    if (name == 0 || name >= bytes || name >= LOCKSTEP_METRIC_NAME_BYTES || word[name] != '=' ||
        !history_number(word + name + 1, bytes - name - 1, &number))
        return;
    const uint32_t index = history_metric(history, word, name);
    if (index == LOCKSTEP_JOB_METRICS || (sums->agreed >> index & 1) != 0)
        return;
    sums->sum[index] += number;
    sums->ranks[index]++;
}

static void history_mark(struct history *history, const char *mark, struct history_sums *sums)
{
    static const char between[] = " ,;";
    for (mark += strspn(mark, between); *mark; mark += strspn(mark, between)) {
        const size_t bytes = strcspn(mark, between);
        history_word(history, mark, bytes, sums);
        mark += bytes;
    }
}

// Takes a number that all ranks agree on.
static void history_agreed(struct history *history, const char *name, double number,
                           struct history_sums *sums)
{
    const size_t bytes = strlen(name);
    if (bytes == 0 || !(number > -HISTORY_MOST && number < HISTORY_MOST))
        return;
    const uint32_t index = history_metric(history, name, bytes);
    if (index == LOCKSTEP_JOB_METRICS || (sums->agreed >> index & 1) != 0)
        return;
    sums->sum[index] = number;
    sums->ranks[index] = 1;
    sums->agreed |= 1u << index;
}

static void history_numbers(struct history *history, const struct up_heartbeat *beat,
                            struct history_sums *sums)
{
    for (uint32_t i = 0; i < beat->metric_count; i++)
        history_agreed(history, beat->metrics[i].name, beat->metrics[i].value, sums);
    for (uint32_t i = 0; i < beat->counter_count; i++)
        history_agreed(history, beat->counters[i].name, (double)beat->counters[i].total, sums);
}

static void history_metrics(struct coordinator *core, struct job *job, struct history_slot *sample)
{
    struct history_sums sums = {.ranks = {0}};
    if (job->count > 0)
        history_numbers(&job->history, &job_worker(core, job, 0)->heartbeat, &sums);
    for (uint32_t i = 0; i < job->count; i++)
        history_mark(&job->history, job_worker(core, job, i)->heartbeat.mark, &sums);
    sample->known = 0;
    for (uint32_t m = 0; m < LOCKSTEP_JOB_METRICS; m++) {
        sample->metrics[m] = sums.ranks[m] > 0 ? (float)(sums.sum[m] / sums.ranks[m]) : 0;
        sample->known |= (uint32_t)(sums.ranks[m] > 0) << m;
    }
}

// ---- Slots -------------------------------------------------------------------------------------

// Merges a later slot into `slot`. The weights of their metrics are `samples` for the later slot
// and `others` for `slot`.
static void history_merge(struct history_slot *slot, const struct history_slot *later,
                          uint32_t samples, uint32_t others)
{
    const float share = (float)samples / (float)(samples + others);
    slot->at_ms = later->at_ms;
    slot->span_ms += later->span_ms;
    slot->steps += later->steps;
    slot->exposed_us += later->exposed_us;
    slot->hidden_us += later->hidden_us;
    slot->bytes += later->bytes;
    for (uint32_t m = 0; m < LOCKSTEP_JOB_METRICS; m++) {
        const bool known = (slot->known >> m & 1) != 0;
        if ((later->known >> m & 1) == 0)
            continue;
        slot->metrics[m] =
            known ? slot->metrics[m] * (1 - share) + later->metrics[m] * share : later->metrics[m];
    }
    slot->known |= later->known;
}

static void history_halve(struct history *history)
{
    for (uint32_t i = 0; i < LOCKSTEP_HISTORY_SLOTS / 2; i++) {
        struct history_slot slot = history->slots[2 * i];
        history_merge(&slot, &history->slots[2 * i + 1], 1, 1);
        history->slots[i] = slot;
    }
    history->count = LOCKSTEP_HISTORY_SLOTS / 2;
    history->samples_each *= 2;
    history->samples_last = history->samples_each;
}

void history_add(struct coordinator *core, struct job *job, struct history_slot *sample)
{
    struct history *history = &job->history;
    history_metrics(core, job, sample);
    if (history->count > 0 && history->samples_last < history->samples_each) {
        history_merge(&history->slots[history->count - 1], sample, 1, history->samples_last);
        history->samples_last++;
        return;
    }
    if (history->count == LOCKSTEP_HISTORY_SLOTS)
        history_halve(history);
    history->slots[history->count++] = *sample;
    history->samples_last = 1;
}

void history_amend(struct coordinator *core, struct job *job, struct history_slot *more)
{
    struct history *history = &job->history;
    if (history->count == 0)
        return;
    struct history_slot *last = &history->slots[history->count - 1];
    more->at_ms = last->at_ms;
    history_metrics(core, job, more);
    history_merge(last, more, 1, history->samples_last);
}

bool coordinator_history_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                              uint64_t now_ms, struct history_view *view)
{
    memset(view, 0, sizeof(*view));
    if (job >= coordinator->job_count)
        return false;
    const struct history *history = &coordinator->jobs[coordinator->job_order[job]].history;
    if (index >= history->count)
        return false;
    const struct history_slot *slot = &history->slots[index];
    view->age_ms = now_ms - slot->at_ms;
    view->span_ms = (uint64_t)slot->span_ms;
    view->steps = (double)slot->steps;
    if (slot->steps > 0) {
        view->step_us = (double)slot->span_ms * 1000 / (double)slot->steps;
        view->exposed_us = (double)slot->exposed_us / (double)slot->steps;
        view->hidden_us = (double)slot->hidden_us / (double)slot->steps;
    }
    if (slot->span_ms > 0)
        view->bytes_per_s = (double)slot->bytes * 1000 / (double)slot->span_ms;
    view->known = slot->known;
    memcpy(view->metrics, slot->metrics, sizeof(view->metrics));
    return true;
}
