// SPDX-License-Identifier: Apache-2.0
//
// A sink takes whole lines of many streams (stream.h) and writes them to a descriptor with a thread
// of its own. A slow or stopped reader of the output therefore delays no signal.
//
// Bounds. A sink buffers SINK_BYTES. A stream is read only while its sink has SINK_RESERVE bytes
// left, which is more than one read can become. A worker whose output is not taken blocks in its
// write, as it would without `lockstep run`.
//
// Threads: all functions are for the thread that opened the sink.

#ifndef LOCKSTEP_CLI_RUN_SINK_H
#define LOCKSTEP_CLI_RUN_SINK_H

#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"

#include <stdbool.h>
#include <stddef.h>

#define SINK_BYTES (1024 * 1024)
#define SINK_RESERVE (512 * 1024)

struct stream;

struct sink {
    // set at open, then constant
    int fd;
    bool terminal;
    int event_fd; // Readable when there is room again, or the sink has ended.
    struct thread thread;
    char *bytes; // owned; a ring of SINK_BYTES

    // reader's thread only
    struct stream *live; // Its unfinished line is kept at the bottom; or NULL.
    bool live_shown;

    // guarded by mutex
    struct mutex mutex;
    struct cond changed;
    size_t first;
    size_t size;
    bool closing;
    bool broken; // True once a write has failed: the rest is thrown away.
    bool done; // True once the thread has written everything.
};

// fd is borrowed. Streams may be opened on it; nothing is written yet. Returns 0 or -1 with errno.
int sink_open(struct sink *sink, int fd);

// Starts the writer: after the last fork. Returns 0 or -1 with errno.
int sink_start(struct sink *sink);

bool sink_has_room(struct sink *sink);
bool sink_broken(struct sink *sink);

// Adds bytes. Held: mutex. The reserve guarantees the room; bytes that still do not fit are
// dropped. The caller signals `changed`.
void sink_put_locked(struct sink *sink, const char *bytes, size_t size);

// Says that nothing more comes; sink_done tells when all was written, and event_fd when to ask.
void sink_finish(struct sink *sink);
bool sink_done(struct sink *sink);

// After sink_done. A sink that never gets done is left to the end of the process.
void sink_close(struct sink *sink);

#endif
