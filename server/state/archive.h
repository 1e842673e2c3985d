// SPDX-License-Identifier: Apache-2.0
//
// The latest answers of workers that were asked where they are: stacks and events of each rank. The
// archive holds ARCHIVE_BYTES in all; the rank that has answered least recently goes first. Answers
// are not trusted: lists end at their bounds, texts are shown as they are.
//
// The mutex is a leaf, held while a part is added or a rank is copied.

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
    uint64_t clock_ns; // The worker's CLOCK_MONOTONIC, at events_ms.
    struct answer_place place;
    struct archived_list threads; // struct stack_thread
    struct archived_list frames; // struct stack_frame
    struct archived_list events; // struct trace_event
};

struct archive_entry;

struct archive {
    // guarded by mutex
    struct mutex mutex;
    struct archive_entry *newest; // A list by time of the last part.
    size_t bytes;
};

void archive_init(struct archive *archive);
void archive_fini(struct archive *archive);

// Core thread. A part of the answer of this worker; it shows when the last part has come.
void archive_put(struct archive *archive, const struct peer_view *who,
                 const struct up_answer *answer, uint64_t now_ms);

// HTTP thread. A copy, which archive_copy_fini frees. False: nothing is known of that rank, or no
// memory; then there is nothing to free.
bool archive_copy(struct archive *archive, const char *job, uint32_t rank, struct archived *copy);
// Only when that was; 0: never.
uint64_t archive_time(struct archive *archive, const char *job, uint32_t rank, uint32_t what);
void archive_copy_fini(struct archived *copy);

#endif
