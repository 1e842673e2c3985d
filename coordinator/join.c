// SPDX-License-Identifier: Apache-2.0
//
// Joining: checks a hello, decides when the world of a job forms, and refuses workers whose open
// timeout has passed. roster.c assigns ranks. Runs inside coordinator_step.
//
// Every refusal is a sentence that says what is wrong, on which host, and what to do.

#include "coordinator/join.h"

#include "base/bits.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/gathering.h"
#include "coordinator/gpus.h"
#include "coordinator/job.h"
#include "coordinator/names.h"
#include "coordinator/resume.h"
#include "coordinator/roster.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "protos/job_name.h"

// Sends a refusal and ends the stream.
static void join_send_refusal(struct coordinator *core, coordinator_peer peer, enum refusal refusal,
                              const char *text)
{
    const struct coordinator_action close = {.kind = ACTION_CLOSE, .peer = peer};
    struct text sentence;
    struct down_refused *refused = &core_message(core, NULL, DOWN_REFUSED)->u.refused;
    refused->refusal = refusal;
    text_init(&sentence, refused->text, sizeof(refused->text));
    text_append(&sentence, "%s", text);
    core_send_peer(core, peer);
    core->sink.action(core->sink.context, &close);
}

void join_refuse(struct coordinator *core, coordinator_peer peer, enum refusal refusal,
                 const char *text)
{
    char quoted[CORE_LOG_BYTES];
    struct text sentence;
    join_send_refusal(core, peer, refusal, text);
    text_init(&sentence, quoted, sizeof(quoted));
    sentence_quote(&sentence, text);
    core_log(core, "worker_refused", "text=%s", quoted);
}

// ---- What the present gatherers want ---------------------------------------------------------

static uint64_t join_window_end(const struct job *job)
{
    return job->gathering.last_join_ms + job->gathering.window_ms;
}

// True if the world may form now: it is full, or it is large enough and the window or the open
// timeout of some worker has passed.
static bool join_complete(const struct job *job, uint64_t now)
{
    if (job->count == 0 || job->count < job->gathering.world_min)
        return false;
    return job->count == job->gathering.world_max || now >= job->gathering.deadline_ms;
}

static void join_set_deadline(struct coordinator *core, struct job *job)
{
    job->gathering.deadline_ms = UINT64_MAX;
    for (uint32_t i = 0; i < job->count; i++) {
        const uint64_t own = job_worker(core, job, i)->deadline_ms;
        if (own < job->gathering.deadline_ms)
            job->gathering.deadline_ms = own;
    }
    if (job->count >= job->gathering.world_min && job->count > 0 &&
        join_window_end(job) < job->gathering.deadline_ms)
        job->gathering.deadline_ms = join_window_end(job);
}

void join_forget(struct coordinator *core, struct worker *worker)
{
    struct job *job = core_job_of(core, worker);
    job_remove_worker(core, job, worker);
    core_worker_free(core, worker);
    join_set_deadline(core, job);
}

void join_turn_away(struct coordinator *core, struct worker *worker, enum refusal refusal,
                    const char *text)
{
    const coordinator_peer peer = worker->peer;
    join_forget(core, worker);
    join_refuse(core, peer, refusal, text);
}

// ---- Deadlines -------------------------------------------------------------------------------

// Adds "; missing rank hints: 2, 5" if every gathering worker has a hint: only then the missing
// hints name the missing workers.
static void join_missing_hints(struct coordinator *core, const struct job *job,
                               struct text *sentence)
{
    uint64_t taken[CORE_RANK_WORDS] = {0};
    uint32_t missing = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_hello *hello = &job_worker(core, job, i)->hello;
        if (!hello->has_rank_hint)
            return;
        bits_add(taken, hello->rank_hint);
    }
    for (uint32_t hint = 0; hint < job->gathering.world_max; hint++) {
        if (bits_has(taken, hint))
            continue;
        missing++;
        if (missing <= 8)
            text_append(sentence, "%s%" PRIu32, missing == 1 ? "; missing rank hints: " : ", ",
                        hint);
    }
    if (missing > 8)
        text_append(sentence, " and %" PRIu32 " more", missing - 8);
}

