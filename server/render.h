// SPDX-License-Identifier: Apache-2.0
//
// A snapshot as JSON and as Prometheus text. Pure functions, any thread. The keys and the names of
// the metrics are a promise: docs/operating.md lists them, and they are only ever added to.

#ifndef LOCKSTEP_SERVER_RENDER_H
#define LOCKSTEP_SERVER_RENDER_H

#include "base/json.h"
#include "base/text.h"
#include "server/snapshot.h"

#define RENDER_JSON_BYTES (4 * 1024 * 1024) // 1024 workers take about 0.5 MiB.
#define RENDER_METRICS_BYTES (256 * 1024)

// What does not change while the daemon runs.
struct render_process {
    const char *version;
    uint64_t start_unix_ms;
    uint64_t start_ms; // The same moment in clock_now_ms.
};

// /api/v1/jobs
void render_jobs(struct json *json, const struct snapshot *snapshot,
                 const struct render_process *process);

// /api/v1/jobs/{job}. False: there is no such job, and nothing was written. Of several jobs of one
// name the latest counts.
bool render_job(struct json *json, const struct snapshot *snapshot, const char *name);

// /metrics
void render_metrics(struct text *text, const struct snapshot *snapshot,
                    const struct render_process *process);

// {"error":{"code":404,"message":"..."}}
void render_error(struct json *json, int code, const char *message);

#endif
