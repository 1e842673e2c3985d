// SPDX-License-Identifier: Apache-2.0
//
// The agreement of the ranks of a coordinator's jobs, read from its HTTP API, and the algorithm
// for each payload size, by the rule of protos/tuning.h. Main thread.

#include "cli/doctor/job.h"

#include "cli/ask/http.h"
#include "cli/ask/json_read.h"
#include "cli/doctor/doctor.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_TIMEOUT_MS 5000
#define JOBS_PATH "/api/v1/jobs"

// ---- Reading -----------------------------------------------------------------------------------

static uint64_t number_of(const char *object, const char *key)
{
    uint64_t value = 0;
    (void)json_read_u64(json_read_member(object, key), &value);
    return value;
}

// Reads a name that tuning_name has written. Returns false if this tool does not know the name.
static bool read_wish(const char *value, uint32_t *wish)
{
    char name[DOCTOR_WORD_BYTES];
    json_read_string(value, name, sizeof(name));
    for (*wish = 0; *wish <= ALGORITHM_BY_SIZE; (*wish)++) {
        if (strcmp(name, tuning_name(*wish)) == 0)
            return true;
    }
    return false;
}

// Returns false if the job has no tuning yet.
static bool read_tuning(const char *from, struct tuning *tuning)
{
    bool shares = false;
    const bool known = json_read_bool(json_read_member(from, "shares"), &shares);
    tuning->latency_ns = number_of(from, "latency_ns");
    tuning->bytes_per_s = number_of(from, "bytes_per_s");
    tuning->doubling_bytes = number_of(from, "doubling_bytes");
    tuning->halving_bytes = number_of(from, "halving_bytes");
    tuning->shares = shares;
    return known && read_wish(json_read_member(from, "wish"), &tuning->wish);
}

// ---- Judging -----------------------------------------------------------------------------------

// The status is never `missing`, because the coordinator also lists jobs that have ended.
static void judge_untuned(struct doctor_job *job, const char *from)
{
    char halt[LOCKSTEP_TEXT_BYTES / 2];
    if (json_read_string(json_read_member(from, "halt_text"), halt, sizeof(halt)))
        doctor_judge(&job->finding, DOCTOR_WARNING, "it was halted before its links stood: %s",
                     halt);
    else if (strcmp(job->state, "finished") == 0)
        doctor_judge(&job->finding, DOCTOR_OK, "it ended before anything was agreed");
    else
        doctor_judge(&job->finding, DOCTOR_WARNING,
                     "nothing is agreed before all ranks have joined and all links stand: %" PRIu64
                     " of %" PRIu32 " ranks are there",
                     number_of(from, "joined"), job->world.world_size);
}

// Returns true if some ranks share a host.
static bool has_mates(const struct tuning_world *world)
{
    return world->hosts > 0 && world->hosts < world->world_size;
}

static void judge_tuned(struct doctor_job *job, const char *from)
{
    struct doctor_finding *finding = &job->finding;
    char halt[LOCKSTEP_TEXT_BYTES / 2];
    if (json_read_string(json_read_member(from, "halt_text"), halt, sizeof(halt)))
        doctor_judge(finding, DOCTOR_WARNING, "it was halted: %s", halt);
    else if (job->world.world_size == 1)
        doctor_judge(finding, DOCTOR_OK, "a world of one sends nothing");
    else if (job->tuning.wish != ALGORITHM_BY_SIZE)
        doctor_judge(finding, DOCTOR_WARNING,
                     "LOCKSTEP_ALGORITHM=%s takes the place of what is fastest by size: it is for "
                     "measurements, unset it for training",
                     tuning_name(job->tuning.wish));
    else if (has_mates(&job->world) && !job->tuning.shares)
        doctor_judge(finding, DOCTOR_WARNING,
                     "memory between ranks of a host is not shared, so TCP is used: look for "
                     "LOCKSTEP_TRANSPORT=tcp, and run lockstep doctor on every host");
    else if (has_mates(&job->world))
        doctor_judge(finding, DOCTOR_OK, "ranks of a host share memory");
    else
        doctor_judge(finding, DOCTOR_OK, "no rank shares a host with another: TCP is used");
}

