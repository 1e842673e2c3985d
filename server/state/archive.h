// SPDX-License-Identifier: Apache-2.0
//
// The latest answers of workers to questions about their place: the stacks and events of each rank.
// The archive holds at most ARCHIVE_BYTES. To make room, it drops the rank whose last answer is
// oldest. Answers are not trusted: lists are cut at their bounds. Texts are kept unchanged, so code
// that shows them must escape them.
//
// The mutex is a leaf lock. It is held while a part is added or a rank is copied.

#ifndef LOCKSTEP_SERVER_STATE_ARCHIVE_H
#define LOCKSTEP_SERVER_STATE_ARCHIVE_H

#include "base/mutex.h"
#include "coordinator/coordinator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARCHIVE_BYTES ((size_t)8 * 1024 * 1024)
#define ARCHIVE_FRAMES (2 * LOCKSTEP_STACK_THREADS * 16) // Frames of one rank.

struct archived_list {
    void *items; // Owned.
    uint32_t count;
    uint32_t capacity;
};

// The answers of one rank. Times are clock_now_ms when the last part came; 0: never.
struct archived {
    struct peer_view who;
    uint64_t stacks_ms;
    uint64_t events_ms;
    // The worker's CLOCK_MONOTONIC in ns, when it sent the answer that came at events_ms.
    uint64_t clock_ns;
    struct answer_place place;
    struct archived_list threads; // struct stack_thread
    struct archived_list frames; // struct stack_frame
    struct archived_list events; // struct trace_event
};

// A generation of a job. Answers of another generation are not shown: its ranks may be other
// processes.
struct archive_job {
    char name[LOCKSTEP_JOB_NAME_BYTES];
    struct generation_id generation;
};

struct archive_entry;

struct archive {
    // guarded by mutex
    struct mutex mutex;
    struct archive_entry *newest; // A list of the entries, ordered by the time of their last part.
    size_t bytes;
};

void archive_init(struct archive *archive);
void archive_fini(struct archive *archive);

// Core thread. Adds a part of this worker's answer. An answer becomes visible when its last part
// has come. The first part of a new generation's answer drops what the rank answered before.
void archive_put(struct archive *archive, const struct peer_view *who,
                 const struct up_answer *answer, uint64_t now_ms);

// HTTP thread. Copies the answers of a rank; archive_copy_fini frees the copy. Returns false if the
// rank has no answers or there is no memory; then there is nothing to free.
bool archive_copy(struct archive *archive, const struct archive_job *job, uint32_t rank,
                  struct archived *copy);
// Returns when the rank's last answer to the question `what` came, in clock_now_ms; 0: never.
uint64_t archive_time(struct archive *archive, const struct archive_job *job, uint32_t rank,
                      uint32_t what);
void archive_copy_fini(struct archived *copy);

#endif
