// SPDX-License-Identifier: Apache-2.0
//
// Stalls, their culprits, and places as JSON. See render.h and where.h.

#include "server/render/stall.h"

#include "coordinator/culprit.h"
#include "server/render/names.h"
#include "server/render/render.h"
#include "server/render/where.h"

#include <inttypes.h>
#include <stdio.h>

// ---- places -----------------------------------------------------------------------------------

void render_module_name(const struct snapshot *snapshot, const struct snapshot_job *job,
                        uint32_t module, char *name, size_t bytes)
{
    const struct module_view *known = &snapshot->modules[job->modules.first];
    if (module < job->modules.count && known[module].name[0])
        snprintf(name, bytes, "%s", known[module].name);
    else
        snprintf(name, bytes, "module %" PRIu32, module);
}

void render_api(struct json *json, const struct snapshot *snapshot, const struct snapshot_job *job,
                const struct place *place, uint64_t age_ms)
{
    json_string(json, "api", place->api == API_NONE ? NULL : api_function_name(place->api));
    json_bool(json, "inside", place->inside);
    json_u64(json, "api_age_ms", place->api_ms + age_ms);
    if (place->api != API_NONE && place->module < LOCKSTEP_MAX_MODULES) {
        char name[RENDER_MODULE_BYTES];
        render_module_name(snapshot, job, place->module, name, sizeof(name));
        json_string(json, "module", name);
        json_u64(json, "call", render_call(place->call));
    } else {
        json_null(json, "module");
        json_null(json, "call");
    }
}

static void render_slot(struct json *json, const struct snapshot *snapshot,
                        const struct snapshot_job *job, const struct place *place)
{
    if (place->position >= place->count) {
        json_null(json, "slot");
        return;
    }
    char name[RENDER_MODULE_BYTES];
    render_module_name(snapshot, job, place->slot.module, name, sizeof(name));
    json_object_begin(json, "slot");
    json_string(json, "module", name);
    json_u64(json, "call", render_call(place->slot.call));
    json_u64(json, "bucket", place->slot.bucket);
    json_object_end(json);
}

void render_place(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct place *place, uint64_t age_ms)
{
    if (place->api == API_NONE) {
        json_null(json, key);
        return;
    }
    json_object_begin(json, key);
    json_u64(json, "position", place->position);
    json_u64(json, "count", place->count);
    json_bool(json, "done", place->done);
    json_bool(json, "waits", place->waits);
    render_slot(json, snapshot, job, place);
    render_api(json, snapshot, job, place, age_ms);
    json_object_end(json);
}

void render_flags(struct json *json, uint32_t flags)
{
    json_array_begin(json, "flags");
    for (unsigned bit = 0; name_flag(bit); bit++) {
        if (flags >> bit & 1)
            json_string(json, NULL, name_flag(bit));
    }
    json_array_end(json);
}

// ---- culprits ---------------------------------------------------------------------------------

void render_kind(struct json *json, const char *key, enum stall_kind kind)
{
    json_string(json, key, kind == STALL_NONE ? NULL : coordinator_stall_kind_name(kind));
}

// Returns the age of a rank's last heartbeat in ms.
static uint64_t heartbeat_age_ms(const struct snapshot *snapshot, const struct snapshot_job *job,
                                 uint32_t rank)
{
    const struct worker_view *workers = &snapshot->workers[job->workers.first];
    return rank < job->workers.count ? workers[rank].heartbeat_age_ms : 0;
}

static void render_awaited(struct json *json, const struct culprit_view *culprit)
{
    char stream[24];
    snprintf(stream, sizeof(stream), "0x%" PRIx64, culprit->stream);
    json_string(json, "awaited", culprit->awaited[0] ? culprit->awaited : NULL);
    json_string(json, "stream", culprit->stream != 0 ? stream : NULL);
}

static void render_culprit_name(struct json *json, const struct culprit_view *culprit)
{
    json_u64(json, "rank", culprit->rank);
    json_string(json, "host", culprit->host);
    json_u64(json, "pid", culprit->pid);
    render_kind(json, "kind", culprit->kind);
}

// Writes the members that nobody keeps of a stall that is over.
static void render_culprit_past(struct json *json)
{
    static const char *const before[] = {"age_ms",     "bound_ms", "why",  "api",   "inside",
                                         "api_age_ms", "module",   "call", "ready", "gradients"};
    static const char *const behind[] = {"missing_total", "awaited",  "stream",
                                         "mark",          "answered", "top"};
    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++)
        json_null(json, before[i]);
    json_array_begin(json, "missing");
    json_array_end(json);
    for (size_t i = 0; i < sizeof(behind) / sizeof(behind[0]); i++)
        json_null(json, behind[i]);
    render_flags(json, 0);
    json_null(json, "sleeps");
}

