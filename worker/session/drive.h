// SPDX-License-Identifier: Apache-2.0
//
// The right to drive a session: to touch what belongs to the engine (the transport, the order core,
// everything that is marked "driver only"). One thread at a time holds it. The engine thread has it
// while no other thread wants it. A call that blocks takes it and does the engine's work itself, so
// nothing has to be handed to another thread and back. The rules, and why no wake-up is lost, are
// in drive.c.

#ifndef WORKER_SESSION_DRIVE_H
#define WORKER_SESSION_DRIVE_H

#include "base/cond.h"
#include "base/list.h"
#include "base/ring_buffer.h"
#include "base/thread.h"

struct command;
struct lockstep_session;
struct lockstep_work;
struct standing;

enum drive_holder {
    DRIVE_NOBODY,
    DRIVE_ENGINE,
    DRIVE_TRAINER, // A thread inside a call that blocks.
};

// What the engine thread does while it does not hold the right.
enum drive_rest {
    DRIVE_AWAKE, // Will look at the state before it sleeps again.
    DRIVE_LEASES, // Sleeps for some milliseconds: calls that block follow each other.
    DRIVE_DOZES, // Sleeps until something arrives: nothing is in flight.
};

// The thread that is to be woken.
enum drive_alarm {
    ALARM_NOBODY,
    ALARM_DRIVER,
    ALARM_ENGINE,
};

// The work of a driver, which worker/engine/engine.c hands to drive_start. Driver only.
struct drive_work {
    void (*command)(struct lockstep_session *session, const struct command *command);
    // Carries out a command whose caller waits for it if that is possible at once and without
    // leaving anything in flight. False: it is for `command`, before anything else.
    bool (*exchange)(struct lockstep_session *session, const struct command *command);
    // Carries out what is in the inbox, and what its time or a failure brings with it. True if
    // anything was done that a thread may wait for.
    bool (*attend)(struct lockstep_session *session);
    // True while something is in flight, so that a thread has to drive.
    bool (*busy)(const struct lockstep_session *session);
    // True if `attend` has something to do with an empty inbox.
    bool (*is_due)(const struct lockstep_session *session);
    // Milliseconds until `attend` has something to do with an empty inbox; -1: for ever.
    int (*patience)(const struct lockstep_session *session);
    // True if the session is being closed. A close right after an abort waits for the answer to it.
    bool (*stops)(const struct lockstep_session *session);
    // The last that is driven: user memory is not touched any more.
    void (*finish)(struct lockstep_session *session);
};

struct drive {
    // set at open, then constant
    const struct drive_work *work;
    struct thread thread; // lockstep-engine
    bool has_thread;
    int bell; // Wakes the engine thread where it rests; -1: none.

    // guarded by the session's mutex
    struct ring_buffer inbox; // struct command
    enum drive_holder holder;
    enum drive_rest rest;
    bool left; // True if there is work for the engine thread, and no thread does it.
    uint64_t uses; // Counts how often another thread has taken the right.
    struct list waiters; // Calls that block while another thread drives: struct drive_waiter.
};

// The end of a wait of a call that blocks: the first of these that is not NULL. All are guarded by
// the session's mutex.
struct wish {
    const struct lockstep_work *work; // Until it is not in flight any more.
    const uint64_t *counter; // Until it equals value.
    const bool *flag; // Until it is true.
    uint64_t value;
    uint64_t deadline_ms; // By clock_now_ms, or COND_NO_DEADLINE.
    // What every rank must do before. NULL: other ranks are not told of this wait (await.h).
    const struct standing *standing;
};

// 0, or -1 with errno.
int drive_init(struct drive *drive);
void drive_fini(struct drive *drive);

// Carries out a command, if there is one, as if it had been put into the inbox, and drives or waits
// until the wish has come true, the session has failed, or the deadline has passed. Trainer; the
// caller holds the session's mutex, which is released meanwhile. The caller finds out which.
void drive_until_locked(struct lockstep_session *session, const struct command *command,
                        const struct wish *wish);
// To be called when something has changed that a wish can be about, or the session has failed.
void drive_changed_locked(struct lockstep_session *session);
// To be called when a command is in the inbox, or the session has failed. The result is for
// drive_sound, which wakes the driver, or the engine thread if no thread drives, after the mutex
// was released. Any thread.
enum drive_alarm drive_alarm_locked(struct lockstep_session *session);
void drive_sound(struct lockstep_session *session, enum drive_alarm alarm);

// 0, or a status with its text.
int drive_start(struct lockstep_session *session, const struct drive_work *work);
// Ends the engine thread; it carries out what is in the inbox first.
void drive_join(struct lockstep_session *session);

#endif