// Adds the gathering workers, at most eight: "; present: a (hint 0), b".
static void join_present(struct coordinator *core, const struct job *job, struct text *sentence)
{
    for (uint32_t i = 0; i < job->count && i < 8; i++) {
        const struct up_hello *hello = &job_worker(core, job, i)->hello;
        text_append(sentence, "%s%s", i == 0 ? "; present: " : ", ", hello->host);
        if (hello->has_rank_hint)
            text_append(sentence, " (hint %" PRIu32 ")", hello->rank_hint);
    }
    if (job->count > 8)
        text_append(sentence, " and %" PRIu32 " more", job->count - 8);
}

// Adds "3 of 4 workers joined job 'x' in 10.0 s". The number includes workers that joined while
// this worker waited but were refused earlier, because their own timeouts had passed.
static void join_time_out_text(const struct job *job, const struct worker *worker, uint32_t count,
                               struct text *sentence)
{
    text_append(sentence, "%s%" PRIu32 " of %s%" PRIu32 " workers joined job '%s' in ",
                worker->most > count ? "at most " : "", worker->most,
                job->gathering.world_min == job->gathering.world_max ? "" : "at least ",
                job->gathering.world_min, job->name);
    sentence_seconds(sentence, worker->hello.open_timeout_ms);
    if (worker->most > count)
        text_append(sentence, ", and %" PRIu32 " waited to the end", count);
}

// Refuses all workers whose open timeout has passed. All of them get the same text, until another
// worker joins: it names the workers that were present when the first timeout passed.
static void join_time_out(struct coordinator *core, struct job *job)
{
    char present[LOCKSTEP_TEXT_BYTES / 2];
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    const uint32_t count = job->count;
    text_init(&sentence, present, sizeof(present));
    join_missing_hints(core, job, &sentence);
    join_present(core, job, &sentence);
    for (uint32_t i = count; i-- > 0;) {
        struct worker *worker = job_worker(core, job, i);
        if (worker->deadline_ms > core->now)
            continue;
        if (job->gathering.timed_out[0] == '\0') {
            text_init(&sentence, job->gathering.timed_out, sizeof(job->gathering.timed_out));
            join_time_out_text(job, worker, count, &sentence);
            if (job->gathering.refused[0] != '\0')
                text_append(&sentence, "; a worker was refused: %s", job->gathering.refused);
            text_append(&sentence,
                        "%s; start the missing workers in time, or raise the open timeout",
                        present);
        }
        memcpy(text, job->gathering.timed_out, sizeof(text));
        join_turn_away(core, worker, REFUSAL_TIMEOUT, text);
    }
}

// Adds "rank 1 (host b) has LOCKSTEP_VIRTUAL_RANKS=4", or the same with LOCKSTEP_ON_FAILURE.
static void join_add_setting(struct text *sentence, const struct worker *worker, bool leaves)
{
    core_rank_name(sentence, worker);
    if (leaves)
        text_append(sentence, " has LOCKSTEP_VIRTUAL_RANKS=%" PRIu32, worker->hello.virtual_ranks);
    else
        text_append(sentence, " has LOCKSTEP_ON_FAILURE=%s",
                    worker->hello.on_failure == FAILURE_CONTINUE ? "continue" : "error");
}

