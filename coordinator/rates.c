// SPDX-License-Identifier: Apache-2.0
//
// The speed of a job, once a second, and the ranks that the others always wait for (stragglers). A
// rank that is always the slowest hardly ever waits for others. So the score of a rank is the
// median wait of all ranks minus its own wait, as a share of the time: the job would save at most
// this share if the rank were as fast as the median. The core looks for stragglers every 5 seconds,
// and a score covers the last 25 seconds, so it is correct 30 seconds after a change. Clocks of
// different ranks are never compared. Runs inside coordinator_step.

#include "coordinator/rates.h"

#include "coordinator/beat.h"
#include "coordinator/core.h"
#include "coordinator/history.h"
#include "coordinator/job.h"

struct rates_sums {
    uint64_t steps;
    uint64_t exposed_us;
    uint64_t hidden_us;
    uint64_t bytes;
};

void rates_reset(struct rates *rates)
{
    rates->next_ms = 0;
    rates->from_ms = 0;
    rates->ended = false;
    rates->count = 0;
    rates->median_step = 0;
    rates->until_look = 0;
    rates->looks = 0;
}

// Shellsort: it allocates nothing, and there are at most a thousand numbers.
static void rates_sort(uint64_t *numbers, uint32_t count)
{
    static const uint32_t gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
    for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++) {
        for (uint32_t i = gaps[g]; i < count; i++) {
            const uint64_t number = numbers[i];
            uint32_t at = i;
            for (; at >= gaps[g] && numbers[at - gaps[g]] > number; at -= gaps[g])
                numbers[at] = numbers[at - gaps[g]];
            numbers[at] = number;
        }
    }
}

static uint32_t rates_cut(uint64_t number)
{
    return number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
}

// Returns the growth of a count; 0 if a worker's count has become smaller.
static uint64_t grown(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

static struct rates_sums rates_sum(struct coordinator *core, struct job *job)
{
    uint64_t steps[LOCKSTEP_MAX_WORLD];
    struct rates_sums sums = {.steps = 0};
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_heartbeat *beat = &job_worker(core, job, i)->heartbeat;
        sums.steps += beat->totals.steps;
        sums.exposed_us += beat->totals.exposed_us;
        sums.hidden_us += beat->totals.overlap_us;
        sums.bytes += beat->bytes_sent;
        steps[i] = beat->step;
    }
    rates_sort(steps, job->count);
    job->rates.median_step = steps[job->count / 2];
    return sums;
}

// ---- Stragglers --------------------------------------------------------------------------------

// The time that a score covers: from the oldest look that is kept until now.
struct rates_window {
    uint32_t oldest; // Index of the oldest look.
    uint64_t elapsed_us;
};

static uint64_t rates_waited(const struct worker *worker, const struct rates_window *window)
{
    const uint64_t waited =
        grown(worker->heartbeat.place.waited_us, worker->beat.waited_us[window->oldest]);
    return waited < window->elapsed_us ? waited : window->elapsed_us;
}

static void rates_score(struct coordinator *core, struct job *job,
                        const struct rates_window *window)
{
    uint64_t waits[LOCKSTEP_MAX_WORLD];
    for (uint32_t i = 0; i < job->count; i++)
        waits[i] = rates_waited(job_worker(core, job, i), window);
    rates_sort(waits, job->count);
    const uint64_t median = waits[job->count / 2];
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        worker->beat.straggler_permille =
            (uint32_t)(grown(median, rates_waited(worker, window)) * 1000 / window->elapsed_us);
    }
}

static void rates_look_for_stragglers(struct coordinator *core, struct job *job,
                                      const struct rates_sums *sums)
{
    struct rates *rates = &job->rates;
    const uint32_t place = rates->looks % STALL_SCORES;
    const struct rates_window window = {
        .oldest = rates->looks < STALL_SCORES ? 0 : place,
        .elapsed_us =
            (core->now - rates->scored_ms[rates->looks < STALL_SCORES ? 0 : place]) * 1000};
    // If no step was finished, no rank was the slowest, so the scores stay.
    if (rates->looks > 0 && window.elapsed_us > 0 &&
        grown(sums->steps, rates->scored_steps[window.oldest]) > 0)
        rates_score(core, job, &window);
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        worker->beat.waited_us[place] = worker->heartbeat.place.waited_us;
    }
    rates->scored_ms[place] = core->now;
    rates->scored_steps[place] = sums->steps;
    rates->looks++;
}

// ---- Samples -----------------------------------------------------------------------------------

// Returns how much the members have counted since the present sample began.
static struct rates_sums rates_grown(const struct rates *rates, const struct rates_sums *sums)
{
    return (struct rates_sums){.steps = grown(sums->steps, rates->steps),
                               .exposed_us = grown(sums->exposed_us, rates->exposed_us),
                               .hidden_us = grown(sums->hidden_us, rates->hidden_us),
                               .bytes = grown(sums->bytes, rates->bytes)};
}

