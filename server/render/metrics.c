// SPDX-License-Identifier: Apache-2.0
//
// A snapshot as Prometheus text. One function for each family of metrics. See render.h.

#include "server/render/metrics.h"

#include "coordinator/culprit.h"
#include "coordinator/view.h"
#include "server/render/names.h"
#include "server/render/render.h"
#include "server/render/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "lockstep_coordinator_"

static const char *const up_names[SERVICE_UP_KINDS] = {
    [UP_HELLO] = "hello",     [UP_START] = "start",         [UP_MANIFEST_PART] = "manifest_part",
    [UP_READY] = "ready",     [UP_WAIT] = "wait",           [UP_LAYOUT_PART] = "layout_part",
    [UP_END] = "end",         [UP_HEARTBEAT] = "heartbeat", [UP_FAIL] = "fail",
    [UP_LOST] = "lost",       [UP_LEAVE] = "leave",         [UP_LINKS] = "links",
    [UP_BLOCKED] = "blocked", [UP_MODULES] = "modules",     [UP_ANSWER] = "answer",
    [UP_REPLAN] = "replan",   [UP_REACH] = "reach",         [UP_RECORD_PART] = "record_part",
    [UP_REPORT] = "report",   [UP_REFUSE] = "refuse",
};
static const char *const down_names[SERVICE_DOWN_KINDS] = {
    [DOWN_WELCOME] = "welcome",
    [DOWN_REFUSED] = "refused",
    [DOWN_GENERATION] = "generation",
    [DOWN_VERIFIED] = "verified",
    [DOWN_MANIFEST_REQUEST] = "manifest_request",
    [DOWN_GRANT] = "grant",
    [DOWN_LAYOUT_PART] = "layout_part",
    [DOWN_PLAN_PART] = "plan_part",
    [DOWN_HALT] = "halt",
    [DOWN_TUNING] = "tuning",
    [DOWN_QUERY] = "query",
    [DOWN_INSPECT] = "inspect",
    [DOWN_ADDRESSES] = "addresses",
    [DOWN_PREPARE] = "prepare",
    [DOWN_RECORD_PART] = "record_part",
    [DOWN_DECISION] = "decision",
    [DOWN_EXCLUDED] = "excluded",
};
static const char *const refusal_names[SERVICE_REFUSALS] = {
    [REFUSAL_VERSION] = "version", [REFUSAL_INVALID] = "invalid",   [REFUSAL_TIMEOUT] = "timeout",
    [REFUSAL_FULL] = "full",       [REFUSAL_DRAINING] = "draining",
};
static const char *const halt_names[SERVICE_HALTS] = {
    [HALT_MANIFEST] = "manifest",
    [HALT_PHASE] = "phase",
    [HALT_ORDER] = "order",
    [HALT_UNPLANNED] = "wait_unplanned",
    [HALT_COLLECTIVE] = "collective",
    [HALT_LOST] = "lost",
    [HALT_LEFT] = "left",
    [HALT_PROTOCOL] = "protocol",
    [HALT_LAYOUT] = "layout",
    [HALT_TUNING] = "tuning",
    [HALT_LIMIT] = "limit",
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

// Writes one counter with a sample for each kind.
static void by_kind(struct text *text, const char *name, const char *help, const char *const *kinds,
                    const uint64_t *counts, size_t count)
{
    family(text, name, "counter", help);
    for (size_t i = 1; i < count; i++)
        sample(text, name, "kind", kinds[i], counts[i]);
}

static void metric_jobs(struct text *text, const struct snapshot *snapshot)
{
    uint64_t counts[JOB_RESUMING + 1] = {0};
    for (uint32_t i = 0; i < snapshot->job_count; i++)
        counts[snapshot->jobs[i].view.state]++;
    family(text, "jobs", "gauge", "Jobs by state.");
    for (int state = 0; state <= JOB_RESUMING; state++)
        sample(text, "jobs", "state", coordinator_job_state_name((enum job_state)state),
               counts[state]);
}

static void metric_workers(struct text *text, const struct snapshot *snapshot)
{
    static const char *const states[] = {"present", "frozen", "awaited", "left", "lost"};
    family(text, "workers", "gauge", "Workers by state.");
    for (size_t s = 0; s < sizeof(states) / sizeof(states[0]); s++) {
        uint64_t count = 0;
        for (uint32_t i = 0; i < snapshot->worker_count; i++)
            count += strcmp(name_worker(&snapshot->workers[i]), states[s]) == 0;
        sample(text, "workers", "state", states[s], count);
    }
}

// Escapes backslash, quote and newline in a label's value.
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

enum job_metric {
    JOB_WORLD_SIZE,
    JOB_WORKERS,
    JOB_STEP_MIN,
    JOB_STEP_MAX,
    JOB_IS_GATHERING,
    JOB_GENERATION,
    JOB_RECOVERIES,
    JOB_RECOVERING,
};

static uint64_t job_value(const struct job_view *job, enum job_metric metric)
{
    switch (metric) {
    case JOB_WORLD_SIZE:
        return job->world_size;
    case JOB_WORKERS:
        return job->joined;
    case JOB_STEP_MIN:
        return job->step_min;
    case JOB_STEP_MAX:
        return job->step_max;
    case JOB_IS_GATHERING:
        return job->state == JOB_GATHERING;
    case JOB_GENERATION:
        return job->generation.number;
    case JOB_RECOVERIES:
        return job->recoveries;
    case JOB_RECOVERING:
        return job->recovering;
    }
    return 0;
}

static void metric_each_job(struct text *text, const struct snapshot *snapshot)
{
    static const struct {
        const char *name, *type, *help;
    } metrics[] = {
        [JOB_WORLD_SIZE] = {"job_world_size", "gauge",
                            "World size of the job, or the one it wants while gathering."},
        [JOB_WORKERS] = {"job_workers", "gauge", "Workers of the job that are present."},
        [JOB_STEP_MIN] = {"job_step_min", "gauge", "Lowest step that a member reported."},
        [JOB_STEP_MAX] = {"job_step_max", "gauge", "Highest step that a member reported."},
        [JOB_IS_GATHERING] = {"job_gathering", "gauge",
                              "1 while the job waits for workers to form its world."},
        [JOB_GENERATION] = {"job_generation", "gauge", "Number of the present generation."},
        [JOB_RECOVERIES] = {"job_recoveries_total", "counter",
                            "Losses after which the other ranks went on."},
        [JOB_RECOVERING] = {"job_recovering", "gauge",
                            "1 while ranks freeze, or form the next world, after a loss."},
    };
    for (size_t m = 0; m < sizeof(metrics) / sizeof(metrics[0]); m++) {
        family(text, metrics[m].name, metrics[m].type, metrics[m].help);
        for (uint32_t i = 0; i < snapshot->job_count; i++) {
            const struct job_view *job = &snapshot->jobs[i].view;
            char name[2 * LOCKSTEP_JOB_NAME_BYTES];
            escape_label(job->name, name, sizeof(name));
            sample(text, metrics[m].name, "job", name, job_value(job, (enum job_metric)m));
        }
    }
}

// Writes a metric in seconds for each job. `unit`: how many units of the value make a second. An
// unknown value has no sample.
static void each_job_seconds(struct text *text, const struct snapshot *snapshot, const char *name,
                             const char *type, const char *help, double unit,
                             bool (*value)(const struct snapshot *, const struct snapshot_job *,
                                           uint64_t *))
{
    family(text, name, type, help);
    for (uint32_t i = 0; i < snapshot->job_count; i++) {
        char job[2 * LOCKSTEP_JOB_NAME_BYTES];
        uint64_t count = 0;
        escape_label(snapshot->jobs[i].view.name, job, sizeof(job));
        if (value(snapshot, &snapshot->jobs[i], &count))
            text_append(text, PREFIX "%s{job=\"%s\"} %.6f\n", name, job, (double)count / unit);
    }
}

static bool stalled_ms(const struct snapshot *snapshot, const struct snapshot_job *job,
                       uint64_t *ms)
{
    const struct stall_view *stall = snapshot_stall(snapshot, job);
    *ms = stall ? stall->age_ms : 0;
    return true;
}

// Returns the rate of the last second. NULL: no step ended in it, or the job does not run any more,
// and its last rate stays as it is.
static const struct rate_view *last_rate(const struct snapshot *snapshot,
                                         const struct snapshot_job *job)
{
    const struct rate_view *rate = &snapshot->rates[job->rates.first];
    const bool runs = job->view.state == JOB_RUNNING;
    return runs && job->rates.count > 0 && rate->steps > 0 ? rate : NULL;
}

static bool step_us(const struct snapshot *snapshot, const struct snapshot_job *job, uint64_t *us)
{
    const struct rate_view *rate = last_rate(snapshot, job);
    *us = rate ? rate->step_us : 0;
    return rate != NULL;
}

static bool exposed_us(const struct snapshot *snapshot, const struct snapshot_job *job,
                       uint64_t *us)
{
    const struct rate_view *rate = last_rate(snapshot, job);
    *us = rate ? rate->exposed_us : 0;
    return rate != NULL;
}

static bool recovery_ms(const struct snapshot *snapshot, const struct snapshot_job *job,
                        uint64_t *ms)
{
    (void)snapshot;
    *ms = job->view.recovery_spent_ms;
    return true;
}

static void metric_stragglers(struct text *text, const struct snapshot *snapshot)
{
    family(text, "job_straggler_score", "gauge",
           "Share of the time that the others wait for this rank; the highest of each job.");
    for (uint32_t i = 0; i < snapshot->job_count; i++) {
        const struct snapshot_job *job = &snapshot->jobs[i];
        const struct worker_view *found[RENDER_STRAGGLERS];
        const uint32_t count = render_stragglers(snapshot, job, found);
        char name[2 * LOCKSTEP_JOB_NAME_BYTES];
        escape_label(job->view.name, name, sizeof(name));
        for (uint32_t s = 0; s < count; s++)
            text_append(text, PREFIX "job_straggler_score{job=\"%s\",rank=\"%u\"} %.3f\n", name,
                        found[s]->rank, found[s]->straggler_permille / 1000.0);
    }
}

// jobs: true if metrics that name jobs are included.
static void metric_stalls(struct text *text, const struct snapshot *snapshot, bool jobs)
{
    family(text, "stalls_total", "counter", "Times that a job stood still longer than it may.");
    for (int kind = STALL_NONE + 1; kind < SERVICE_STALLS; kind++)
        sample(text, "stalls_total", "kind", coordinator_stall_kind_name((enum stall_kind)kind),
               snapshot->counts.stalls[kind]);
    if (!jobs)
        return;
    family(text, "job_stalled", "gauge", "1 while the job stands still longer than it may.");
    for (uint32_t i = 0; i < snapshot->job_count; i++) {
        char job[2 * LOCKSTEP_JOB_NAME_BYTES];
        escape_label(snapshot->jobs[i].view.name, job, sizeof(job));
        sample(text, "job_stalled", "job", job,
               snapshot_stall(snapshot, &snapshot->jobs[i]) != NULL);
    }
    each_job_seconds(text, snapshot, "job_stall_seconds", "gauge",
                     "How long the job has stood still.", 1e3, stalled_ms);
    each_job_seconds(text, snapshot, "job_step_seconds", "gauge",
                     "Time of one step, in the last second.", 1e6, step_us);
    each_job_seconds(text, snapshot, "job_exposed_seconds", "gauge",
                     "Of that, what a rank waited for results.", 1e6, exposed_us);
    metric_stragglers(text, snapshot);
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
    single(text, "budget_ended_total", "counter",
           "Connections and streams ended because all together cost too much memory.",
           rpc->budget_ended);
    single(text, "memory_bytes", "gauge", "What the process has from its allocator.",
           rpc->memory_bytes);
    single(text, "unknown_methods_total", "counter", "Calls of methods that do not exist.",
           rpc->unknown_methods);
    single(text, "accept_failures_total", "counter",
           "Times a connection could not be accepted and the listener was given up.",
           rpc->accept_failures);
    single(text, "listener_reopens_total", "counter", "Times the listener was opened again.",
           rpc->listener_reopens);
    single(text, "listening", "gauge", "1 while new workers can connect.", rpc->listening);
}

static void metric_tls(struct text *text, const struct rpc_counts *rpc)
{
    single(text, "streams_unauthorized_total", "counter",
           "Control streams of certificates that do not allow what was asked for.",
           rpc->streams_unauthorized);
    single(text, "tls_handshakes_failed_total", "counter",
           "Connections of workers that ended in the TLS handshake.", rpc->handshakes_failed);
    single(text, "tls_reloads_total", "counter", "Times that other certificates were taken up.",
           rpc->tls_reloads);
    single(text, "tls_reload_failures_total", "counter",
           "Times that certificates changed and could not be used.", rpc->tls_reload_failures);
    if (rpc->tls_expires_s > 0)
        single(text, "tls_certificate_expires_seconds", "gauge",
               "When the certificate ends, in Unix time.", rpc->tls_expires_s);
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
                    const struct render_process *process, const struct render_http *http)
{
    const struct service_counts *counts = &snapshot->counts;
    metric_process(text, snapshot, process);
    metric_jobs(text, snapshot);
    metric_workers(text, snapshot);
    if (!http->without_jobs) {
        metric_each_job(text, snapshot);
        each_job_seconds(text, snapshot, "job_recovery_seconds_total", "counter",
                         "Time from losses until the other ranks went on.", 1e3, recovery_ms);
    }
    metric_stalls(text, snapshot, !http->without_jobs);
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
    metric_tls(text, &snapshot->rpc);
    single(text, "event_streams", "gauge", "Clients that listen to events.", http->streams);
    single(text, "event_streams_skipped_total", "counter",
           "States not sent because a client had not read the ones before.", http->skipped);
    single(text, "http_connections", "gauge", "HTTP connections.", http->connections);
    single(text, "http_connections_refused_total", "counter",
           "HTTP connections above what one address may have.", http->connections_refused);
    single(text, "http_connections_late_total", "counter",
           "HTTP connections closed for taking too long.", http->connections_late);
}
