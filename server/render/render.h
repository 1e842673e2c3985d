// SPDX-License-Identifier: Apache-2.0
//
// A snapshot as JSON and as Prometheus text. Pure functions, any thread. The keys and the names of
// the metrics are a promise: docs/http.md lists them, and they are only ever added to.

#ifndef LOCKSTEP_SERVER_RENDER_RENDER_H
#define LOCKSTEP_SERVER_RENDER_RENDER_H

#include "base/json.h"
#include "base/text.h"
#include "server/archive.h"
#include "server/snapshot.h"

#define RENDER_JSON_BYTES (8 * 1024 * 1024) // 1024 workers take about 0.9 MiB.
#define RENDER_METRICS_BYTES (256 * 1024)
#define RENDER_STRAGGLERS 8 // Of one job.
#define RENDER_STALLS 32 // That are over, in one answer.

// What does not change while the daemon runs.
struct render_process {
    const char *version;
    uint64_t start_unix_ms;
    uint64_t start_ms; // The same moment in clock_now_ms.
};

// What the HTTP side counts itself.
struct render_http {
    uint32_t streams; // Of events, standing now.
    uint64_t skipped; // States that were not sent, because a client had not read.
    uint32_t connections; // Standing now.
    uint64_t connections_refused;
    uint64_t connections_late;
    bool without_jobs; // Whoever asks may not know what names a job.
};

// /api/v1/jobs
void render_jobs(struct json *json, const struct snapshot *snapshot,
                 const struct render_process *process);

// /api/v1/jobs/{job}. False: there is no such job, and nothing was written. Of several jobs of one
// name the latest counts.
bool render_job(struct json *json, const struct snapshot *snapshot, const char *name);

// {"stalls":[..]} of one job, or of all (NULL): those that last first, then the latest of the
// others. False: there is no such job, and nothing was written.
bool render_stalls(struct json *json, const struct snapshot *snapshot, const char *name);

// What the page shows of a job: one object, compact, again and again. False: as above.
bool render_state(struct json *json, const struct snapshot *snapshot, const char *name);

// /api/v1/jobs/{job}/ranks/{rank}/stack
void render_stack(struct json *json, const struct archived *archived, uint64_t now_ms, bool fresh);

// /api/v1/jobs/{job}/timeline: begin, each rank, end.
void render_timeline_begin(struct json *json);
void render_timeline_rank(struct json *json, const struct snapshot *snapshot,
                          const struct archived *archived);
void render_timeline_end(struct json *json);

// The ranks for which the others wait most, the worst first, of those that the others wait for at
// all. Returns how many. [RENDER_STRAGGLERS]
uint32_t render_stragglers(const struct snapshot *snapshot, const struct snapshot_job *job,
                           const struct worker_view **found);

// /metrics
void render_metrics(struct text *text, const struct snapshot *snapshot,
                    const struct render_process *process, const struct render_http *http);

// {"error":{"code":404,"message":"..."}}
void render_error(struct json *json, int code, const char *message);

#endif
