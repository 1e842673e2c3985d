// SPDX-License-Identifier: Apache-2.0
//
// The trace of a session: where its trainer is, and its last events, in one block of memory with
// the layout of protos/trace.h. If a trace directory is configured, the block is a file, which the
// kernel keeps when the process is killed; otherwise the block is memory that ends with the
// process. The trace is not sent to other processes, and is no log: writing an event costs some
// nanoseconds, and an event says what happened, not why.

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
    // Descriptor of the memory, so that `lockstep trace /proc/PID/fd/FD` can read it; -1: none.
    int fd;
    // Number of this trace, unique in the process. A thread remembers the number of the trace that
    // it wrote to last.
    uint64_t serial;
    char path[PATH_MAX]; // Empty: no file.
};

// Opens a trace. If the directory cannot be used, the log gets a warning and memory is used
// instead. Returns 0, or -1: no memory.
int trace_open(const struct config *config, const struct uuid *uuid, struct log *log,
               struct trace *trace);
// Closes the trace. keep: true if the file must stay.
void trace_close(struct trace *trace, bool keep);

// The world has formed. Driver.
void trace_formed(struct trace *trace, const struct generation_id *generation, uint32_t rank,
                  uint32_t world_size);
// Sets the name of a module; NULL: the module is closed. Trainer.
void trace_module(struct trace *trace, uint32_t module, const char *name);

static inline struct progress *trace_progress(const struct trace *trace)
{
    return (struct progress *)(void *)(trace->base + TRACE_PROGRESS);
}

static inline struct trace_cell *trace_cell(const struct trace *trace, enum trace_offset offset)
{
    return (struct trace_cell *)(void *)(trace->base + offset);
}

// Writes a text, cut to fit. Only one writer of a cell at a time.
void trace_cell_write(struct trace_cell *cell, const char *text);
// Reads the text that was written last; empty if a writer is in the way for too long. Any thread.
void trace_cell_read(const struct trace_cell *cell, char text[LOCKSTEP_MARK_BYTES]);

// Writes an event. No lock, no allocation, and no system call except at a thread's first event. Any
// thread.
void trace_event(const struct trace *trace, enum trace_kind kind, uint64_t step, uint32_t module,
                 uint32_t call, uint32_t bucket, uint64_t value);
// As trace_event, with the time of the event (clock_now_ns).
void trace_event_at(const struct trace *trace, uint64_t time_ns, enum trace_kind kind,
                    uint64_t step, uint32_t module, uint32_t call, uint32_t bucket, uint64_t value);

// Returns the number of events begun so far; the last LOCKSTEP_TRACE_EVENTS of them are in the
// trace. Any thread.
uint64_t trace_begun(const struct trace *trace);
// Reads the event of that number. Returns false if the event is being written, or if a later event
// has replaced it.
bool trace_read(const struct trace *trace, uint64_t number, struct trace_event *event);

#endif
