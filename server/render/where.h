// SPDX-License-Identifier: Apache-2.0
//
// Where workers are, for the files of render.h: places, flags, names of modules, stalls. Pure
// functions, any thread.

#ifndef LOCKSTEP_SERVER_RENDER_WHERE_H
#define LOCKSTEP_SERVER_RENDER_WHERE_H

#include "base/json.h"
#include "server/snapshot.h"

#define RENDER_MODULE_BYTES (LOCKSTEP_NAME_BYTES + 16)

// A module's name, or "module 2" where nobody has named it.
void render_module_name(const struct snapshot *snapshot, const struct snapshot_job *job,
                        uint32_t module, char *name, size_t bytes);

// The number of a call as people and programs read it: from 1. Messages count from 0.
static inline uint64_t render_call(uint32_t call)
{
    return (uint64_t)call + 1;
}

// The members of an object that say what the trainer called, with the age of what is said.
void render_api(struct json *json, const struct snapshot *snapshot, const struct snapshot_job *job,
                const struct place *place, uint64_t age_ms);

// Null where nothing is known.
void render_place(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct place *place, uint64_t age_ms);

void render_flags(struct json *json, uint32_t flags);

// "in_call"; null: nothing is wrong.
void render_kind(struct json *json, const char *key, enum stall_kind kind);

// A job without its workers, as in /api/v1/jobs.
void render_job_summary(struct json *json, const char *key, const struct snapshot *snapshot,
                        const struct snapshot_job *job);

// The member `stragglers` of a job: the ranks for which the others wait most, the worst first.
void render_slowest(struct json *json, const struct snapshot *snapshot,
                    const struct snapshot_job *job);

// A stall as an object; the members that describe it are those of /api/v1/stalls.
void render_stall(struct json *json, const char *key, const struct snapshot *snapshot,
                  const struct snapshot_job *job, const struct stall_view *stall);

#endif
