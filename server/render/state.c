// SPDX-License-Identifier: Apache-2.0
//
// The page's data for one job, as one object that is sent every second. Rows are arrays, and one
// line of column names describes them, so that 512 ranks take about 50 KB. See render.h.

#include "server/render/state.h"

#include "server/render/names.h"
#include "server/render/render.h"
#include "server/render/stall.h"
#include "server/render/where.h"

// ---- ranks ------------------------------------------------------------------------------------

static const char *const columns[] = {
    "rank",  "host",   "pid",    "device",    "step",   "state", "kind",      "slow",
    "api",   "inside", "module", "call",      "age_ms", "ready", "gradients", "position",
    "count", "lag",    "flags",  "silent_ms", "mark",   "late",  "waited_ms"};

// Writes what the trainer did last, and how long ago in ms.
static void render_doing(struct json *json, const struct snapshot *snapshot,
                         const struct snapshot_job *job, const struct worker_view *worker)
{
    const struct place *place = &worker->place;
    if (place->api == API_NONE) {
        for (int i = 0; i < 4; i++)
            json_null(json, NULL);
        json_u64(json, NULL, worker->activity_ms);
        return;
    }
    char module[RENDER_MODULE_BYTES] = "";
    if (place->module < LOCKSTEP_MAX_MODULES)
        render_module_name(snapshot, job, place->module, module, sizeof(module));
    json_string(json, NULL, api_function_name(place->api));
    json_bool(json, NULL, place->inside);
    json_string(json, NULL, module[0] ? module : NULL);
    json_u64(json, NULL, module[0] ? render_call(place->call) : 0);
    json_u64(json, NULL, place->api_ms + worker->heartbeat_age_ms);
}

static void render_row(struct json *json, const struct snapshot *snapshot,
                       const struct snapshot_job *job, const struct worker_view *worker)
{
    json_array_begin(json, NULL);
    if (worker->has_rank)
        json_u64(json, NULL, worker->rank);
    else
        json_null(json, NULL);
    json_string(json, NULL, worker->host);
    json_u64(json, NULL, worker->pid);
    json_string(json, NULL, worker->device);
    json_u64(json, NULL, worker->step);
    json_string(json, NULL, name_state(worker));
    render_kind(json, NULL, worker->kind);
    json_u64(json, NULL, worker->slow);
    render_doing(json, snapshot, job, worker);
    json_u64(json, NULL, worker->place.ready);
    json_u64(json, NULL, worker->place.gradients);
    json_u64(json, NULL, worker->place.position);
    json_u64(json, NULL, worker->place.count);
    json_u64(json, NULL, worker->lag_steps);
    json_u64(json, NULL, worker->flags);
    json_u64(json, NULL, worker->heartbeat_age_ms);
    json_string(json, NULL, worker->mark);
    json_double(json, NULL, worker->straggler_permille / 1000.0);
    json_u64(json, NULL, worker->waited_ms);
    json_array_end(json);
}

static void render_rows(struct json *json, const struct snapshot *snapshot,
                        const struct snapshot_job *job)
{
    json_array_begin(json, "columns");
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
        json_string(json, NULL, columns[i]);
    json_array_end(json);
    json_array_begin(json, "rows");
    for (uint32_t i = 0; i < job->workers.count; i++)
        render_row(json, snapshot, job, &snapshot->workers[job->workers.first + i]);
    json_array_end(json);
}

// ---- modules ----------------------------------------------------------------------------------

// Returns how many ranks were in a module according to their last heartbeats.
static uint32_t ranks_in(const struct snapshot *snapshot, const struct snapshot_job *job,
                         uint32_t module)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->workers.count; i++)
        count += snapshot->workers[job->workers.first + i].place.module == module &&
                 snapshot->workers[job->workers.first + i].place.api != API_NONE;
    return count;
}

static void render_modules(struct json *json, const struct snapshot *snapshot,
                           const struct snapshot_job *job)
{
    json_array_begin(json, "modules");
    for (uint32_t i = 0; i < job->modules.count; i++) {
        char name[RENDER_MODULE_BYTES];
        render_module_name(snapshot, job, i, name, sizeof(name));
        json_object_begin(json, NULL);
        json_string(json, "name", name);
        json_u64(json, "ranks", ranks_in(snapshot, job, i));
        json_object_end(json);
    }
    json_array_end(json);
}

// ---- stragglers -------------------------------------------------------------------------------