// If a rank of the world that has just formed has other settings than rank 0: makes a verdict that
// names both, and returns true. A refusal of the worker that came later would leave the others
// waiting for it.
static bool join_settings_differ(struct coordinator *core, struct job *job)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    const struct worker *first = job_worker(core, job, 0);
    for (uint32_t i = 1; i < job->count; i++) {
        const struct worker *other = job_worker(core, job, i);
        const bool leaves = other->hello.virtual_ranks != first->hello.virtual_ranks;
        if (!leaves && other->hello.on_failure == first->hello.on_failure)
            continue;
        text_init(&sentence, text, sizeof(text));
        join_add_setting(&sentence, first, leaves);
        text_append(&sentence, ", ");
        join_add_setting(&sentence, other, leaves);
        text_append(&sentence, ": set it, or config.%s, to the same on every rank",
                    leaves ? "virtual_ranks" : "on_failure");
        const struct verdict verdict = {.kind = HALT_TUNING, .text = text};
        verdict_halt(core, job, &verdict);
        return true;
    }
    return false;
}

// Forms the world. If its GPUs cannot work together, refuses all its workers instead.
static void join_form(struct coordinator *core, struct job *job)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    if (!gpus_conflict(core, job, &sentence)) {
        roster_form(core, job);
        if (!join_settings_differ(core, job))
            resume_probe_all(core, job);
        return;
    }
    while (job->count > 0)
        join_turn_away(core, job_worker(core, job, job->count - 1), REFUSAL_INVALID, text);
}

void join_tick(struct coordinator *core, struct job *job)
{
    if (!join_complete(job, core->now)) {
        join_time_out(core, job);
        return;
    }
    // Two generations must not get the same secret; the next tick has fresh entropy.
    if (!core->formed)
        join_form(core, job);
}

void join_drain(struct coordinator *core)
{
    core->draining = true;
    for (uint32_t i = 0; i < core->job_count; i++) {
        struct job *job = &core->jobs[core->job_order[i]];
        while (job->state == JOB_GATHERING && job->count > 0)
            join_turn_away(core, job_worker(core, job, job->count - 1), REFUSAL_DRAINING,
                           "the coordinator is going down; open the session again");
    }
}

// ---- Workers that never come -----------------------------------------------------------------

// True if the world of the job has to wait for a worker that never comes.
static bool join_lacks(const struct coordinator *core, const struct job *job)
{
    return strcmp(core->absence.job, job->name) == 0 && job->state == JOB_GATHERING &&
           job->count > 0 && job->gathering.world_min == job->gathering.world_max;
}

// Refuses all workers of a job that waits for a worker that never comes. Each of them says why, so
// the log has only their number.
static void join_give_up(struct coordinator *core, struct job *job)
{
    core_log(core, "job_given_up", "job=%s workers=%" PRIu32, job->name, job->count);
    while (job->count > 0) {
        struct worker *worker = job_worker(core, job, job->count - 1);
        const coordinator_peer peer = worker->peer;
        join_forget(core, worker);
        join_send_refusal(core, peer, REFUSAL_TIMEOUT, core->absence.text);
    }
}

void join_absent(struct coordinator *core, const char *name, const char *text)
{
    if (core->absence.job[0] != '\0')
        return;
    sentence_clean(core->absence.job, sizeof(core->absence.job), name, LOCKSTEP_JOB_NAME_BYTES);
    sentence_clean(core->absence.text, sizeof(core->absence.text), text,
                   sizeof(core->absence.text));
    struct job *job = job_find(core, core->absence.job);
    if (job && join_lacks(core, job))
        join_give_up(core, job);
}

// ---- Hello -----------------------------------------------------------------------------------

