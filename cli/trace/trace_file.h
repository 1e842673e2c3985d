// SPDX-License-Identifier: Apache-2.0
//
// Reads a trace (protos/trace.h). Its worker may still run, may have ended, or may have been killed
// while it wrote. The file is not trusted: a file or an event with impossible values is refused or
// left out. Any thread.

#ifndef LOCKSTEP_CLI_TRACE_TRACE_FILE_H
#define LOCKSTEP_CLI_TRACE_TRACE_FILE_H

#include "protos/trace.h"
#include "protos/types.h"

#include <stdbool.h>

struct trace_file {
    struct trace_header header; // Its texts end with a NUL.
    struct progress progress;
    // The trainer's mark. Empty, too, if the worker was killed while it wrote the mark.
    char mark[LOCKSTEP_MARK_BYTES];
    char pause_reason[LOCKSTEP_MARK_BYTES];
    char modules[LOCKSTEP_MAX_MODULES][LOCKSTEP_NAME_BYTES];
    struct trace_thread threads[TRACE_THREAD_PLACES];
    uint32_t event_count;
    // How many of the last LOCKSTEP_TRACE_EVENTS events were left out because they were incomplete.
    uint32_t torn;
    struct trace_event events[LOCKSTEP_TRACE_EVENTS]; // Oldest first.
};

// Returns 0, or -1 with a sentence in error.
int trace_file_read(const char *path, struct trace_file *file, char *error, size_t error_bytes);

#endif
