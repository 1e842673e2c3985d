// SPDX-License-Identifier: Apache-2.0
//
// Reads a trace (protos/trace.h) that a worker has written, is writing, or was writing when it was
// killed. Every byte may be anything: what makes no sense is refused or left out. Any thread.

#ifndef LOCKSTEP_CLI_TRACE_TRACE_FILE_H
#define LOCKSTEP_CLI_TRACE_TRACE_FILE_H

#include "protos/trace.h"
#include "protos/types.h"

#include <stdbool.h>

struct trace_file {
    struct trace_header header; // Texts end with a NUL.
    struct progress progress;
    char mark[LOCKSTEP_MARK_BYTES]; // Empty also where its writer was killed within.
    char pause_reason[LOCKSTEP_MARK_BYTES];
    char modules[LOCKSTEP_MAX_MODULES][LOCKSTEP_NAME_BYTES];
    struct trace_thread threads[LOCKSTEP_STACK_THREADS];
    uint32_t event_count;
    uint32_t torn; // Events left out of the last LOCKSTEP_TRACE_EVENTS, because they are not whole.
    struct trace_event events[LOCKSTEP_TRACE_EVENTS]; // Oldest first.
};

// 0, or -1 with a sentence in error.
int trace_file_read(const char *path, struct trace_file *file, char *error, size_t error_bytes);

#endif
