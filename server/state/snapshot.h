// SPDX-License-Identifier: Apache-2.0
//
// A snapshot of the coordinator for the HTTP thread. The core thread makes one only when a reader
// asks, and at most one every SNAPSHOT_AGE_MS. No thread changes a published snapshot. Only the
// latest snapshot is kept.
//
// Each function says which of the two threads calls it. The mutex is held only while a pointer is
// exchanged, never while a snapshot is made or rendered.

#ifndef LOCKSTEP_SERVER_STATE_SNAPSHOT_H
#define LOCKSTEP_SERVER_STATE_SNAPSHOT_H

#include "base/cond.h"
#include "base/mutex.h"
#include "coordinator/coordinator.h"
#include "server/rpc/server.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SNAPSHOT_AGE_MS 100
#define SNAPSHOT_WAIT_MS 1000 // How long a reader waits for the core thread.
#define SNAPSHOT_STALLS 256 // Stalls of all jobs together at most, because a stall is large.
// Stalls that each job may have in a snapshot, however many jobs there are.
#define SNAPSHOT_JOB_STALLS 4

#define SERVICE_UP_KINDS (UP_REFUSE + 1)
#define SERVICE_DOWN_KINDS (DOWN_EXCLUDED + 1)
#define SERVICE_REFUSALS (REFUSAL_DRAINING + 1)
#define SERVICE_HALTS (HALT_LIMIT + 1)
#define SERVICE_STALLS (STALL_DEVICE + 1)

// Counts since the start.
struct service_counts {
    uint64_t received[SERVICE_UP_KINDS]; // By enum up_kind.
    uint64_t sent[SERVICE_DOWN_KINDS]; // By enum down_kind.
    uint64_t refused[SERVICE_REFUSALS]; // By enum refusal.
    // Verdicts, by enum halt_kind. A verdict counts once, not once for each message.
    uint64_t halted[SERVICE_HALTS];
    uint64_t stalls[SERVICE_STALLS]; // Stalls that began, by enum stall_kind.
    uint64_t decode_errors;
    uint64_t encode_errors;
};

// The range of one job's items in an array that holds the items of all jobs.
struct snapshot_part {
    uint32_t first;
    uint32_t count;
};

struct snapshot_job {
    struct job_view view;
    struct snapshot_part workers;
    struct snapshot_part modules; // By module index.
    struct snapshot_part stalls; // The newest first. Only the newest can be active.
    struct snapshot_part rates; // The newest first.
    struct snapshot_part events;
    struct snapshot_part history; // The oldest first.
};

struct snapshot {
    uint64_t made_ms; // clock_now_ms
    uint64_t incarnation;
    bool draining;
    struct service_counts counts;
    struct rpc_counts rpc;
    uint32_t job_count;
    uint32_t worker_count;
    struct snapshot_job jobs[LOCKSTEP_MAX_JOBS];
    // Owned.
    struct worker_view *workers;
    struct module_view *modules;
    struct stall_view *stalls;
    struct rate_view *rates;
    struct event_view *events;
    struct history_view *history;
};

// Returns the latest job with that name, or NULL if there is none.
const struct snapshot_job *snapshot_find(const struct snapshot *snapshot, const char *name);
// Returns the active stall of a job, or NULL if it has none.
const struct stall_view *snapshot_stall(const struct snapshot *snapshot,
                                        const struct snapshot_job *job);

// Core thread. Returns NULL if there is no memory.
struct snapshot *snapshot_make(const struct coordinator *core, uint64_t now_ms);
void snapshot_free(struct snapshot *snapshot);

// The exchange of snapshots between the two threads.
struct snapshot_board {
    // set at init, then constant
    void (*wake)(void *context); // Makes the core thread call snapshot_wanted.
    void *context;
    // atomic
    atomic_bool wanted;
    atomic_bool stale; // True if the shown snapshot must not be shown again.
    // guarded by mutex
    struct mutex mutex;
    struct cond published;
    struct snapshot *fresh; // The snapshot that the reader has not taken yet; owned.
    bool over; // True once the core thread no longer answers.
    // HTTP thread only
    struct snapshot *shown;
};

void snapshot_board_init(struct snapshot_board *board, void (*wake)(void *context), void *context);
void snapshot_board_fini(struct snapshot_board *board); // Call it after both threads have ended.

// Core thread. Returns true if a reader waits for a snapshot, and clears the request.
bool snapshot_wanted(struct snapshot_board *board);
// Core thread. Takes ownership of the snapshot. NULL is ignored.
void snapshot_publish(struct snapshot_board *board, struct snapshot *snapshot);

// Core thread. Something has changed that the next reader must see: the current snapshot must not
// be shown again, whatever its age.
void snapshot_expire(struct snapshot_board *board);

// Core thread, when it ends. Readers no longer wait, and wake is not called again.
void snapshot_end(struct snapshot_board *board);

// HTTP thread. Makes the core thread take a turn, if that thread still runs.
void snapshot_wake(struct snapshot_board *board);

// HTTP thread. Returns the newest snapshot, borrowed until the next call, or NULL if none was ever
// made. If the snapshot is older than SNAPSHOT_AGE_MS, the call waits up to SNAPSHOT_WAIT_MS for a
// new one. If the core thread does not answer, the old one is returned. *answered says whether the
// core thread answered.
const struct snapshot *snapshot_read(struct snapshot_board *board, bool *answered);

#endif