static struct history_slot rates_slot(const struct job *job, const struct rates_sums *more)
{
    const float members = (float)job->count;
    return (struct history_slot){.steps = (float)more->steps / members,
                                 .exposed_us = (float)more->exposed_us / members,
                                 .hidden_us = (float)more->hidden_us / members,
                                 .bytes = (float)more->bytes};
}

static void rates_remember(struct coordinator *core, struct job *job, const struct rates_sums *more)
{
    struct history_slot slot = rates_slot(job, more);
    slot.at_ms = core->now;
    slot.span_ms = (float)(core->now - job->rates.from_ms);
    history_add(core, job, &slot);
}

static void rates_sample(struct coordinator *core, struct job *job, const struct rates_sums *more)
{
    struct rates *rates = &job->rates;
    const uint64_t elapsed_us = (core->now - rates->from_ms) * 1000;
    struct rate_sample *sample = &rates->samples[rates->count++ % LOCKSTEP_RATE_SAMPLES];
    *sample = (struct rate_sample){.at_ms = core->now};
    sample->bytes_per_s = more->bytes * 1000000 / elapsed_us;
    if (more->steps == 0)
        return;
    sample->steps = rates_cut((more->steps + job->count / 2) / job->count);
    sample->step_us = rates_cut(elapsed_us * job->count / more->steps);
    sample->exposed_us = rates_cut(more->exposed_us / more->steps);
    sample->hidden_us = rates_cut(more->hidden_us / more->steps);
}

static void rates_take(struct coordinator *core, struct job *job, const struct rates_sums *sums)
{
    const struct rates_sums more = rates_grown(&job->rates, sums);
    if (job->rates.from_ms == 0 || job->rates.from_ms == core->now)
        return;
    rates_remember(core, job, &more);
    if (job->rates.next_ms != 0)
        rates_sample(core, job, &more);
}

// True if every member that has not left has reported to this coordinator. Sums without one of them
// would grow by all that it ever counted when it reports.
static bool rates_all_known(struct coordinator *core, const struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (!worker->left && !beat_known(worker))
            return false;
    }
    return true;
}

static void rates_base(struct coordinator *core, struct job *job, const struct rates_sums *sums)
{
    struct rates *rates = &job->rates;
    rates->from_ms = core->now;
    rates->steps = sums->steps;
    rates->exposed_us = sums->exposed_us;
    rates->hidden_us = sums->hidden_us;
    rates->bytes = sums->bytes;
}

void rates_begin(struct coordinator *core, struct job *job)
{
    const struct rates_sums sums = rates_sum(core, job);
    rates_base(core, job, &sums);
}

void rates_tick(struct coordinator *core, struct job *job)
{
    struct rates *rates = &job->rates;
    if (core->now < rates->next_ms || (rates->next_ms == 0 && !rates_all_known(core, job)))
        return;
    const struct rates_sums sums = rates_sum(core, job);
    rates_take(core, job, &sums);
    if (rates->until_look == 0) {
        rates_look_for_stragglers(core, job, &sums);
        rates->until_look = STALL_LOOK_SAMPLES;
    }
    rates->until_look--;
    // Samples have a fixed period, so each has the same number of heartbeats of every rank, unless
    // a tick comes a whole period late.
    const bool late = core->now >= rates->next_ms + STALL_RATE_MS;
    rates->next_ms = (late ? core->now : rates->next_ms) + STALL_RATE_MS;
    rates_base(core, job, &sums);
}

void rates_end(struct coordinator *core, struct job *job)
{
    if (job->rates.from_ms == 0)
        return;
    const struct rates_sums sums = rates_sum(core, job);
    job->rates.next_ms = 0; // A part of a second says too little about the speed.
    rates_take(core, job, &sums);
    rates_base(core, job, &sums);
    job->rates.from_ms = 0;
    job->rates.ended = true;
}

void rates_late(struct coordinator *core, struct job *job)
{
    if (!job->rates.ended)
        return;
    const struct rates_sums sums = rates_sum(core, job);
    const struct rates_sums more = rates_grown(&job->rates, &sums);
    struct history_slot slot = rates_slot(job, &more);
    history_amend(core, job, &slot);
    rates_base(core, job, &sums);
    job->rates.from_ms = 0;
}

bool coordinator_rate_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                           uint64_t now_ms, struct rate_view *view)
{
    memset(view, 0, sizeof(*view));
    if (job >= coordinator->job_count)
        return false;
    const struct rates *rates = &coordinator->jobs[coordinator->job_order[job]].rates;
    if (index >= rates->count || index >= LOCKSTEP_RATE_SAMPLES)
        return false;
    const struct rate_sample *sample =
        &rates->samples[(rates->count - 1 - index) % LOCKSTEP_RATE_SAMPLES];
    view->age_ms = now_ms - sample->at_ms;
    view->steps = sample->steps;
    view->step_us = sample->step_us;
    view->exposed_us = sample->exposed_us;
    view->hidden_us = sample->hidden_us;
    view->bytes_per_s = sample->bytes_per_s;
    return true;
}
