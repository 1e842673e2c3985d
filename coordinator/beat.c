// SPDX-License-Identifier: Apache-2.0
//
// The state of one worker, from its heartbeats: its place, how long it has been there, and whether
// it is silent. This file blames no rank. Runs inside coordinator_step, and in views.

#include "coordinator/beat.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/table.h"

bool beat_known(const struct worker *worker)
{
    return worker->heartbeat.place.api != API_NONE;
}

uint64_t beat_silence_ms(const struct coordinator *core)
{
    return (uint64_t)core->config.heartbeat_ms * LOCKSTEP_FROZEN_HEARTBEATS +
           LOCKSTEP_FROZEN_SLACK_MS;
}

bool beat_frozen(const struct coordinator *core, const struct worker *worker, uint64_t now_ms)
{
    return (worker->connected || worker->back.away_ms != 0) && now_ms > worker->heard_ms &&
           now_ms - worker->heard_ms > beat_silence_ms(core);
}

// A mate repeats its report in each of its heartbeats, so an old report does not count. A debugger
// also stops a process for short moments. So a traced process counts as stopped only if no
// heartbeats arrive either.
bool beat_stopped(const struct coordinator *core, const struct worker *worker, uint64_t now_ms)
{
    return (worker->connected || worker->back.away_ms != 0) && worker->beat.stopped_ms != 0 &&
           now_ms - worker->beat.stopped_ms <= beat_silence_ms(core) &&
           (!worker->beat.traced || beat_frozen(core, worker, now_ms));
}

bool beat_silent(const struct coordinator *core, const struct worker *worker)
{
    return beat_frozen(core, worker, core->now) || beat_stopped(core, worker, core->now);
}

// The age is the time since the trainer's last library call, or since its place last changed,
// whichever is longer: a trainer that repeats the same call makes no progress either. Time in which
// the worker was silent does not count, because it did not run.
uint64_t beat_age(const struct worker *worker)
{
    const uint64_t most = UINT64_MAX / 4; // A worker sends the age, and sums of it must not wrap.
    const uint64_t api_ms = worker->heartbeat.place.api_ms;
    // While the worker gathers it has no place yet.
    const uint64_t place_ms =
        worker->beat.place_ms == 0 ? 0 : worker->heard_ms - worker->beat.place_ms;
    uint64_t age = api_ms > place_ms ? api_ms : place_ms;
    age = age > worker->beat.silent_ms ? age - worker->beat.silent_ms : 0;
    return age < most ? age : most;
}

uint64_t beat_age_now(const struct worker *worker, uint64_t now_ms)
{
    return beat_age(worker) + (now_ms > worker->heard_ms ? now_ms - worker->heard_ms : 0);
}

static bool beat_same_place(const struct up_heartbeat *a, const struct up_heartbeat *b)
{
    const struct place *p = &a->place;
    const struct place *q = &b->place;
    return a->step == b->step && a->settled == b->settled && p->position == q->position &&
           p->done == q->done && p->open == q->open && p->waits == q->waits && p->api == q->api &&
           p->module == q->module && p->call == q->call && p->calls_open == q->calls_open &&
           p->ready == q->ready && p->plain == q->plain &&
           (a->flags & PLACE_PAUSED) == (b->flags & PLACE_PAUSED);
}

// Returns a bit for each link of `beat` that is also in `last`, and received nothing in between.
static uint32_t beat_still(const struct up_heartbeat *last, const struct up_heartbeat *beat)
{
    uint32_t still = 0;
    for (uint32_t i = 0; i < beat->link_count; i++)
        for (uint32_t j = 0; j < last->link_count; j++)
            if (beat->links[i].rank == last->links[j].rank &&
                beat->links[i].received == last->links[j].received)
                still |= 1u << i;
    return still;
}

bool beat_link_stands(const struct job *job, const struct worker *worker, uint32_t index)
{
    const struct link_state *link = &worker->heartbeat.links[index];
    return (worker->beat.still >> index & 1) != 0 && link->rank < job->count &&
           link->rank != worker->rank;
}

// Stores what the heartbeat says about stopped mates. Only a worker of the same host is believed.
static void beat_mates(struct coordinator *core, const struct job *job, const struct worker *worker)
{
    const struct up_heartbeat *beat = &worker->heartbeat;
    for (uint32_t i = 0; i < beat->mate_count; i++) {
        const char state = beat->mates[i].state;
        if (beat->mates[i].rank >= job->count || (state != 'T' && state != 't'))
            continue;
        struct worker *mate = job_worker(core, job, beat->mates[i].rank);
        if (mate == worker || strcmp(mate->hello.host_id, worker->hello.host_id) != 0)
            continue;
        mate->beat.stopped_ms = core->now;
        mate->beat.traced = state == 't';
        mate->beat.tracer = beat->mates[i].tracer;
    }
}

// A step is settled, or a slot complete, only when every rank has done its part. So a silent rank
// has begun every step in which another rank has settled the step or completed a slot.
struct beat_steps beat_steps(const struct coordinator *core, const struct job *job,
                             const struct worker *worker)
{
    struct beat_steps steps = {.least = worker->heartbeat.step};
    uint64_t settled = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_heartbeat *beat = &core->workers[job->workers[i]].heartbeat;
        const bool begun = beat->place.count > 0 && beat->place.position > 0;
        if (beat->settled == UINT64_MAX)
            continue;
        if (beat->settled > settled)
            settled = beat->settled;
        if (beat->settled + begun > steps.least)
            steps.least = beat->settled + begun;
    }
    steps.most = settled + 1 > steps.least ? settled + 1 : steps.least;
    return steps;
}

void beat_heard(struct coordinator *core, struct worker *worker)
{
    if (beat_silent(core, worker))
        worker->beat.silent_ms += core->now - worker->heard_ms;
    worker->beat.stopped_ms = 0;
}

void beat_stored(struct coordinator *core, struct worker *worker, const struct up_heartbeat *last)
{
    if (worker->beat.place_ms == 0 || !beat_same_place(last, &worker->heartbeat)) {
        worker->beat.place_ms = core->now;
        worker->beat.silent_ms = 0;
    }
    worker->beat.still = beat_still(last, &worker->heartbeat);
    beat_mates(core, core_job_of(core, worker), worker);
}
