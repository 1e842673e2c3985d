// SPDX-License-Identifier: Apache-2.0
//
// The functions of timeline.c that other files call.

#ifndef SERVER_RENDER_TIMELINE_H
#define SERVER_RENDER_TIMELINE_H

struct archived;
struct json;
struct snapshot;

// /api/v1/jobs/{job}/timeline: begin, each rank, end.
void render_timeline_begin(struct json *json);
void render_timeline_rank(struct json *json, const struct snapshot *snapshot,
                          const struct archived *archived);
void render_timeline_end(struct json *json);

#endif
