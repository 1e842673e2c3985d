// SPDX-License-Identifier: Apache-2.0
//
// The last events of some ranks as a Chrome trace. Any thread.

#ifndef SERVER_RENDER_TIMELINE_H
#define SERVER_RENDER_TIMELINE_H

struct archived;
struct json;
struct snapshot;

// The functions below write the answer to /api/v1/jobs/{job}/timeline: call begin, then rank for
// each rank, then end.
void render_timeline_begin(struct json *json);
void render_timeline_rank(struct json *json, const struct snapshot *snapshot,
                          const struct archived *archived);
void render_timeline_end(struct json *json);

#endif
