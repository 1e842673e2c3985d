// SPDX-License-Identifier: Apache-2.0
//
// The last events of some ranks as a Chrome trace. Each rank is one process, with lanes for its
// steps, its calls, its threads, and the buckets that it sends. The clocks of ranks differ. Each
// answer has the worker's clock at the time of sending. That moment is set equal to the answer's
// arrival, so the lanes of different ranks agree up to the travel time of one message. See
// render.h.

#include "server/render/timeline.h"

#include "server/render/names.h"
#include "server/render/render.h"
#include "server/render/stall.h"
#include "server/render/where.h"

#include "protos/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SPANS 128 // Spans of one rank that have begun and not ended.
#define LANE_STEP 1
#define LANE_CALLS 2
#define LANE_THREADS 100
#define LANE_BUCKETS 200

struct span {
    bool open;
    struct trace_event begun;
    enum trace_kind ends; // The kind of event that ends the span.
    uint32_t lane;
};

struct lanes {
    struct json *json;
    const struct snapshot *snapshot;
    const struct snapshot_job *job; // NULL: the job no longer exists.
    const struct archived *archived;
    struct span spans[SPANS];
};

// ---- one event --------------------------------------------------------------------------------

static int64_t micros(const struct lanes *lanes, uint64_t time_ns)
{
    return (int64_t)(lanes->archived->events_ms * 1000) +
           ((int64_t)time_ns - (int64_t)lanes->archived->clock_ns) / 1000;
}

static void name_event(const struct lanes *lanes, const struct trace_event *event, char *name,
                       size_t bytes)
{
    char module[RENDER_MODULE_BYTES] = "";
    if (lanes->job && event->module < LOCKSTEP_MAX_MODULES)
        render_module_name(lanes->snapshot, lanes->job, event->module, module, sizeof(module));
    switch (event->kind) {
    case TRACE_API_ENTER:
        snprintf(name, bytes, "%s", api_function_name(event->value & 0xff));
        break;
    case TRACE_STEP_BEGIN:
        snprintf(name, bytes, "step %" PRIu64, event->step);
        break;
    case TRACE_STEP_END:
        snprintf(name, bytes, "end of step %" PRIu64, event->step);
        break;
    case TRACE_LAUNCH:
        snprintf(name, bytes, "%s#%" PRIu64 ".%u", module, render_call(event->call), event->bucket);
        break;
    case TRACE_PAUSE:
        snprintf(name, bytes, "pause");
        break;
    default:
        snprintf(name, bytes, "%s#%" PRIu64, module, render_call(event->call));
        break;
    }
}

static void render_args(struct json *json, const struct trace_event *event)
{
    json_object_begin(json, "args");
    json_u64(json, "step", event->step);
    if (event->module < LOCKSTEP_MAX_MODULES) {
        json_u64(json, "module", event->module);
        json_u64(json, "call", render_call(event->call));
        json_u64(json, "bucket", event->bucket);
    }
    if (event->kind == TRACE_LAUNCH)
        json_u64(json, "bytes", event->value);
    json_object_end(json);
}

static void render_span(const struct lanes *lanes, const struct span *span, uint64_t end_ns,
                        const char *category)
{
    char name[RENDER_MODULE_BYTES + 32];
    struct json *json = lanes->json;
    const uint64_t begin_ns = span->begun.time_ns;
    name_event(lanes, &span->begun, name, sizeof(name));
    json_object_begin(json, NULL);
    json_string(json, "name", name);
    json_string(json, "cat", category);
    json_string(json, "ph", "X");
    json_u64(json, "pid", lanes->archived->who.rank);
    json_u64(json, "tid", span->lane);
    json_i64(json, "ts", micros(lanes, begin_ns));
    json_u64(json, "dur", end_ns > begin_ns ? (end_ns - begin_ns) / 1000 : 0);
    render_args(json, &span->begun);
    json_object_end(json);
}

// ---- spans ------------------------------------------------------------------------------------

struct span_kind {
    enum trace_kind begins;
    enum trace_kind ends;
    uint32_t lane;
    const char *category;
};

static const struct span_kind kinds[] = {
    {TRACE_API_ENTER, TRACE_API_LEAVE, LANE_THREADS, "api"},
    {TRACE_STEP_BEGIN, TRACE_STEP_END, LANE_STEP, "step"},
    {TRACE_STEP_END, TRACE_SETTLED, LANE_STEP, "step"},
    {TRACE_CALL_BEGIN, TRACE_CALL_END, LANE_CALLS, "call"},
    {TRACE_LAUNCH, TRACE_FINAL, LANE_BUCKETS, "bucket"},
    {TRACE_PAUSE, TRACE_RESUME, LANE_STEP, "pause"},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const char *category_of(const struct span *span)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (kinds[i].begins == span->begun.kind)
            return kinds[i].category;
    }
    return "";
}