uint32_t render_stragglers(const struct snapshot *snapshot, const struct snapshot_job *job,
                           const struct worker_view **found)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->workers.count; i++) {
        const struct worker_view *worker = &snapshot->workers[job->workers.first + i];
        if (!worker->has_rank || worker->straggler_permille == 0)
            continue;
        uint32_t place = count < RENDER_STRAGGLERS ? count++ : RENDER_STRAGGLERS;
        for (; place > 0 && found[place - 1]->straggler_permille < worker->straggler_permille;
             place--) {
            if (place < RENDER_STRAGGLERS)
                found[place] = found[place - 1];
        }
        if (place < RENDER_STRAGGLERS)
            found[place] = worker;
    }
    return count;
}

void render_slowest(struct json *json, const struct snapshot *snapshot,
                    const struct snapshot_job *job)
{
    const struct worker_view *found[RENDER_STRAGGLERS];
    const uint32_t count = render_stragglers(snapshot, job, found);
    json_array_begin(json, "stragglers");
    for (uint32_t i = 0; i < count; i++) {
        json_object_begin(json, NULL);
        json_u64(json, "rank", found[i]->rank);
        json_double(json, "score", found[i]->straggler_permille / 1000.0);
        json_object_end(json);
    }
    json_array_end(json);
}

// ---- history ----------------------------------------------------------------------------------

static void render_rates(struct json *json, const struct snapshot *snapshot,
                         const struct snapshot_job *job)
{
    json_array_begin(json, "rates");
    for (uint32_t i = 0; i < job->rates.count; i++) {
        const struct rate_view *rate = &snapshot->rates[job->rates.first + i];
        json_array_begin(json, NULL);
        json_u64(json, NULL, rate->age_ms / 1000);
        json_u64(json, NULL, rate->step_us);
        json_u64(json, NULL, rate->exposed_us);
        json_u64(json, NULL, rate->hidden_us);
        json_u64(json, NULL, rate->bytes_per_s);
        json_array_end(json);
    }
    json_array_end(json);
}

static void render_history_names(struct json *json, const struct job_view *job)
{
    static const char *const fixed[] = {"age_ms",     "span_ms",   "steps",      "step_us",
                                        "exposed_us", "hidden_us", "bytes_per_s"};
    json_array_begin(json, "columns");
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        json_string(json, NULL, fixed[i]);
    for (uint32_t m = 0; m < job->metric_count; m++)
        json_string(json, NULL, job->metrics[m]);
    json_array_end(json);
    json_u64(json, "metrics", job->metric_count);
}

static void render_history_row(struct json *json, const struct job_view *job,
                               const struct history_view *slot)
{
    json_array_begin(json, NULL);
    json_u64(json, NULL, slot->age_ms);
    json_u64(json, NULL, slot->span_ms);
    json_double(json, NULL, slot->steps);
    json_double(json, NULL, slot->step_us);
    json_double(json, NULL, slot->exposed_us);
    json_double(json, NULL, slot->hidden_us);
    json_double(json, NULL, slot->bytes_per_s);
    for (uint32_t m = 0; m < job->metric_count; m++) {
        if (slot->known >> m & 1)
            json_double(json, NULL, (double)slot->metrics[m]);
        else
            json_null(json, NULL);
    }
    json_array_end(json);
}

bool render_history(struct json *json, const struct snapshot *snapshot, const char *name)
{
    const struct snapshot_job *job = snapshot_find(snapshot, name);
    if (!job)
        return false;
    json_object_begin(json, NULL);
    json_string(json, "job", job->view.name);
    render_history_names(json, &job->view);
    json_array_begin(json, "rows");
    for (uint32_t i = 0; i < job->history.count; i++)
        render_history_row(json, &job->view, &snapshot->history[job->history.first + i]);
    json_array_end(json);
    json_object_end(json);
    return true;
}

static void render_log(struct json *json, const struct snapshot *snapshot,
                       const struct snapshot_job *job)
{
    json_array_begin(json, "log");
    for (uint32_t i = 0; i < job->events.count; i++) {
        const struct event_view *event = &snapshot->events[job->events.first + i];
        json_array_begin(json, NULL);
        json_u64(json, NULL, event->age_ms);
        json_string(json, NULL, event->text);
        json_string(json, NULL, event->id);
        json_array_end(json);
    }
    json_array_end(json);
}

// ---- the whole state --------------------------------------------------------------------------

bool render_state(struct json *json, const struct snapshot *snapshot, const char *name)
{
    const struct snapshot_job *job = snapshot_find(snapshot, name);
    if (!job)
        return false;
    const struct stall_view *stall = snapshot_stall(snapshot, job);
    json_object_begin(json, NULL);
    render_job_summary(json, "job", snapshot, job);
    if (stall)
        render_stall(json, "stall", snapshot, job, stall);
    else
        json_null(json, "stall");
    render_rows(json, snapshot, job);
    render_modules(json, snapshot, job);
    render_slowest(json, snapshot, job);
    render_rates(json, snapshot, job);
    render_log(json, snapshot, job);
    json_object_end(json);
    return true;
}