static void join_clean(struct up_hello *to, const struct up_hello *from)
{
    *to = *from;
    sentence_clean(to->job, sizeof(to->job), from->job, sizeof(from->job));
    sentence_clean(to->host_id, sizeof(to->host_id), from->host_id, sizeof(from->host_id));
    sentence_clean(to->host, sizeof(to->host), from->host, sizeof(from->host));
    sentence_clean(to->address, sizeof(to->address), from->address, sizeof(from->address));
    sentence_clean(to->device, sizeof(to->device), from->device, sizeof(from->device));
    sentence_clean(to->gpu.nccl_missing, sizeof(to->gpu.nccl_missing), from->gpu.nccl_missing,
                   sizeof(from->gpu.nccl_missing));
    sentence_clean(to->gpu_problem, sizeof(to->gpu_problem), from->gpu_problem,
                   sizeof(from->gpu_problem));
    if (to->host[0] == '\0')
        sentence_clean(to->host, sizeof(to->host), "unknown", sizeof("unknown"));
    if (to->open_timeout_ms == 0)
        to->open_timeout_ms = LOCKSTEP_OPEN_TIMEOUT_MS;
    if (to->open_timeout_ms > LOCKSTEP_OPEN_TIMEOUT_MAX_MS)
        to->open_timeout_ms = LOCKSTEP_OPEN_TIMEOUT_MAX_MS;
}

// Checks a hello alone. Returns REFUSAL_NONE, or the refusal and its sentence.
static enum refusal join_check(const struct up_hello *hello, struct text *sentence)
{
    if (hello->version != LOCKSTEP_PROTOCOL_VERSION) {
        text_append(sentence,
                    "the worker on %s speaks protocol version %" PRIu32
                    ", the coordinator version %d: install the same Lockstep on both",
                    hello->host, hello->version, LOCKSTEP_PROTOCOL_VERSION);
        return REFUSAL_VERSION;
    }
    if (!job_name_valid(hello->job))
        text_append(sentence, "'%s' is no job name: use 1 to %d " JOB_NAME_RULE, hello->job,
                    LOCKSTEP_JOB_NAME_BYTES - 1);
    else if (hello->world_min == 0 || hello->world_max < hello->world_min)
        text_append(sentence,
                    "a world of %" PRIu32 " to %" PRIu32 " workers is impossible: the minimum is "
                    "at least 1 and the maximum not below it",
                    hello->world_min, hello->world_max);
    else if (hello->world_max > LOCKSTEP_MAX_WORLD)
        text_append(sentence, "a world of %" PRIu32 " workers is above the limit of %d",
                    hello->world_max, LOCKSTEP_MAX_WORLD);
    else if (hello->has_rank_hint && hello->rank_hint >= hello->world_max)
        text_append(sentence,
                    "rank hint %" PRIu32 " of the worker on %s is not below the world size %" PRIu32
                    ": hints count from 0",
                    hello->rank_hint, hello->host, hello->world_max);
    else if (hello->address[0] == '\0')
        text_append(sentence, "the worker on %s named no address for its data plane", hello->host);
    else if (hello->on_failure != FAILURE_ERROR && hello->on_failure != FAILURE_CONTINUE)
        text_append(sentence, "on_failure is %d, which is unknown", (int)hello->on_failure);
    else
        return REFUSAL_NONE;
    return REFUSAL_INVALID;
}

static void join_add_world(struct text *sentence, uint32_t min, uint32_t max, uint32_t window)
{
    if (min == max)
        text_append(sentence, "%" PRIu32 " worker%s", min, min == 1 ? "" : "s");
    else
        text_append(sentence, "%" PRIu32 " to %" PRIu32 " workers with a window of %" PRIu32 " ms",
                    min, max, window);
}

static bool join_world_fits(const struct job *job, const struct up_hello *hello)
{
    if (hello->world_min != job->gathering.world_min ||
        hello->world_max != job->gathering.world_max)
        return false;
    return job->gathering.world_min == job->gathering.world_max ||
           hello->window_ms == job->gathering.window_ms;
}