// Returns true if this event ends the span.
static bool matches(const struct span *span, const struct trace_event *event)
{
    const struct trace_event *begun = &span->begun;
    if (!span->open || span->ends != (enum trace_kind)event->kind)
        return false;
    switch (begun->kind) {
    case TRACE_API_ENTER:
        return begun->thread == event->thread && (begun->value & 0xff) == (event->value & 0xff);
    case TRACE_CALL_BEGIN:
        return begun->module == event->module && begun->call == event->call;
    case TRACE_LAUNCH:
        return begun->step == event->step && begun->module == event->module &&
               begun->call == event->call && begun->bucket == event->bucket;
    case TRACE_PAUSE:
        return true;
    default:
        return begun->step == event->step;
    }
}

// Spans on one lane must nest; buckets overlap, so each bucket takes the lowest free lane.
static uint32_t bucket_lane(const struct lanes *lanes)
{
    uint32_t lane = LANE_BUCKETS;
    for (size_t i = 0; i < SPANS; i++) {
        if (lanes->spans[i].open && lanes->spans[i].lane == lane) {
            lane++;
            i = SIZE_MAX; // Start again from the first span.
        }
    }
    return lane;
}

static void begin_span(struct lanes *lanes, const struct span_kind *kind,
                       const struct trace_event *event)
{
    for (size_t i = 0; i < SPANS; i++) {
        if (lanes->spans[i].open)
            continue;
        uint32_t lane = kind->lane;
        if (lane == LANE_THREADS)
            lane += event->thread;
        else if (lane == LANE_BUCKETS)
            lane = bucket_lane(lanes);
        lanes->spans[i] =
            (struct span){.open = true, .begun = *event, .ends = kind->ends, .lane = lane};
        return;
    }
}

static void take_event(struct lanes *lanes, const struct trace_event *event)
{
    for (size_t i = SPANS; i > 0; i--) {
        struct span *span = &lanes->spans[i - 1];
        if (matches(span, event)) {
            render_span(lanes, span, event->time_ns, category_of(span));
            span->open = false;
            break;
        }
    }
    for (size_t i = 0; i < KINDS; i++) {
        if ((enum trace_kind)event->kind == kinds[i].begins)
            begin_span(lanes, &kinds[i], event);
    }
}

// ---- ranks ------------------------------------------------------------------------------------

static void render_lane_name(struct json *json, const char *what, uint32_t rank, uint32_t lane,
                             const char *name)
{
    json_object_begin(json, NULL);
    json_string(json, "name", what);
    json_string(json, "ph", "M");
    json_u64(json, "pid", rank);
    json_u64(json, "tid", lane);
    json_object_begin(json, "args");
    json_string(json, "name", name);
    json_object_end(json);
    json_object_end(json);
}

void render_timeline_begin(struct json *json)
{
    json_object_begin(json, NULL);
    json_string(json, "displayTimeUnit", "ms");
    json_array_begin(json, "traceEvents");
}

void render_timeline_rank(struct json *json, const struct snapshot *snapshot,
                          const struct archived *archived)
{
    struct lanes lanes = {.json = json,
                          .snapshot = snapshot,
                          .job = snapshot_find(snapshot, archived->who.job),
                          .archived = archived};
    char name[LOCKSTEP_HOST_BYTES + 32];
    const uint32_t rank = archived->who.rank;
    snprintf(name, sizeof(name), "rank %u (%s)", rank, archived->who.host);
    render_lane_name(json, "process_name", rank, 0, name);
    render_lane_name(json, "thread_name", rank, LANE_STEP, "steps");
    render_lane_name(json, "thread_name", rank, LANE_CALLS, "calls");
    const struct trace_event *events = archived->events.items;
    for (uint32_t i = 0; i < archived->events.count; i++)
        take_event(&lanes, &events[i]);
    // A span that has not ended is drawn up to the time of the answer.
    for (size_t i = 0; i < SPANS; i++) {
        if (lanes.spans[i].open)
            render_span(&lanes, &lanes.spans[i], archived->clock_ns, category_of(&lanes.spans[i]));
    }
}

void render_timeline_end(struct json *json)
{
    json_array_end(json);
    json_object_end(json);
}
