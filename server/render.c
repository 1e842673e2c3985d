// SPDX-License-Identifier: Apache-2.0
//
// See render.h. One function for each object and each family of metrics.

#include "server/render.h"

#include "protos/tuning.h"
#include "protos/tuning_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// ---- JSON -------------------------------------------------------------------------------------

static const char *activity_name(enum worker_activity activity)
{
    switch (activity) {
    case ACTIVITY_OUTSIDE:
        return "outside";
    case ACTIVITY_OPENING:
        return "opening";
    case ACTIVITY_STARTING:
        return "starting";
    case ACTIVITY_IN_CALL:
        return "in_call";
    case ACTIVITY_WAITING:
        return "waiting";
    case ACTIVITY_PAUSED:
        return "paused";
    }
    return "unknown";
}

static const char *worker_state(const struct worker_view *worker)
{
    if (worker->lost)
        return "lost";
    if (worker->left)
        return "left";
    return worker->frozen ? "frozen" : "present";
}

static void render_generation(struct json *json, const struct generation_id *generation)
{
    char incarnation[17]; // As text: JavaScript's numbers have 53 bits.
    snprintf(incarnation, sizeof incarnation, "%016" PRIx64, generation->incarnation);
    json_object_begin(json, "generation");
    json_u64(json, "number", generation->number);
    json_string(json, "incarnation", incarnation);
    json_object_end(json);
}

static void render_totals(struct json *json, const struct step_totals *totals)
{
    json_object_begin(json, "totals");
    json_u64(json, "steps", totals->steps);
    json_u64(json, "bytes_copied", totals->bytes_copied);
    json_u64(json, "in_flight_us", totals->in_flight_us);
    json_u64(json, "overlap_us", totals->overlap_us);
    json_u64(json, "exposed_us", totals->exposed_us);
    json_u64(json, "zero_filled", totals->zero_filled);
    json_u64(json, "unused", totals->unused);
    json_object_end(json);
}

static void render_range(struct json *json, uint64_t most_bytes, uint32_t algorithm)
{
    json_object_begin(json, NULL);
    if (most_bytes == UINT64_MAX)
        json_null(json, "most_bytes");
    else
        json_u64(json, "most_bytes", most_bytes);
    json_string(json, "algorithm", tuning_name(algorithm));
    json_object_end(json);
}

// Which payloads travel how: in the order of their sizes, neighbours with one answer as one. A
// bound that is not above the one before, as 0 never is, bounds nothing.
static void render_algorithms(struct json *json, const struct job_view *job)
{
    const struct tuning_world world = {.world_size = job->world_size, .hosts = job->hosts};
    const uint64_t bounds[] = {job->tuning.doubling_bytes, job->tuning.halving_bytes, UINT64_MAX};
    uint64_t most_bytes = 0;
    uint32_t algorithm = ALGORITHM_BY_SIZE; // None yet.
    json_array_begin(json, "algorithms");
    for (size_t i = 0; i < 3; i++) {
        if (bounds[i] <= most_bytes)
            continue;
        const uint32_t own = tuning_choose(&job->tuning, &world, false, bounds[i]);
        if (algorithm != ALGORITHM_BY_SIZE && algorithm != own)
            render_range(json, most_bytes, algorithm);
        most_bytes = bounds[i];
        algorithm = own;
    }
    render_range(json, most_bytes, algorithm);
    json_array_end(json);
}

static void render_tuning(struct json *json, const struct job_view *job)
{
    if (!job->tuned) {
        json_null(json, "tuning");
        return;
    }
    json_object_begin(json, "tuning");
    tuning_json_members(json, &job->tuning);
    render_algorithms(json, job);
    json_object_end(json);
}

static void render_job_members(struct json *json, const struct job_view *job)
{
    json_string(json, "name", job->name);
    json_string(json, "state", job_state_name(job->state));
    render_generation(json, &job->generation);
    json_u64(json, "world_size", job->world_size);
    json_u64(json, "joined", job->joined);
    json_u64(json, "left", job->left);
    json_u64(json, "plan_number", job->plan_number);
    json_u64(json, "step_min", job->step_min);
    json_u64(json, "step_max", job->step_max);
    json_u64(json, "messages_total", job->messages_total);
    render_totals(json, &job->totals);
    json_string(json, "halt_text", job->halt_text[0] ? job->halt_text : NULL);
    json_u64(json, "hosts", job->hosts);
    render_tuning(json, job);
}

