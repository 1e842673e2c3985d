// SPDX-License-Identifier: Apache-2.0
//
// The page's picture of one job as JSON. Any thread.

#ifndef SERVER_RENDER_STATE_H
#define SERVER_RENDER_STATE_H

#include <stdbool.h>
#include <stdint.h>

struct json;
struct snapshot;
struct snapshot_job;
struct worker_view;

// The page's picture of a job: one compact object. False: as above.
bool render_state(struct json *json, const struct snapshot *snapshot, const char *name);
// The whole run of a job, the oldest part first, with the metrics of its marks. False: as above.
bool render_history(struct json *json, const struct snapshot *snapshot, const char *name);
// The ranks for which the others wait most, the worst first, of those that the others wait for at
// all. Returns how many. [RENDER_STRAGGLERS]
uint32_t render_stragglers(const struct snapshot *snapshot, const struct snapshot_job *job,
                           const struct worker_view **found);
// The member `stragglers` of a job: the ranks for which the others wait most, the worst first.
void render_slowest(struct json *json, const struct snapshot *snapshot,
                    const struct snapshot_job *job);

#endif