// Checks a hello against the workers that have already joined the job.
static enum refusal join_check_job(struct coordinator *core, const struct job *job,
                                   const struct up_hello *hello, struct text *sentence)
{
    static const struct uuid none;
    if (!join_world_fits(job, hello)) {
        text_append(sentence, "job '%s' waits for ", job->name);
        join_add_world(sentence, job->gathering.world_min, job->gathering.world_max,
                       job->gathering.window_ms);
        text_append(sentence, " (said %s), the worker on %s wants ", job->gathering.wanted_by,
                    hello->host);
        join_add_world(sentence, hello->world_min, hello->world_max, hello->window_ms);
        text_append(sentence, ": give every worker the same %s",
                    hello->world_min == job->gathering.world_min &&
                            hello->world_max == job->gathering.world_max
                        ? "LOCKSTEP_WORLD_WINDOW_MS"
                        : "world size");
        return REFUSAL_INVALID;
    }
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_hello *other = &job_worker(core, job, i)->hello;
        if (hello->has_rank_hint && other->has_rank_hint && hello->rank_hint == other->rank_hint) {
            text_append(sentence,
                        "rank hint %" PRIu32 " is taken: the worker on %s (pid %" PRIu32
                        ") has it, the worker on %s (pid %" PRIu32 ") wants it too",
                        hello->rank_hint, other->host, other->pid, hello->host, hello->pid);
            return REFUSAL_INVALID;
        }
        if (memcmp(&hello->uuid, &other->uuid, sizeof(none)) == 0 &&
            memcmp(&hello->uuid, &none, sizeof(none)) != 0) {
            text_append(sentence,
                        "this worker (on %s, pid %" PRIu32 ") has joined job '%s' already",
                        other->host, other->pid, job->name);
            return REFUSAL_INVALID;
        }
    }
    return REFUSAL_NONE;
}

// True if the jobs that this address created and that still wait for workers have reached their
// limit. Without the limit one client could fill the whole table of jobs for its open timeout.
static bool join_crowded(const struct coordinator *core, uint64_t origin)
{
    uint32_t count = 0;
    for (uint32_t i = 0; origin != 0 && i < core->job_count; i++) {
        const struct job *job = &core->jobs[core->job_order[i]];
        count += job->state == JOB_GATHERING && job->count > 0 && job->gathering.origin == origin
                     ? 1
                     : 0;
    }
    return count >= LOCKSTEP_ORIGIN_GATHERING;
}

// Finds or creates the job that accepts this hello. Otherwise returns the refusal and its sentence.
static enum refusal join_place(struct coordinator *core, const struct up_hello *hello,
                               struct job **found, struct text *sentence)
{
    struct job *job = job_find(core, hello->job);
    const bool waits = job && job->state == JOB_GATHERING && job->count > 0;
    *found = NULL;
    if (!waits && (!job || !job_running(job)) && join_crowded(core, core->origin)) {
        text_append(sentence,
                    "%d jobs that began at this worker's address are waiting for their workers, "
                    "the limit: start the workers of those, or wait until one has ended",
                    LOCKSTEP_ORIGIN_GATHERING);
        return REFUSAL_FULL;
    }
    if (!job)
        job = gathering_create(core, hello->job);
    *found = job;
    if (!job) {
        text_append(sentence, "this coordinator has %d jobs, its limit: wait until one ends",
                    LOCKSTEP_MAX_JOBS);
        return REFUSAL_FULL;
    }
    if (job_running(job) && job->connected == 0 && !resume_deserted(core, job)) {
        text_append(sentence,
                    "job '%s' is running, and the control connections of all its workers have "
                    "ended a moment ago; it can be joined if none of them comes back",
                    job->name);
        return REFUSAL_DRAINING;
    }
    // Some workers have closed their sessions, and the others will soon: this worker comes too
    // early.
    if (job_running(job) && job->connected > 0 && job->left > 0) {
        text_append(sentence,
                    "job '%s' has not ended: %" PRIu32 " of its %" PRIu32
                    " workers have closed their sessions and the others have not; it can be "
                    "joined when all have",
                    job->name, job->left, job->count);
        return REFUSAL_DRAINING;
    }
    if (job_running(job) && job->connected > 0) {
        text_append(sentence,
                    "job '%s' is running with %" PRIu32
                    " worker%s: wait until it ends, or choose another job name",
                    job->name, job->count, job->count == 1 ? "" : "s");
        return REFUSAL_FULL;
    }
    if (job->state != JOB_GATHERING)
        gathering_again(core, job);
    if (job->count > 0)
        return join_check_job(core, job, hello, sentence);
    job->gathering.refused[0] = '\0';
    job->gathering.world_min = hello->world_min;
    job->gathering.world_max = hello->world_max;
    job->gathering.window_ms = hello->window_ms;
    job->gathering.origin = core->origin;
    sentence_clean(job->gathering.wanted_by, sizeof(job->gathering.wanted_by), hello->host,
                   sizeof(hello->host));
    return REFUSAL_NONE;
}