static void render_worker(struct json *json, const struct worker_view *worker)
{
    json_object_begin(json, NULL);
    if (worker->has_rank)
        json_u64(json, "rank", worker->rank);
    else
        json_null(json, "rank");
    json_string(json, "state", worker_state(worker));
    json_string(json, "host", worker->host);
    json_u64(json, "pid", worker->pid);
    json_u64(json, "step", worker->step);
    json_u64(json, "settled", worker->settled);
    json_string(json, "activity", activity_name(worker->activity));
    json_u64(json, "activity_ms", worker->activity_ms);
    json_u64(json, "heartbeat_age_ms", worker->heartbeat_age_ms);
    json_string(json, "mark", worker->mark[0] ? worker->mark : NULL);
    json_u64(json, "bytes_sent", worker->bytes_sent);
    json_u64(json, "bytes_received", worker->bytes_received);
    render_totals(json, &worker->totals);
    json_object_end(json);
}

void render_jobs(struct json *json, const struct snapshot *snapshot,
                 const struct render_process *process)
{
    char incarnation[17];
    snprintf(incarnation, sizeof incarnation, "%016" PRIx64, snapshot->incarnation);
    json_object_begin(json, NULL);
    json_object_begin(json, "coordinator");
    json_string(json, "version", process->version);
    json_string(json, "incarnation", incarnation);
    json_u64(json, "uptime_ms", snapshot->made_ms - process->start_ms);
    json_bool(json, "draining", snapshot->draining);
    json_bool(json, "listening", snapshot->rpc.listening);
    json_u64(json, "streams", snapshot->rpc.streams);
    json_object_end(json);
    json_array_begin(json, "jobs");
    for (uint32_t i = 0; i < snapshot->job_count; i++) {
        json_object_begin(json, NULL);
        render_job_members(json, &snapshot->jobs[i].view);
        json_object_end(json);
    }
    json_array_end(json);
    json_object_end(json);
}

bool render_job(struct json *json, const struct snapshot *snapshot, const char *name)
{
    uint32_t i = snapshot->job_count;
    while (i > 0 && strcmp(snapshot->jobs[i - 1].view.name, name) != 0)
        i--;
    if (i == 0)
        return false;
    const struct snapshot_job *job = &snapshot->jobs[i - 1];
    json_object_begin(json, NULL);
    render_job_members(json, &job->view);
    json_array_begin(json, "workers");
    for (uint32_t w = 0; w < job->worker_count; w++)
        render_worker(json, &snapshot->workers[job->first_worker + w]);
    json_array_end(json);
    json_object_end(json);
    return true;
}

void render_error(struct json *json, int code, const char *message)
{
    json_object_begin(json, NULL);
    json_object_begin(json, "error");
    json_i64(json, "code", code);
    json_string(json, "message", message);
    json_object_end(json);
    json_object_end(json);
}

// ---- Prometheus -------------------------------------------------------------------------------

#define PREFIX "lockstep_coordinator_"

static const char *const up_names[SERVICE_UP_KINDS] = {
    NULL,        "hello", "start", "manifest_part", "ready", "wait",    "layout_part", "end",
    "heartbeat", "fail",  "lost",  "leave",         "links", "blocked", "modules",     "answer",
};
static const char *const down_names[SERVICE_DOWN_KINDS] = {
    NULL,          "welcome",   "refused", "generation", "verified", "manifest_request", "grant",
    "layout_part", "plan_part", "halt",    "tuning",     "query",    "inspect",
};
static const char *const refusal_names[SERVICE_REFUSALS] = {
    NULL, "version", "invalid", "timeout", "full", "draining",
};
static const char *const halt_names[SERVICE_HALTS] = {
    NULL,   "manifest", "phase",    "order",  "wait_unplanned", "collective",
    "lost", "left",     "protocol", "layout", "tuning",
};