static void render_culprit_active(struct json *json, const struct snapshot *snapshot,
                                  const struct snapshot_job *job,
                                  const struct culprit_view *culprit)
{
    json_u64(json, "age_ms", culprit->age_ms);
    json_u64(json, "bound_ms", culprit->bound_ms);
    json_string(json, "why", culprit->why[0] ? culprit->why : NULL);
    render_api(json, snapshot, job, &culprit->place,
               heartbeat_age_ms(snapshot, job, culprit->rank));
    json_u64(json, "ready", culprit->place.ready);
    json_u64(json, "gradients", culprit->place.gradients);
    json_array_begin(json, "missing");
    for (uint32_t i = 0; i < culprit->missing_count; i++)
        json_string(json, NULL, culprit->missing[i]);
    json_array_end(json);
    json_u64(json, "missing_total", culprit->missing_total);
    render_awaited(json, culprit);
    json_string(json, "mark", culprit->mark[0] ? culprit->mark : NULL);
    json_bool(json, "answered", culprit->answered);
    json_string(json, "top", culprit->top[0] ? culprit->top : NULL);
    render_flags(json, culprit->flags);
    json_string(json, "sleeps", culprit->sleeps[0] ? culprit->sleeps : NULL);
}

// ---- stalls -----------------------------------------------------------------------------------

// Writes a group of ranks that wait for one rank: the lowest rank of the group, and their number.
static void render_edge(struct json *json, const struct stall_edge *edge)
{
    json_object_begin(json, NULL);
    json_u64(json, "from", edge->from);
    json_u64(json, "members", edge->members);
    json_u64(json, "to", edge->to);
    json_object_end(json);
}

void render_stall(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct stall_view *stall)
{
    json_object_begin(json, key);
    json_string(json, "job", job->view.name);
    json_u64(json, "number", stall->number);
    json_bool(json, "active", stall->active);
    render_kind(json, "kind", stall->kind);
    json_string(json, "sentence", stall->sentence);
    json_u64(json, "step", stall->step);
    json_string(json, "phase", stall->phase[0] ? stall->phase : NULL);
    json_u64(json, "age_ms", stall->age_ms);
    if (stall->active)
        json_null(json, "lasted_ms");
    else
        json_u64(json, "lasted_ms", stall->lasted_ms);
    json_u64(json, "ranks_waiting", stall->waiting);
    json_u64(json, "culprits_total", stall->culprit_total);
    json_array_begin(json, "culprits");
    for (uint32_t i = 0; i < stall->culprit_count; i++) {
        json_object_begin(json, NULL);
        render_culprit_name(json, &stall->culprits[i]);
        if (stall->active)
            render_culprit_active(json, snapshot, job, &stall->culprits[i]);
        else
            render_culprit_past(json);
        json_object_end(json);
    }
    json_array_end(json);
    json_array_begin(json, "edges");
    for (uint32_t i = 0; i < stall->edge_count; i++)
        render_edge(json, &stall->edges[i]);
    json_array_end(json);
    json_object_end(json);
}

// Writes the active stalls, or the past ones, of one job or of all jobs (only NULL).
static void render_some(struct json *json, const struct snapshot *snapshot,
                        const struct snapshot_job *only, bool active)
{
    uint32_t left = active ? UINT32_MAX : RENDER_STALLS;
    for (uint32_t j = snapshot->job_count; j > 0; j--) {
        const struct snapshot_job *job = &snapshot->jobs[j - 1];
        const struct stall_view *stalls = &snapshot->stalls[job->stalls.first];
        if (only && job != only)
            continue;
        for (uint32_t i = 0; i < job->stalls.count && left > 0; i++) {
            if (stalls[i].active == active) {
                render_stall(json, NULL, snapshot, job, &stalls[i]);
                left--;
            }
        }
    }
}

bool render_stalls(struct json *json, const struct snapshot *snapshot, const char *name)
{
    const struct snapshot_job *job = name ? snapshot_find(snapshot, name) : NULL;
    if (name && !job)
        return false;
    json_object_begin(json, NULL);
    json_array_begin(json, "stalls");
    render_some(json, snapshot, job, true);
    render_some(json, snapshot, job, false);
    json_array_end(json);
    json_object_end(json);
    return true;
}
