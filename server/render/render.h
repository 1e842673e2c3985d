// SPDX-License-Identifier: Apache-2.0
//
// A snapshot as JSON and as Prometheus text. Any thread; nothing is shared. The keys and the names
// of the metrics are a promise: docs/http.md lists them, and none is ever renamed or removed.

#ifndef LOCKSTEP_SERVER_RENDER_RENDER_H
#define LOCKSTEP_SERVER_RENDER_RENDER_H

struct snapshot_job;

#include "base/json.h"
#include "base/text.h"
#include "server/state/archive.h"
#include "server/state/snapshot.h"

#define RENDER_JSON_BYTES (8 * 1024 * 1024) // 1024 workers take about 0.9 MiB.
#define RENDER_METRICS_BYTES (256 * 1024)
#define RENDER_STRAGGLERS 8 // Stragglers of one job.
#define RENDER_STALLS 32 // Past stalls in one answer.

// Facts that do not change while the daemon runs.
struct render_process {
    const char *version;
    uint64_t start_unix_ms;
    uint64_t start_ms; // The same moment in clock_now_ms.
};

// Counts of the HTTP side.
struct render_http {
    uint32_t streams; // Streams of events that are open now.
    uint64_t skipped; // States that were not sent, because a client had not read.
    uint32_t connections; // Connections that are open now.
    uint64_t connections_refused;
    uint64_t connections_late;
    bool without_jobs; // True if the client may not see names of jobs.
};

// Writes the answer to /api/v1/jobs.
void render_jobs(struct json *json, const struct snapshot *snapshot,
                 const struct render_process *process);

// Writes the answer to /api/v1/jobs/{job}. Returns false, and writes nothing, if there is no such
// job. If several jobs have this name, the latest counts.
bool render_job(struct json *json, const struct snapshot *snapshot, const char *name);

// Writes an error: {"error":{"code":404,"message":"..."}}
void render_error(struct json *json, int code, const char *message);

// Writes a job without its workers, as in /api/v1/jobs.
void render_job_summary(struct json *json, const char *key, const struct snapshot *snapshot,
                        const struct snapshot_job *job);

#endif