static void family(struct text *text, const char *name, const char *type, const char *help)
{
    text_append(text, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n", name, help, name, type);
}

static void single(struct text *text, const char *name, const char *type, const char *help,
                   uint64_t value)
{
    family(text, name, type, help);
    text_append(text, PREFIX "%s %" PRIu64 "\n", name, value);
}

static void sample(struct text *text, const char *name, const char *label, const char *value,
                   uint64_t count)
{
    text_append(text, PREFIX "%s{%s=\"%s\"} %" PRIu64 "\n", name, label, value, count);
}

// A counter for each kind of something.
static void by_kind(struct text *text, const char *name, const char *help, const char *const *kinds,
                    const uint64_t *counts, size_t count)
{
    family(text, name, "counter", help);
    for (size_t i = 1; i < count; i++)
        sample(text, name, "kind", kinds[i], counts[i]);
}

static void metric_jobs(struct text *text, const struct snapshot *snapshot)
{
    uint64_t counts[JOB_FINISHED + 1] = {0};
    for (uint32_t i = 0; i < snapshot->job_count; i++)
        counts[snapshot->jobs[i].view.state]++;
    family(text, "jobs", "gauge", "Jobs by state.");
    for (int state = 0; state <= JOB_FINISHED; state++)
        sample(text, "jobs", "state", job_state_name((enum job_state)state), counts[state]);
}

static void metric_workers(struct text *text, const struct snapshot *snapshot)
{
    static const char *const states[] = {"present", "frozen", "left", "lost"};
    family(text, "workers", "gauge", "Workers by state.");
    for (size_t s = 0; s < sizeof states / sizeof states[0]; s++) {
        uint64_t count = 0;
        for (uint32_t i = 0; i < snapshot->worker_count; i++)
            count += strcmp(worker_state(&snapshot->workers[i]), states[s]) == 0;
        sample(text, "workers", "state", states[s], count);
    }
}

// A label's value: backslash, quote and newline are escaped.
static void escape_label(const char *value, char *escaped, size_t capacity)
{
    size_t size = 0;
    for (; *value && size + 3 <= capacity; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            escaped[size++] = '\\';
        escaped[size++] = *value == '\n' ? 'n' : *value;
    }
    escaped[size] = '\0';
}

static uint64_t job_value(const struct job_view *job, size_t which)
{
    switch (which) {
    case 0:
        return job->world_size;
    case 1:
        return job->joined;
    case 2:
        return job->step_min;
    case 3:
        return job->step_max;
    default:
        return job->generation.number;
    }
}

static void metric_each_job(struct text *text, const struct snapshot *snapshot)
{
    static const char *const names[] = {"job_world_size", "job_workers", "job_step_min",
                                        "job_step_max", "job_generation"};
    static const char *const helps[] = {
        "World size of the job, or the one it wants while gathering.",
        "Workers of the job that are present.", "Lowest step that a member reported.",
        "Highest step that a member reported.", "Number of the present generation."};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        family(text, names[n], "gauge", helps[n]);
        for (uint32_t i = 0; i < snapshot->job_count; i++) {
            char name[2 * LOCKSTEP_JOB_NAME_BYTES];
            escape_label(snapshot->jobs[i].view.name, name, sizeof name);
            sample(text, names[n], "job", name, job_value(&snapshot->jobs[i].view, n));
        }
    }
}

static void metric_streams(struct text *text, const struct rpc_counts *rpc)
{
    single(text, "streams", "gauge", "Control streams that stand.", rpc->streams);
    single(text, "streams_opened_total", "counter", "Control streams opened.", rpc->streams_opened);
    single(text, "streams_refused_total", "counter", "Control streams above the limit.",
           rpc->streams_refused);
    single(text, "streams_silent_total", "counter", "Control streams closed for saying nothing.",
           rpc->streams_silent);
    single(text, "slow_consumers_total", "counter", "Control streams closed for not reading.",
           rpc->slow_consumers);
    single(text, "unknown_methods_total", "counter", "Calls of methods that do not exist.",
           rpc->unknown_methods);
    single(text, "accept_failures_total", "counter",
           "Times a connection could not be accepted and the listener was given up.",
           rpc->accept_failures);
    single(text, "listener_reopens_total", "counter", "Times the listener was opened again.",
           rpc->listener_reopens);
    single(text, "listening", "gauge", "1 while new workers can connect.", rpc->listening);
}

static void metric_process(struct text *text, const struct snapshot *snapshot,
                           const struct render_process *process)
{
    family(text, "build_info", "gauge", "Version of the daemon; always 1.");
    sample(text, "build_info", "version", process->version, 1);
    family(text, "process_start_time_seconds", "gauge", "Start of the process, in Unix time.");
    text_append(text, PREFIX "process_start_time_seconds %" PRIu64 ".%03u\n",
                process->start_unix_ms / 1000, (unsigned)(process->start_unix_ms % 1000));
    single(text, "draining", "gauge", "1 after SIGTERM.", snapshot->draining);
}

void render_metrics(struct text *text, const struct snapshot *snapshot,
                    const struct render_process *process)
{
    const struct service_counts *counts = &snapshot->counts;
    metric_process(text, snapshot, process);
    metric_jobs(text, snapshot);
    metric_workers(text, snapshot);
    metric_each_job(text, snapshot);
    by_kind(text, "messages_received_total", "Messages from workers.", up_names, counts->received,
            SERVICE_UP_KINDS);
    by_kind(text, "messages_sent_total", "Messages to workers.", down_names, counts->sent,
            SERVICE_DOWN_KINDS);
    by_kind(text, "refusals_total", "Workers that were turned away.", refusal_names,
            counts->refused, SERVICE_REFUSALS);
    by_kind(text, "halts_total", "Verdicts that ended a step or a generation.", halt_names,
            counts->halted, SERVICE_HALTS);
    single(text, "decode_errors_total", "counter", "Messages that could not be decoded.",
           counts->decode_errors);
    single(text, "encode_errors_total", "counter", "Messages that could not be encoded: bugs.",
           counts->encode_errors);
    metric_streams(text, &snapshot->rpc);
}
