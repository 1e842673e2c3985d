// SPDX-License-Identifier: Apache-2.0
//
// Copies lines from one worker's pipe to a sink. A stream cuts the output of one worker into lines
// and puts its prefix in front. A line longer than STREAM_LINE_BYTES is cut into several.
//
// Carriage returns. A carriage return that is not followed by a newline starts the line again: its
// text so far is dropped. So only the final state of a progress bar is printed. The exception is
// the one stream that is `live` on a terminal. Its unfinished line stays at the bottom of the
// screen, is redrawn with every update, and is hidden while other lines are printed.
//
// With a log file, the bytes are also written there, as they are. A stream of `lockstep run-host`
// is framed: it cuts nothing into lines, and the launcher's host does.
//
// Threads: only the thread that opened the sink calls these functions.

#ifndef LOCKSTEP_CLI_RUN_STREAM_H
#define LOCKSTEP_CLI_RUN_STREAM_H

#include "cli/run/sink.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STREAM_LINE_BYTES (64 * 1024)
#define STREAM_READ_BYTES (16 * 1024)
#define STREAM_PREFIX_BYTES 24 // Includes the NUL.

// In the worst case, one read contains only newlines. Each makes a line with a prefix, after one
// pending line.
static_assert(STREAM_READ_BYTES * STREAM_PREFIX_BYTES + STREAM_LINE_BYTES <= SINK_RESERVE,
              "one read fits into the reserve");

struct log_file;

struct stream {
    struct sink *sink;
    bool open; // False once the stream has ended.
    int fd; // Owned; -1: stream_feed gives the bytes, or the stream has ended.
    struct log_file *log; // borrowed; NULL: none
    bool framed;
    uint8_t number; // Framed streams: 0 for stdout, 1 for stderr.
    uint32_t rank; // Framed streams: the rank that wrote the output.
    bool live;
    bool carriage; // True if the last byte was a carriage return.
    bool updating; // True if the line was started again at least once.
    char prefix[STREAM_PREFIX_BYTES];
    char *line; // owned
    size_t size;
    size_t capacity;
};

// fd is given, and may be -1. prefix is copied. log is borrowed, and may be NULL.
void stream_open(struct stream *stream, struct sink *sink, int fd, const char *prefix, bool live,
                 struct log_file *log);

// Opens a framed stream. fd is given.
void stream_open_framed(struct stream *stream, struct sink *sink, int fd, uint32_t rank,
                        uint8_t number);

// Takes bytes as if they were read. The sink has room. size: at most STREAM_READ_BYTES.
void stream_feed(struct stream *stream, const char *bytes, size_t size);

// Flushes the rest, as at the end of fd, and closes the stream.
void stream_end(struct stream *stream);

// Reads once. Does not block if fd is non-blocking. At the end it flushes the rest, closes fd, and
// returns false.
bool stream_read(struct stream *stream);

// Closes a stream that has not ended, and drops its unfinished line.
void stream_close(struct stream *stream);

#endif
