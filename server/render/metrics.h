// SPDX-License-Identifier: Apache-2.0
//
// A snapshot as Prometheus text. Any thread.

#ifndef SERVER_RENDER_METRICS_H
#define SERVER_RENDER_METRICS_H

struct render_http;
struct render_process;
struct snapshot;
struct text;

// Writes the answer to /metrics.
void render_metrics(struct text *text, const struct snapshot *snapshot,
                    const struct render_process *process, const struct render_http *http);

#endif