static void take_job(struct doctor_report *report, const char *from)
{
    if (report->job_count == LOCKSTEP_MAX_JOBS)
        return;
    struct doctor_job *job = &report->jobs[report->job_count++];
    json_read_string(json_read_member(from, "name"), job->name, sizeof(job->name));
    json_read_string(json_read_member(from, "state"), job->state, sizeof(job->state));
    job->world.world_size = (uint32_t)number_of(from, "world_size");
    job->world.hosts = (uint32_t)number_of(from, "hosts");
    job->tuned = read_tuning(json_read_member(from, "tuning"), &job->tuning);
    if (job->tuned)
        judge_tuned(job, from);
    else
        judge_untuned(job, from);
}

// ---- Asking ------------------------------------------------------------------------------------

static void take_jobs(struct doctor_report *report, struct doctor_finding *finding,
                      const char *body)
{
    const char *jobs = json_read_member(body, "jobs");
    if (!jobs) {
        doctor_judge(finding, DOCTOR_MISSING,
                     "what answers there is not a coordinator of Lockstep: give the address of "
                     "its --http");
        return;
    }
    for (const char *job = json_read_first(jobs); job; job = json_read_next(job))
        take_job(report, job);
    doctor_judge(finding, DOCTOR_OK, "it answers and has %" PRIu32 " job%s", report->job_count,
                 report->job_count == 1 ? "" : "s");
}

void doctor_jobs(struct doctor_report *report, const struct http_peer *peer, const char *job)
{
    const char *address = peer->address;
    struct doctor_finding *finding = doctor_add(report, "coordinator");
    char path[sizeof(JOBS_PATH) + LOCKSTEP_JOB_NAME_BYTES + 1];
    char error[LOCKSTEP_TEXT_BYTES / 2];
    char *body = NULL;
    (void)text_copy(finding->word, sizeof(finding->word), address);
    snprintf(path, sizeof(path), "%s%s%s", JOBS_PATH, job[0] ? "/" : "", job);
    const int code = http_get(peer, path, ASK_TIMEOUT_MS, &body, error, sizeof(error));
    if (code < 0) {
        doctor_judge(finding, DOCTOR_MISSING, "%s: start lockstep-coordinator, or give its --http",
                     error);
    } else if (code == 404 && job[0]) {
        doctor_judge(finding, DOCTOR_MISSING,
                     "it has no job '%s': lockstep status --http %s%s shows the jobs", job, address,
                     peer->token[0] ? " --token-file FILE" : "");
    } else if (code == 401) {
        doctor_judge(finding, DOCTOR_MISSING, "it wants a token: give the file with --token-file");
    } else if (code != 200) {
        doctor_judge(finding, DOCTOR_MISSING, "it answered %d to GET %s", code, path);
    } else if (job[0]) {
        take_job(report, body);
        doctor_judge(finding, DOCTOR_OK, "it answers and has the job");
    } else {
        take_jobs(report, finding, body);
    }
    free(body);
}

// ---- Ranges of algorithms ----------------------------------------------------------------------

uint32_t doctor_ranges(const struct doctor_job *job, struct doctor_range *ranges)
{
    const uint64_t bounds[DOCTOR_MAX_BOUNDS] = {job->tuning.doubling_bytes,
                                                job->tuning.halving_bytes, UINT64_MAX};
    uint64_t covered = 0;
    uint32_t count = 0;
    for (size_t i = 0; i < DOCTOR_MAX_BOUNDS; i++) {
        if (bounds[i] <= covered)
            continue; // A threshold of 0: no payload uses this algorithm.
        covered = bounds[i];
        const struct doctor_range range = {
            .most_bytes = bounds[i],
            .reduction = tuning_choose(&job->tuning, &job->world, false, bounds[i]),
            .broadcast = tuning_choose(&job->tuning, &job->world, true, bounds[i])};
        const bool same = count > 0 && ranges[count - 1].reduction == range.reduction &&
                          ranges[count - 1].broadcast == range.broadcast;
        ranges[same ? count - 1 : count++] = range;
    }
    return count;
}
