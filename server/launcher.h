// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's end of a socket to `lockstep run`, which started it. The socket is the standard
// input, of the type SOCK_SEQPACKET; each packet is one line of text without a newline.
//
//     from the launcher   stopping SIGNAL        the user stops the job by this signal, or the
//                                                launcher of several hosts does ("lockstep run")
//                         absent JOB TEXT        a worker has ended before all had joined the job
//                         asks                   the launcher has read so late that the socket may
//                                                have been full
//     to the launcher     ok                     the core knows what the launcher said last, and
//                                                the launcher was told all that was known then
//                         cause RANK             a job has ended with an error because of this rank
//                         joined RANK            a worker with this rank hint waits for its world;
//                                                RANK is - if it has no rank hint
//                         refused -              a worker was refused
//
// A launcher that does not read never stops the streams. What does not fit in the socket is kept
// until it does (launcher_flush).
//
// Threads: a thread of its own reads. launcher_take, launcher_answer and the functions that say
// something are called by the stream thread, the other functions by the main thread.

#ifndef LOCKSTEP_SERVER_LAUNCHER_H
#define LOCKSTEP_SERVER_LAUNCHER_H

#include "base/mutex.h"
#include "base/thread.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define LAUNCHER_WORDS 8 // Words that the core has not taken; further ones are dropped.
#define LAUNCHER_OTHERS 4 // So many of them are not for LAUNCHER_ABSENT.
#define LAUNCHER_FLUSH_MS 20 // How often a launcher that reads late is tried again.

struct up_hello;

enum launcher_kind {
    LAUNCHER_STOPPING,
    LAUNCHER_ABSENT,
    LAUNCHER_ASKS,
};

struct launcher_word {
    enum launcher_kind kind;
    char job[LOCKSTEP_JOB_NAME_BYTES]; // LAUNCHER_ABSENT
    char text[LOCKSTEP_TEXT_BYTES]; // The signal's name, or the sentence about the worker.
};

// Facts that wait because the socket to the launcher was full.
struct launcher_unsent {
    bool joined[LOCKSTEP_MAX_WORLD]; // By rank hint.
    uint32_t joined_count; // How many of `joined` are true.
    bool joined_unknown; // True if a worker without a rank hint has joined.
    bool refused; // True if a worker was refused.
    bool answer; // True if "ok" follows.
    bool cause; // True if a job has ended because of cause_rank.
    uint32_t cause_rank;
};

struct launcher {
    // set at start, then constant
    int fd;
    void (*wake)(void *context); // Makes the stream thread take a turn. Any thread.
    void *context;
    struct thread thread;
    struct mutex mutex;
    // guarded by mutex
    struct launcher_word words[LAUNCHER_WORDS];
    uint32_t count;
    // stream thread only
    struct launcher_unsent unsent;
};

// Starts the thread that reads. fd is borrowed until launcher_stop. Returns 0 or an errno value.
int launcher_start(struct launcher *launcher, int fd, void (*wake)(void *context), void *context);
void launcher_stop(struct launcher *launcher); // Blocks shortly.

// Takes the oldest word. Returns false if there is none.
bool launcher_take(struct launcher *launcher, struct launcher_word *word);
void launcher_answer(struct launcher *launcher);
void launcher_say_hello(struct launcher *launcher, const struct up_hello *hello, bool refused);
// Is called before any rank learns that the job has ended.
void launcher_say_cause(struct launcher *launcher, uint32_t rank);
// Sends what did not fit in the socket before. Returns false if some of it does not fit yet; then
// it is called again after LAUNCHER_FLUSH_MS.
bool launcher_flush(struct launcher *launcher);

#endif
