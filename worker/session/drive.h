// SPDX-License-Identifier: Apache-2.0
//
// The right to drive a session: only its holder may touch the engine's state (the transport, the
// order core, every field that is marked "driver only"). One thread at a time holds the right. The
// engine thread holds it while no other thread wants it. A call that blocks takes the right and
// does the engine's work itself, so no work has to be handed to another thread and back. drive.c
// has the rules, and says why no wake-up is lost.

#ifndef WORKER_SESSION_DRIVE_H
#define WORKER_SESSION_DRIVE_H

#include "base/cond.h"
#include "base/list.h"
#include "base/ring_buffer.h"
#include "base/thread.h"

struct command;
struct config;
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
    DRIVE_AWAKE, // It will read the state before it sleeps again.
    DRIVE_LEASES, // It sleeps for some milliseconds, while blocking calls follow each other.
    DRIVE_DOZES, // It sleeps until something arrives, because nothing is in flight.
};

// The thread that drive_sound has to wake.
enum drive_alarm {
    ALARM_NOBODY,
    ALARM_DRIVER,
    ALARM_ENGINE,
    ALARM_LATER, // The driver, but only when something else ends its sleep.
};

// The engine's functions that a driver calls. worker/engine/engine.c hands them to drive_start.
// Driver only.
struct drive_work {
    // Carries out a command.
    void (*command)(struct lockstep_session *session, const struct command *command);
    // Completes a command for which its caller waits, if that is possible at once. False: nothing
    // was done, and the driver has to pass the command to `command` before anything else.
    bool (*exchange)(struct lockstep_session *session, const struct command *command);
    // Carries out the commands in the inbox, and what is due because of a deadline or a failure.
    // True if anything was done for which a thread may wait.
    bool (*attend)(struct lockstep_session *session);
    // True while something is in flight, so that a thread has to drive.
    bool (*busy)(const struct lockstep_session *session);
    // True if `attend` has something to do although the inbox is empty.
    bool (*is_due)(const struct lockstep_session *session);
    // Milliseconds until `attend` has something to do although the inbox is empty; -1: it never
    // has.
    int (*patience)(const struct lockstep_session *session);
    // True if the session is being closed. A close right after an abort waits until the abort is
    // done.
    bool (*stops)(const struct lockstep_session *session);
    // Runs once, at the end of the engine thread. Afterwards nothing touches user memory.
    void (*finish)(struct lockstep_session *session);
};

struct drive {
    // set at open, then constant
    const struct drive_work *work;
    struct thread thread; // lockstep-engine
    bool has_thread;
    int bell; // An eventfd that wakes the engine thread while it rests; -1: not open.

    // guarded by the session's mutex
    struct ring_buffer inbox; // struct command
    enum drive_holder holder;
    enum drive_rest rest;
    bool left; // True if there is work for the engine thread, and no thread drives.
    uint64_t uses; // Counts how often a thread other than the engine thread has taken the right.
    struct list waiters; // struct drive_waiter: calls that block while another thread drives.
};

// The condition on which the wait of a blocking call ends. The first pointer of the three that is
// not NULL counts. What they point at is guarded by the session's mutex.
struct wish {
    const struct lockstep_work *work; // The wait ends when the work is no longer in flight.
    const uint64_t *counter; // The wait ends when *counter equals value.
    const bool *flag; // The wait ends when *flag is true.
    uint64_t value;
    uint64_t deadline_ms; // By clock_now_ms, or COND_NO_DEADLINE.
    // What the thread waits for, as it is reported. NULL: this wait is not reported (await.h).
    const struct standing *standing;
};

// 0, or -1 with errno.
int drive_init(struct drive *drive);
void drive_fini(struct drive *drive);

// Carries out the command as if it had been put into the inbox, unless it is NULL. Then drives or
// waits until the wish is true, the session has failed, or the deadline has passed; the caller
// checks which of them happened. Trainer; the caller holds the session's mutex, which is released
// meanwhile.
void drive_until_locked(struct lockstep_session *session, const struct command *command,
                        const struct wish *wish);
// Wakes waiters whose wish is true. Call it after a change of anything that a wish may point at,
// and when the session has failed.
void drive_changed_locked(struct lockstep_session *session);
// Call drive_alarm_locked after a command was put into the inbox, or when the session has failed.
// Pass its result to drive_sound after the mutex was released: drive_sound wakes the driver, or the
// engine thread if no thread drives. Any thread.
enum drive_alarm drive_alarm_locked(struct lockstep_session *session);
void drive_sound(struct lockstep_session *session, enum drive_alarm alarm);
// True if the engine thread drives, and no call waits.
bool drive_is_engines_locked(struct lockstep_session *session);

// Checks, on the calling thread, that the engine's thread may run on config.engine_cpus: a session
// without an engine refuses what another one would refuse. 0, or a status with its text.
int drive_check_processors(const struct config *config);

// Starts the engine thread. 0, or a status with its text.
int drive_start(struct lockstep_session *session, const struct drive_work *work);
// Waits until the engine thread has ended. The caller has posted COMMAND_STOP.
void drive_join(struct lockstep_session *session);

#endif
