// SPDX-License-Identifier: Apache-2.0
//
// Finds out whether something listens at the data ports of workers, by connecting and closing. A
// refusal is the proof that the process of a worker is gone whose control stream has ended.
//
// Threads: a thread of its own connects. prober_ask and prober_take are called by the stream
// thread, the other functions by the main thread.

#ifndef LOCKSTEP_SERVER_PROBER_H
#define LOCKSTEP_SERVER_PROBER_H

#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define PROBER_ROOM 1024 // Questions and answers that may wait; further ones are dropped.

struct prober_question {
    uint64_t peer;
    char address[LOCKSTEP_ADDRESS_BYTES];
};

struct prober_answer {
    uint64_t peer;
    bool reached; // True if the port accepted a connection.
    bool refused; // True if the host answered that nothing listens there.
};

struct prober {
    // set at start, then constant
    void (*wake)(void *context); // Makes the stream thread take a turn. Any thread.
    void *context;
    struct thread thread;
    struct mutex mutex;
    struct cond changed;
    // guarded by mutex
    bool stop;
    uint32_t asked; // Questions so far, modulo 2^32; so the next three.
    uint32_t begun;
    uint32_t answered;
    uint32_t taken;
    struct prober_question questions[PROBER_ROOM];
    struct prober_answer answers[PROBER_ROOM];
};

// Starts the thread. Returns 0 or an errno value.
int prober_start(struct prober *prober, void (*wake)(void *context), void *context);
void prober_stop(struct prober *prober); // Blocks for the bound of one attempt at most.

// Asks whether something listens at the TCP part of a worker's address. An address without one, or
// with a name in it, gets no answer.
void prober_ask(struct prober *prober, uint64_t peer, const char *address);
// Takes the oldest answer. Returns false if there is none.
bool prober_take(struct prober *prober, struct prober_answer *answer);

#endif
