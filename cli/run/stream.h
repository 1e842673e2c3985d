// SPDX-License-Identifier: Apache-2.0
//
// From one worker's pipe to a sink, line by line. A stream cuts the output of one worker into lines
// and puts its prefix in front. A line longer than STREAM_LINE_BYTES is cut into several.
//
// Carriage returns. A carriage return not followed by a newline starts the line again: its text so
// far is forgotten. Only the final state of a progress bar is printed, except for the one stream
// that is `live` on a terminal: its line stays at the bottom of the screen, is redrawn with every
// update, and steps aside for other lines.
//
// Threads: all functions are for the thread that opened the sink.

#ifndef LOCKSTEP_CLI_RUN_STREAM_H
#define LOCKSTEP_CLI_RUN_STREAM_H

#include "cli/run/sink.h"

#include <stdbool.h>
#include <stddef.h>

#define STREAM_LINE_BYTES (64 * 1024)
#define STREAM_READ_BYTES (16 * 1024)
#define STREAM_PREFIX_BYTES 24 // With the NUL.

// In the worst case one read is all newlines, each with a prefix, after one pending line.
static_assert(STREAM_READ_BYTES * STREAM_PREFIX_BYTES + STREAM_LINE_BYTES <= SINK_RESERVE,
              "one read fits into the reserve");

struct stream {
    struct sink *sink;
    int fd; // Owned; -1 once it has ended.
    bool live;
    bool carriage; // The last byte was a carriage return.
    bool updating; // The line was started again at least once.
    char prefix[STREAM_PREFIX_BYTES];
    char *line; // owned
    size_t size;
    size_t capacity;
};

// fd is given. prefix is copied.
void stream_open(struct stream *stream, struct sink *sink, int fd, const char *prefix, bool live);

// Reads once; not blocking, when fd is not. False at the end: the rest is flushed, fd closed.
bool stream_read(struct stream *stream);

// Closes a stream that has not ended by itself and drops the rest.
void stream_close(struct stream *stream);

#endif
