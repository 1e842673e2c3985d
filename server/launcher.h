// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's end of a socket to `lockstep run`, which started it. The socket is the standard
// input, of the type SOCK_SEQPACKET; each packet is one line of text without a newline.
//
//     from the launcher   stopping SIGNAL        the user stops the job by this signal, or the
//                                                launcher of several hosts does ("lockstep run")
//                         absent JOB TEXT        a worker has ended before all had joined the job
//     to the launcher     ok                     the core knows what the launcher said last
//                         cause RANK             a job has ended with an error because of this rank
//                         joined RANK            a worker with this rank hint waits for its world
//                         refused RANK           it was refused; RANK is - if it has no rank hint
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

#define LAUNCHER_WORDS 8 // More words than a launcher has; further ones are dropped.

struct up_hello;

enum launcher_kind {
    LAUNCHER_STOPPING,
    LAUNCHER_ABSENT,
};

struct launcher_word {
    enum launcher_kind kind;
    char job[LOCKSTEP_JOB_NAME_BYTES]; // LAUNCHER_ABSENT
    char text[LOCKSTEP_TEXT_BYTES]; // The signal's name, or the sentence about the worker.
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

#endif
