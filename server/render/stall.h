// SPDX-License-Identifier: Apache-2.0
//
// Stalls, their culprits, and places as JSON. Any thread.

#ifndef SERVER_RENDER_STALL_H
#define SERVER_RENDER_STALL_H

#include "coordinator/coordinator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json;
struct place;
struct snapshot;
struct snapshot_job;

// {"stalls":[..]} of one job, or of all (NULL): those that last first, then the latest of the
// others. False: there is no such job, and nothing was written.
bool render_stalls(struct json *json, const struct snapshot *snapshot, const char *name);
// A module's name, or "module 2" where nobody has named it.
void render_module_name(const struct snapshot *snapshot, const struct snapshot_job *job,
                        uint32_t module, char *name, size_t bytes);
// The members of an object that say what the trainer called, with the age of what is said.
void render_api(struct json *json, const struct snapshot *snapshot, const struct snapshot_job *job,
                const struct place *place, uint64_t age_ms);
// Null where nothing is known.
void render_place(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct place *place, uint64_t age_ms);
void render_flags(struct json *json, uint32_t flags);
// "in_call"; null: nothing is wrong.
void render_kind(struct json *json, const char *key, enum stall_kind kind);
// A stall as an object; the members that describe it are those of /api/v1/stalls.
void render_stall(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct stall_view *stall);

#endif
