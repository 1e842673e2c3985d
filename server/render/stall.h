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

// Writes {"stalls":[..]} for one job, or for all jobs (name NULL): active stalls first, then past
// ones from the latest on. Returns false, and writes nothing, if there is no such job.
bool render_stalls(struct json *json, const struct snapshot *snapshot, const char *name);
// Copies the module's name, or "module 2" if it has no name.
void render_module_name(const struct snapshot *snapshot, const struct snapshot_job *job,
                        uint32_t module, char *name, size_t bytes);
// Writes the members of an object that say which function the trainer called, and how old this
// information is.
void render_api(struct json *json, const struct snapshot *snapshot, const struct snapshot_job *job,
                const struct place *place, uint64_t age_ms);
// Writes a place as an object, or null if nothing is known.
void render_place(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct place *place, uint64_t age_ms);
void render_flags(struct json *json, uint32_t flags);
// Writes the kind of stall, such as "in_call", or null if nothing is wrong.
void render_kind(struct json *json, const char *key, enum stall_kind kind);
// Writes a stall as an object with the members that /api/v1/stalls has.
void render_stall(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct stall_view *stall);

#endif
