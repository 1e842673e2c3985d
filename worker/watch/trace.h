// SPDX-License-Identifier: Apache-2.0
//
// The trace of a session: where its trainer is, and its last events, in one block of memory laid
// out as protos/trace.h says. With a directory that is a file, which the kernel keeps when the
// process is killed; else memory that ends with it. Not for the wire, and not a log: an event costs
// some nanoseconds and says what happened, never why.

#ifndef WORKER_WATCH_TRACE_H
#define WORKER_WATCH_TRACE_H

#include "base/log.h"
#include "protos/trace.h"
#include "protos/types.h"

#include <limits.h>

struct config;

struct trace {
    // set at open, then constant
    uint8_t *base; // TRACE_BYTES
    int fd; // Of the memory, so that `lockstep trace /proc/PID/fd/FD` reads it; -1: none.
    uint64_t serial; // Of all traces of the process: threads remember which one knows them.
    char path[PATH_MAX]; // Empty: no file.
};

// A directory that cannot be used is a warning in the log, and memory takes its place. 0, or -1: no
// memory.
int trace_open(const struct config *config, const struct uuid *uuid, struct log *log,
               struct trace *trace);
// keep: the file stays.
void trace_close(struct trace *trace, bool keep);

// The world has formed. Driver.
void trace_formed(struct trace *trace, const struct generation_id *generation, uint32_t rank,
                  uint32_t world_size);
// What a module is called; NULL: it is closed. Trainer.
void trace_module(struct trace *trace, uint32_t module, const char *name);

static inline struct progress *trace_progress(const struct trace *trace)
{
    return (struct progress *)(void *)(trace->base + TRACE_PROGRESS);
}

static inline struct trace_cell *trace_cell(const struct trace *trace, enum trace_offset offset)
{
    return (struct trace_cell *)(void *)(trace->base + offset);
}

// Cut to fit. Writers of one cell take turns.
void trace_cell_write(struct trace_cell *cell, const char *text);
// What was written last; empty when a writer is in the way for too long. Any thread.
void trace_cell_read(const struct trace_cell *cell, char text[LOCKSTEP_MARK_BYTES]);

// No lock, no allocation, no system call but a thread's first one. Any thread.
void trace_event(const struct trace *trace, enum trace_kind kind, uint64_t step, uint32_t module,
                 uint32_t call, uint32_t bucket, uint64_t value);
// The same, of that time (clock_now_ns).
void trace_event_at(const struct trace *trace, uint64_t time_ns, enum trace_kind kind,
                    uint64_t step, uint32_t module, uint32_t call, uint32_t bucket, uint64_t value);

// Events begun so far: the last LOCKSTEP_TRACE_EVENTS of them are there. Any thread.
uint64_t trace_begun(const struct trace *trace);
// The event of that number. False: it is being written, or another one has taken its place.
bool trace_read(const struct trace *trace, uint64_t number, struct trace_event *event);

#endif
