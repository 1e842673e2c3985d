// SPDX-License-Identifier: Apache-2.0
//
// A picture of the coordinator for the HTTP thread. The core thread makes one only when somebody
// asks, and never more often than every SNAPSHOT_AGE_MS; once handed over nobody changes it. Not a
// history: there is one, the latest.
//
// Each function says which of the two threads calls it. The mutex is held for a pointer's exchange
// and never while a picture is made or shown.

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
#define SNAPSHOT_STALLS 256 // Stalls of all jobs, as they are large.
#define SNAPSHOT_JOB_STALLS 4 // Each job has at least so many of them.

#define SERVICE_UP_KINDS (UP_REPLAN + 1)
#define SERVICE_DOWN_KINDS (DOWN_INSPECT + 1)
#define SERVICE_REFUSALS (REFUSAL_DRAINING + 1)
#define SERVICE_HALTS (HALT_TUNING + 1)
#define SERVICE_STALLS (STALL_DEVICE + 1)

// Counts since the start.
struct service_counts {
    uint64_t received[SERVICE_UP_KINDS]; // By enum up_kind.
    uint64_t sent[SERVICE_DOWN_KINDS]; // By enum down_kind.
    uint64_t refused[SERVICE_REFUSALS]; // By enum refusal.
    uint64_t halted[SERVICE_HALTS]; // Verdicts, by enum halt_kind, not messages.
    uint64_t stalls[SERVICE_STALLS]; // That began, by enum stall_kind.
    uint64_t decode_errors;
    uint64_t encode_errors;
};

// Where the things of one job lie in an array of all.
struct snapshot_part {
    uint32_t first;
    uint32_t count;
};

struct snapshot_job {
    struct job_view view;
    struct snapshot_part workers;
    struct snapshot_part modules; // By index.
    struct snapshot_part stalls; // The newest first; only that one can be active.
    struct snapshot_part rates; // The newest first, as the next.
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

// The latest job of that name; NULL: there is none.
const struct snapshot_job *snapshot_find(const struct snapshot *snapshot, const char *name);
// The stall that a job is in; NULL: none.
const struct stall_view *snapshot_stall(const struct snapshot *snapshot,
                                        const struct snapshot_job *job);

// Core thread. NULL: no memory.
struct snapshot *snapshot_make(const struct coordinator *core, uint64_t now_ms);
void snapshot_free(struct snapshot *snapshot);

// Where the two threads meet.
struct snapshot_board {
    // set at init, then constant
    void (*wake)(void *context); // Makes the core thread look at snapshot_wanted.
    void *context;
    // atomic
    atomic_bool wanted;
    atomic_bool stale; // True if the picture that is shown must not be shown again.
    // guarded by mutex
    struct mutex mutex;
    struct cond published;
    struct snapshot *fresh; // Owned, until the reader takes it.
    bool over; // True once the core thread answers no more.
    // HTTP thread only
    struct snapshot *shown;
};

void snapshot_board_init(struct snapshot_board *board, void (*wake)(void *context), void *context);
void snapshot_board_fini(struct snapshot_board *board); // When both threads are gone.

// Core thread: whether a reader waits. Clears the wish.
bool snapshot_wanted(struct snapshot_board *board);
// Core thread. Takes the snapshot; NULL is ignored.
void snapshot_publish(struct snapshot_board *board, struct snapshot *snapshot);

// Core thread: something changed that the next reader must see, however young the picture is.
void snapshot_expire(struct snapshot_board *board);

// Core thread, when it ends: readers wait no longer, and wake is not called again.
void snapshot_end(struct snapshot_board *board);

// HTTP thread: makes the core thread take a turn, if it is still there.
void snapshot_wake(struct snapshot_board *board);

// HTTP thread. The newest picture, borrowed until the next call; NULL: there was never one. Blocks
// up to SNAPSHOT_WAIT_MS if what there is is older than SNAPSHOT_AGE_MS, and gives the old one if
// the core thread does not answer; *answered says whether it did.
const struct snapshot *snapshot_read(struct snapshot_board *board, bool *answered);

#endif
