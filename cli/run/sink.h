// SPDX-License-Identifier: Apache-2.0
//
// A sink takes whole lines of many streams (stream.h), and its own thread writes them to a
// descriptor. So a slow or stopped reader of the output does not delay signals.
//
// Bounds. A sink buffers SINK_BYTES. A stream is read only while its sink has SINK_RESERVE free
// bytes, which is more than one read can produce. A worker whose output is not read blocks in its
// write, as it would without `lockstep run`.
//
// Errors. If the reader has gone (EPIPE), the sink is broken for good. Otherwise, as on a full
// disk, it drops the bytes that it could not write, and tries again with the next ones.
//
// Threads: only the thread that opened the sink calls these functions.

#ifndef LOCKSTEP_CLI_RUN_SINK_H
#define LOCKSTEP_CLI_RUN_SINK_H

#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "cli/run/relay.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SINK_BYTES (1024 * 1024)
#define SINK_RESERVE (512 * 1024)

struct stream;

struct sink {
    // set at open, then constant
    int fd;
    bool terminal;
    bool framed; // True if bytes are frames: every error breaks the sink.
    int event_fd; // Readable when the sink has room again, or has ended.
    struct thread thread;
    char *bytes; // owned; a ring of SINK_BYTES

    // reader's thread only

    // The stream whose unfinished line stays at the bottom of the terminal, or NULL.
    struct stream *live;
    bool live_shown;

    // guarded by mutex
    struct mutex mutex;
    struct cond changed;
    size_t first;
    size_t size;
    bool closing;
    bool broken; // True once nobody reads the descriptor: later bytes are dropped.
    int error; // errno of the first write that failed for another reason; 0: none.
    uint64_t lost; // Bytes that were dropped for such a reason.
    bool done; // True once the thread has written everything.
};

// Opens a sink. fd is borrowed. Streams may be opened on the sink, but nothing is written before
// sink_start. Returns 0 or -1 with errno.
int sink_open(struct sink *sink, int fd, bool framed);

// Starts the writer thread. Call it after the last fork. Returns 0 or -1 with errno.
int sink_start(struct sink *sink);

bool sink_has_room(struct sink *sink);
bool sink_broken(struct sink *sink);

// Returns the first error of a write but for EPIPE, or 0. *lost: the bytes that were dropped.
int sink_error(struct sink *sink, uint64_t *lost);

// Adds bytes. The caller holds the mutex and signals `changed` afterwards. SINK_RESERVE guarantees
// the room. Bytes that still do not fit are dropped.
void sink_put_locked(struct sink *sink, const char *bytes, size_t size);

// Adds a frame of `lockstep run-host`, with header->size bytes.
void sink_put_frame(struct sink *sink, const struct relay_header *header, const void *bytes);

// Writes the bytes of a sink that was not started. It may block.
void sink_dump(struct sink *sink);

// Tells the sink that no more bytes follow. event_fd becomes readable when all was written, and
// sink_done then returns true.
void sink_finish(struct sink *sink);
bool sink_done(struct sink *sink);

// Frees the sink. Call it after sink_done has returned true. A sink that cannot finish is not
// closed; it ends with the process.
void sink_close(struct sink *sink);

#endif
