// SPDX-License-Identifier: Apache-2.0
//
// From the workers' pipes to the terminal, line by line. A stream cuts what one worker writes into
// lines and puts its prefix in front; a sink takes whole lines of many streams and writes them with
// a thread of its own, so that a reader who is slow or stopped delays nobody's signals.
//
// Bounds. A sink buffers SINK_BYTES. A stream is read only while its sink has SINK_RESERVE bytes
// left, which is more than one read can become; a worker whose output is not taken blocks in its
// write, as it would without us. A line longer than STREAM_LINE_BYTES is cut into several.
//
// Carriage returns. A carriage return not followed by a newline starts the line again: what was
// there is forgotten. Only the final state of a progress bar is printed, except for the one stream
// that is `live` on a terminal: its line stays at the bottom of the screen, is redrawn with every
// update, and steps aside for other lines.
//
// Threads: all functions are for the thread that opened the sink.

#ifndef LOCKSTEP_CLI_RUN_RELAY_H
#define LOCKSTEP_CLI_RUN_RELAY_H

#include "base/thread.h"

#include <stdbool.h>
#include <stddef.h>

#define SINK_BYTES (1024 * 1024)
#define SINK_RESERVE (512 * 1024)
#define STREAM_LINE_BYTES (64 * 1024)
#define STREAM_READ_BYTES (16 * 1024)
#define STREAM_PREFIX_BYTES 24 // With the NUL.

// In the worst case one read is all newlines, each with a prefix, after one pending line.
static_assert(STREAM_READ_BYTES * STREAM_PREFIX_BYTES + STREAM_LINE_BYTES <= SINK_RESERVE,
              "one read fits into the reserve");

struct sink {
    // set at open, then constant
    int fd;
    bool terminal;
    int event_fd; // Readable when there is room again, or the sink has ended.
    struct thread thread;
    char *bytes; // owned; a ring of SINK_BYTES

    // reader's thread only
    struct stream *live; // Whose unfinished line is kept at the bottom, or NULL.
    bool live_shown;

    // guarded by mutex
    struct mutex mutex;
    struct cond changed;
    size_t first;
    size_t size;
    bool closing;
    bool broken; // Nobody reads: everything is thrown away.
    bool done; // The thread has written what there was.
};

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

// fd is borrowed. Streams may be opened on it; nothing is written yet. Returns 0 or -1 with errno.
int sink_open(struct sink *sink, int fd);

// Starts the writer: after the last fork. Returns 0 or -1 with errno.
int sink_start(struct sink *sink);

bool sink_has_room(struct sink *sink);
bool sink_broken(struct sink *sink);

// Says that nothing more comes; sink_done tells when all was written, and event_fd when to ask.
void sink_finish(struct sink *sink);
bool sink_done(struct sink *sink);

// After sink_done. A sink that never gets done is left to the end of the process.
void sink_close(struct sink *sink);

// fd is given. prefix is copied.
void stream_open(struct stream *stream, struct sink *sink, int fd, const char *prefix, bool live);

// Reads once; not blocking, when fd is not. False at the end: the rest is flushed, fd closed.
bool stream_read(struct stream *stream);

// Closes a stream that has not ended by itself and drops the rest.
void stream_close(struct stream *stream);

#endif