static void join_accept(struct coordinator *core, struct job *job, struct worker *worker,
                        const struct up_hello *hello)
{
    struct down_welcome *welcome = &core_message(core, NULL, DOWN_WELCOME)->u.welcome;
    worker->stage = STAGE_GATHERING;
    worker->job = (uint16_t)(job - core->jobs);
    worker->hello = *hello;
    worker->heard_ms = core->now;
    worker->heartbeat.activity = ACTIVITY_OPENING;
    worker->deadline_ms = core->now + hello->open_timeout_ms;
    job->workers[job->count++] = core_worker_index(core, worker);
    job->gathering.timed_out[0] = '\0'; // The text does not name the worker that joins now.
    job->connected++;
    for (uint32_t i = 0; i < job->count; i++)
        if (job_worker(core, job, i)->most < job->count)
            job_worker(core, job, i)->most = job->count;
    job->gathering.last_join_ms = core->now;
    welcome->version = LOCKSTEP_PROTOCOL_VERSION;
    welcome->heartbeat_ms = core->config.heartbeat_ms;
    core_send(core, worker);
    join_set_deadline(core, job);
    if (join_complete(job, core->now))
        join_form(core, job);
    else if (join_lacks(core, job))
        join_give_up(core, job);
}

void join_hello(struct coordinator *core, coordinator_peer peer, const struct up_message *message)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    struct up_hello hello;
    struct job *job = NULL;
    struct worker *worker = NULL;
    text_init(&sentence, text, sizeof(text));
    join_clean(&hello, &message->u.hello);
    enum refusal refusal = join_check(&hello, &sentence);
    if (refusal == REFUSAL_NONE && hello.resumes) {
        resume_hello(core, peer, &hello);
        return;
    }
    if (refusal == REFUSAL_NONE && core->draining) {
        refusal = REFUSAL_DRAINING;
        text_append(&sentence, "the coordinator is going down; open the session again");
    }
    // The record is allocated before join_place looks for the job: to make room, job_recycle may
    // forget a job, even the one of this name.
    if (refusal == REFUSAL_NONE) {
        worker = core_worker_new(core, peer);
        while (!worker && job_recycle(core))
            worker = core_worker_new(core, peer);
        if (!worker) {
            refusal = REFUSAL_FULL;
            text_append(&sentence, "this coordinator has %d workers, its limit: use another one",
                        LOCKSTEP_MAX_WORKERS);
        }
    }
    if (refusal == REFUSAL_NONE)
        refusal = join_place(core, &hello, &job, &sentence);
    if (refusal == REFUSAL_NONE) {
        join_accept(core, job, worker, &hello);
        return;
    }
    if (worker)
        core_worker_free(core, worker);
    if (job && refusal == REFUSAL_INVALID) {
        text_init(&sentence, job->gathering.refused, sizeof(job->gathering.refused));
        text_append(&sentence, "%s", text);
    }
    const bool early = job && refusal == REFUSAL_DRAINING;
    if (early && core->now < job->gathering.early_until_ms) {
        join_send_refusal(core, peer, refusal, text);
        return;
    }
    if (early)
        job->gathering.early_until_ms = core->now + LOCKSTEP_EARLY_MS;
    join_refuse(core, peer, refusal, text);
}
