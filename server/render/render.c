// SPDX-License-Identifier: Apache-2.0
//
// Jobs and workers as JSON. See render.h.

#include "server/render/render.h"

#include "coordinator/view.h"
#include "server/render/stall.h"
#include "server/render/state.h"

#include "protos/tuning.h"
#include "protos/tuning_json.h"
#include "server/render/names.h"
#include "server/render/where.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void render_generation(struct json *json, const struct generation_id *generation)
{
    // Written as text, because JavaScript's numbers are exact to 53 bits only.
    char incarnation[17];
    snprintf(incarnation, sizeof(incarnation), "%016" PRIx64, generation->incarnation);
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

// Writes the algorithms for ranges of payload sizes, in the order of size. Neighbouring ranges with
// the same algorithm are merged. A bound that is not above the previous one (such as 0) is skipped.
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

// Writes the device classes of the job's workers, in the order of ranks.
static void render_devices(struct json *json, const struct snapshot *snapshot,
                           const struct snapshot_job *job)
{
    const struct worker_view *workers = &snapshot->workers[job->workers.first];
    json_array_begin(json, "device_classes");
    for (uint32_t i = 0; i < job->workers.count; i++) {
        uint32_t first = 0;
        while (strcmp(workers[first].device, workers[i].device) != 0)
            first++;
        if (first == i && workers[i].device[0])
            json_string(json, NULL, workers[i].device);
    }
    json_array_end(json);
}

static void render_verdict(struct json *json, const struct snapshot *snapshot,
                           const struct snapshot_job *job)
{
    const struct stall_view *stall = snapshot_stall(snapshot, job);
    json_bool(json, "stalled", stall != NULL);
    json_string(json, "verdict", stall ? stall->sentence : NULL);
    json_string(json, "phase", stall && stall->phase[0] ? stall->phase : NULL);
}

// Writes the time since at_ms, or null if at_ms is 0 because the event has not happened.
static void render_age(struct json *json, const char *key, uint64_t now_ms, uint64_t at_ms)
{
    if (at_ms > 0)
        json_u64(json, key, now_ms > at_ms ? now_ms - at_ms : 0);
    else
        json_null(json, key);
}

// Writes how far the generation is, and how it ended.
static void render_life(struct json *json, const struct job_view *job, uint64_t now_ms)
{
    json_u64(json, "settled", job->settled);
    render_age(json, "settled_age_ms", now_ms, job->settled_ms);
    render_age(json, "formed_age_ms", now_ms, job->formed_ms);
    render_age(json, "ended_age_ms", now_ms, job->ended_ms);
    json_string(json, "halt_kind", job->halt_kind);
    if (job->halt_has_rank)
        json_u64(json, "halt_rank", job->halt_rank);
    else
        json_null(json, "halt_rank");
    json_u64(json, "failed", job->failed);
    if (job->failed > 0)
        json_u64(json, "failed_rank", job->failed_rank);
    else
        json_null(json, "failed_rank");
    json_string(json, "failed_text", job->failed > 0 ? job->failed_text : NULL);
}

// Writes the last values of the job's metrics and counters.
static void render_numbers(struct json *json, const struct numbers_view *numbers)
{
    static const char *const kinds[] = {"", "sum", "mean", "min", "max"};
    json_array_begin(json, "metrics");
    for (uint32_t i = 0; i < numbers->metric_count; i++) {
        const struct metric_state *metric = &numbers->metrics[i];
        json_object_begin(json, NULL);
        json_string(json, "name", metric->name);
        json_string(json, "kind", metric->kind <= METRIC_MAX ? kinds[metric->kind] : NULL);
        json_double(json, "value", metric->value);
        json_u64(json, "count", metric->count);
        json_object_end(json);
    }
    json_array_end(json);
    json_array_begin(json, "counters");
    for (uint32_t i = 0; i < numbers->counter_count; i++) {
        json_object_begin(json, NULL);
        json_string(json, "name", numbers->counters[i].name);
        json_i64(json, "total", numbers->counters[i].total);
        json_object_end(json);
    }
    json_array_end(json);
}

// Writes how often the ranks went on after a loss.
static void render_recovery(struct json *json, const struct job_view *job)
{
    json_object_begin(json, "recovery");
    json_bool(json, "active", job->recovering);
    json_u64(json, "count", job->recoveries);
    json_u64(json, "spent_ms", job->recovery_spent_ms);
    json_u64(json, "last_ms", job->recovery_lasted_ms);
    json_string(json, "text", job->recovery_text[0] ? job->recovery_text : NULL);
    json_object_end(json);
}

static void render_job_members(struct json *json, const struct job_view *job, uint64_t now_ms)
{
    json_string(json, "name", job->name);
    json_string(json, "state", coordinator_job_state_name(job->state));
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
    render_life(json, job, now_ms);
    render_recovery(json, job);
    render_numbers(json, &job->numbers);
}

// Writes a text such as "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", as nvidia-smi prints it.
static void render_uuid(struct json *json, const char *key, const struct uuid *uuid)
{
    char text[sizeof("GPU-") + 2 * LOCKSTEP_UUID_BYTES + 4] = "GPU";
    size_t used = strlen(text);
    for (size_t i = 0; i < LOCKSTEP_UUID_BYTES; i++) {
        const bool group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%02x", group ? "-" : "",
                                 uuid->bytes[i]);
    }
    json_string(json, key, text);
}

