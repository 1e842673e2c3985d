// SPDX-License-Identifier: Apache-2.0
//
// The page's data for one job as JSON. Any thread.

#ifndef SERVER_RENDER_STATE_H
#define SERVER_RENDER_STATE_H

#include <stdbool.h>
#include <stdint.h>

struct json;
struct snapshot;
struct snapshot_job;
struct worker_view;

// Writes the page's data for a job as one compact object. Returns false, and writes nothing, if
// there is no such job.
bool render_state(struct json *json, const struct snapshot *snapshot, const char *name);
// Writes the whole run of a job from its beginning, with the metrics at its marks. Returns false,
// and writes nothing, if there is no such job.
bool render_history(struct json *json, const struct snapshot *snapshot, const char *name);
// Fills found with the stragglers: the ranks for which the others wait most, the worst first. A
// rank for which no other waits is left out. Returns how many were found, at most
// RENDER_STRAGGLERS.
uint32_t render_stragglers(const struct snapshot *snapshot, const struct snapshot_job *job,
                           const struct worker_view **found);
// Writes the member `stragglers` of a job: the ranks of render_stragglers.
void render_slowest(struct json *json, const struct snapshot *snapshot,
                    const struct snapshot_job *job);

#endif