// Writes a text such as "9.0", or null for version 0.
static void render_version(struct json *json, const char *key, uint32_t major, uint32_t minor)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu32 ".%" PRIu32, major, minor);
    json_string(json, key, major > 0 ? text : NULL);
}

static void render_gpu(struct json *json, const struct worker_view *worker)
{
    const struct gpu_view *gpu = &worker->gpu;
    if (!worker->has_gpu) {
        json_null(json, "gpu");
        return;
    }
    json_object_begin(json, "gpu");
    render_uuid(json, "uuid", &gpu->uuid);
    render_version(json, "capability", gpu->capability / 10, gpu->capability % 10);
    render_version(json, "driver", gpu->driver_version / 1000, gpu->driver_version % 1000 / 10);
    render_version(json, "nccl", gpu->nccl_version / 10000, gpu->nccl_version / 100 % 100);
    json_object_end(json);
}

static void render_worker(struct json *json, const struct snapshot *snapshot,
                          const struct snapshot_job *job, const struct worker_view *worker)
{
    json_object_begin(json, NULL);
    if (worker->has_rank)
        json_u64(json, "rank", worker->rank);
    else
        json_null(json, "rank");
    json_string(json, "state", name_worker(worker));
    json_string(json, "host", worker->host);
    json_u64(json, "pid", worker->pid);
    json_u64(json, "step", worker->step);
    json_u64(json, "settled", worker->settled);
    json_string(json, "activity", name_activity(worker->activity));
    json_u64(json, "activity_ms", worker->activity_ms);
    json_u64(json, "heartbeat_age_ms", worker->heartbeat_age_ms);
    json_string(json, "mark", worker->mark[0] ? worker->mark : NULL);
    json_u64(json, "bytes_sent", worker->bytes_sent);
    json_u64(json, "bytes_received", worker->bytes_received);
    render_totals(json, &worker->totals);
    json_string(json, "device", worker->device[0] ? worker->device : NULL);
    render_place(json, "place", snapshot, job, &worker->place, worker->heartbeat_age_ms);
    render_flags(json, worker->flags);
    json_string(json, "sleeps", worker->sleeps[0] ? worker->sleeps : NULL);
    render_kind(json, "verdict", worker->kind);
    json_bool(json, "slow", worker->slow);
    json_u64(json, "bound_ms", worker->bound_ms);
    json_u64(json, "lag_steps", worker->lag_steps);
    json_double(json, "straggler", worker->straggler_permille / 1000.0);
    render_gpu(json, worker);
    json_object_end(json);
}

void render_job_summary(struct json *json, const char *key, const struct snapshot *snapshot,
                        const struct snapshot_job *job)
{
    json_object_begin(json, key);
    render_job_members(json, &job->view, snapshot->made_ms);
    render_verdict(json, snapshot, job);
    render_devices(json, snapshot, job);
    render_slowest(json, snapshot, job);
    json_object_end(json);
}

void render_jobs(struct json *json, const struct snapshot *snapshot,
                 const struct render_process *process)
{
    char incarnation[17];
    snprintf(incarnation, sizeof(incarnation), "%016" PRIx64, snapshot->incarnation);
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
    for (uint32_t i = 0; i < snapshot->job_count; i++)
        render_job_summary(json, NULL, snapshot, &snapshot->jobs[i]);
    json_array_end(json);
    json_object_end(json);
}

bool render_job(struct json *json, const struct snapshot *snapshot, const char *name)
{
    const struct snapshot_job *job = snapshot_find(snapshot, name);
    if (!job)
        return false;
    json_object_begin(json, NULL);
    render_job_members(json, &job->view, snapshot->made_ms);
    render_verdict(json, snapshot, job);
    render_devices(json, snapshot, job);
    render_slowest(json, snapshot, job);
    json_array_begin(json, "workers");
    for (uint32_t w = 0; w < job->workers.count; w++)
        render_worker(json, snapshot, job, &snapshot->workers[job->workers.first + w]);
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
