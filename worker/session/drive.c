// SPDX-License-Identifier: Apache-2.0
//
// The right to drive a session: how the engine thread and calls that block share the engine's work.
// Runs on the engine thread and on trainer threads. worker/engine/engine.c has the work itself.
//
// The rules. `holder` says who has the right to drive. It changes under the session's mutex only,
// so each driver sees what earlier drivers have written.
//
// - A blocking call takes the right if no thread has it, and drives until its wish is true. If
//   another thread has the right, the call becomes a waiter. If that thread is the engine thread,
//   the call wakes it, so that it passes the right on.
//
// - A thread that gives up the right passes it to the first waiter whose wish is not true. If there
//   is no such waiter, no thread has the right.
//
// - The engine thread takes the right if no thread has it and there is work left (`left`), or if no
//   call has used the right during a lease. It keeps the right while anything is in flight. When
//   nothing is in flight, it gives up the right and dozes: it sleeps without the right until
//   something arrives. So a blocking call then finds the right free and wakes no thread.
//
// - A lease begins when the engine thread is about to drive and sees that calls have used the right
//   since it last checked. The engine thread then sleeps for 1 ms, then 2, up to 8, as long as
//   calls go on using the right. So calls that follow each other do not hand the right over each
//   time, and no second thread wakes up for their traffic. Calls renew the lease by counting
//   `uses`, without a clock or a system call.
//
// Why no wake-up is lost. Say that something is due: a command is in the inbox, the session has
// failed, or a wish is not true yet. Under the mutex one of three cases holds:
//
// (a) A thread drives. Before each transport_progress a driver checks inbox, failure, waiters and
//     its own wish under the mutex, and a thread that changes one of them calls transport_wake
//     after the change. A wake-up that comes before the driver sleeps ends that sleep at once. A
//     wake-up that is left from an earlier driver makes a later driver check once more than needed.
//
// (b) No thread drives, and `left` is set. The thread that set `left` has seen under the same mutex
//     that the engine thread is awake, or has rung the bell. The engine thread checks `left` under
//     the mutex before it sleeps, and the bell stays readable until it is read. So the engine
//     thread takes the right, or finds that a call has taken it, which is case (a).
//
// (c) No thread drives, and `left` is not set. When the right was given up, the inbox was empty,
//     nothing was in flight, and every waiter's wish was true (the waiters were signalled). A later
//     command sets `left`. Any other event, such as the death of a peer, can wait for the end of
//     the lease, or wakes the engine thread if it dozes.
//
// The deadline of a waiter may pass while the right is passed to it. The waiter sees that under the
// mutex, under which it also leaves the list, and gives up the right as every driver does.

#include "worker/session/drive.h"

#include "worker/transport/idle.h"
#include "worker/transport/wait.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define DRIVE_LEASE_MS 1
#define DRIVE_LEASE_MAX_MS 8

// A call that blocks while another thread drives. On its stack.
struct drive_waiter {
    struct list waiters;
    const struct wish *wish;
    struct cond cond;
    bool granted; // True if another thread has passed the right to this waiter.
};

// A call that blocks.
struct driver {
    struct lockstep_session *session;
    const struct wish *wish;
    bool drives; // True while this call has the right.
    struct kernels_before before; // The floating-point environment of a trainer that drives.
};

int drive_init(struct drive *drive)
{
    list_init(&drive->waiters);
    drive->rest = DRIVE_AWAKE;
    drive->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return drive->bell < 0 ? -1 : 0;
}

void drive_fini(struct drive *drive)
{
    if (drive->bell >= 0)
        (void)close(drive->bell);
    drive->bell = -1;
}

// ---- The bell ----------------------------------------------------------------------------------

static void drive_ring(struct drive *drive)
{
    const uint64_t one = 1;
    const ssize_t written = write(drive->bell, &one, sizeof(one));
    (void)written; // The write fails only if the counter is full, and then the bell is readable.
}

static void drive_hear(struct drive *drive)
{
    uint64_t rung;
    const ssize_t heard = read(drive->bell, &rung, sizeof(rung));
    (void)heard; // The read fails if the bell was not rung.
}

// Records that the engine thread has work. True if the caller has to ring the bell after it has
// released the mutex. From now on the engine thread counts as awake, so no other thread rings.
static bool drive_call_engine_locked(struct drive *drive)
{
    const bool rests = drive->rest != DRIVE_AWAKE;
    drive->left = true;
    drive->rest = DRIVE_AWAKE;
    return rests;
}

// ---- The right ---------------------------------------------------------------------------------

static bool wish_is_true(const struct wish *wish)
{
    if (wish->work)
        return wish->work->state != WORK_IN_FLIGHT;
    return wish->counter ? *wish->counter == wish->value : *wish->flag;
}

static void drive_take_locked(struct lockstep_session *session, enum drive_holder holder)
{
    mutex_assert_held(&session->mutex);
    session->drive.holder = holder;
    session->drive.left = false;
    session->drive.uses += holder == DRIVE_TRAINER;
    transport_own(session->transport);
}

// Passes the right to the first waiter whose wish is not true. False: there is no such waiter.
static bool drive_pass_locked(struct lockstep_session *session)
{
    struct drive *drive = &session->drive;
    mutex_assert_held(&session->mutex);
    list_for_each (node, &drive->waiters) {
        struct drive_waiter *waiter = list_entry(node, struct drive_waiter, waiters);
        if (session->gate.failure != 0 || wish_is_true(waiter->wish))
            continue;
        transport_disown(session->transport);
        drive->holder = DRIVE_TRAINER;
        drive->uses++;
        waiter->granted = true;
        cond_signal(&waiter->cond);
        return true;
    }
    return false;
}

static void drive_release_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    transport_disown(session->transport);
    session->drive.holder = DRIVE_NOBODY;
}

void drive_changed_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    list_for_each (node, &session->drive.waiters) {
        struct drive_waiter *waiter = list_entry(node, struct drive_waiter, waiters);
        if (session->gate.failure != 0 || wish_is_true(waiter->wish))
            cond_signal(&waiter->cond);
    }
}

enum drive_alarm drive_alarm_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    if (!session->transport)
        return ALARM_NOBODY;
    if (session->drive.holder != DRIVE_NOBODY)
        return ALARM_DRIVER;
    return drive_call_engine_locked(&session->drive) ? ALARM_ENGINE : ALARM_NOBODY;
}

bool drive_is_engines_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    return session->drive.holder == DRIVE_ENGINE && list_empty(&session->drive.waiters);
}

void drive_sound(struct lockstep_session *session, enum drive_alarm alarm)
{
    if (alarm == ALARM_LATER)
        transport_note(session->transport);
    if (alarm == ALARM_DRIVER)
        transport_wake(session->transport);
    else if (alarm == ALARM_ENGINE)
        drive_ring(&session->drive);
}

// ---- A call that blocks ------------------------------------------------------------------------

static void driver_begin_locked(struct driver *driver)
{
    drive_take_locked(driver->session, DRIVE_TRAINER);
    kernels_enter(&driver->before);
    driver->drives = true;
}

static void driver_end_locked(struct driver *driver)
{
    struct lockstep_session *session = driver->session;
    bool rings = false;
    kernels_leave(&driver->before);
    driver->drives = false;
    if (drive_pass_locked(session))
        return;
    if (ring_buffer_count(&session->drive.inbox) > 0 || session->drive.work->busy(session))
        rings = drive_call_engine_locked(&session->drive);
    drive_release_locked(session);
    if (!rings)
        return;
    mutex_unlock(&session->mutex);
    drive_ring(&session->drive);
    mutex_lock(&session->mutex);
}

// Carries out the command after those in the inbox. If another thread drives, puts it into the
// inbox.
static void driver_command_locked(struct driver *driver, const struct command *command)
{
    struct lockstep_session *session = driver->session;
    if (session->drive.holder == DRIVE_NOBODY)
        driver_begin_locked(driver);
    const bool has_commands = ring_buffer_count(&session->drive.inbox) > 0;
    bool exchanged = false;
    mutex_unlock(&session->mutex);
    if (!driver->drives)
        session_post(session, *command);
    else if (has_commands)
        (void)session->drive.work->attend(session);
    else
        exchanged = session->drive.work->exchange(session, command);
    if (driver->drives && !exchanged)
        session->drive.work->command(session, command);
    mutex_lock(&session->mutex);
    if (exchanged)
        work_exchanged_locked(command->work);
}

// Milliseconds that a driver may sleep. *in_time becomes false if the deadline has passed.
static int driver_patience(const struct driver *driver, bool *in_time)
{
    const uint64_t deadline_ms = driver->wish->deadline_ms;
    const int patience = driver->session->drive.work->patience(driver->session);
    uint64_t now_ms;
    if (deadline_ms == COND_NO_DEADLINE)
        return patience;
    now_ms = clock_now_ms();
    *in_time = now_ms < deadline_ms;
    if (!*in_time)
        return 0;
    if (patience >= 0 && (uint64_t)patience < deadline_ms - now_ms)
        return patience;
    return deadline_ms - now_ms > INT32_MAX ? INT32_MAX : (int)(deadline_ms - now_ms);
}

// One round of driving. False: the deadline has passed, or the session is being closed.
static bool driver_round_locked(struct driver *driver)
{
    struct lockstep_session *session = driver->session;
    const bool has_commands = ring_buffer_count(&session->drive.inbox) > 0;
    bool in_time = true;
    mutex_unlock(&session->mutex);
    // After commands the driver does not sleep: they may have made its wish true, and then no
    // thread would end the sleep.
    if (!(has_commands || session->drive.work->is_due(session)) ||
        !session->drive.work->attend(session))
        transport_progress(session->transport, driver_patience(driver, &in_time));
    if (session->drive.work->stops(session))
        in_time = false;
    mutex_lock(&session->mutex);
    return in_time;
}

// Waits as a waiter until it is signalled, and takes the right if it was passed on. False: the
// deadline has passed.
static bool driver_wait_locked(struct driver *driver)
{
    struct lockstep_session *session = driver->session;
    struct drive_waiter waiter = {.wish = driver->wish};
    const uint64_t deadline_ms = driver->wish->deadline_ms;
    bool in_time;
    if (deadline_ms != COND_NO_DEADLINE && clock_now_ms() >= deadline_ms)
        return false;
    cond_init(&waiter.cond);
    list_push_back(&session->drive.waiters, &waiter.waiters);
    if (session->drive.holder == DRIVE_ENGINE)
        transport_wake(session->transport);
    in_time = cond_wait_until(&waiter.cond, &session->mutex, deadline_ms);
    list_remove(&waiter.waiters);
    cond_fini(&waiter.cond);
    if (waiter.granted)
        driver_begin_locked(driver);
    return in_time;
}

void drive_until_locked(struct lockstep_session *session, const struct command *command,
                        const struct wish *wish)
{
    struct driver driver = {.session = session, .wish = wish};
    bool in_time = true;
    if (command && session->gate.failure == 0)
        driver_command_locked(&driver, command);
    progress_wait_locked(session->progress, 1);
    await_begin_locked(session, wish->standing);
    while (!wish_is_true(wish) && session->gate.failure == 0 && in_time) {
        if (driver.drives)
            in_time = driver_round_locked(&driver);
        else if (session->drive.holder == DRIVE_NOBODY)
            driver_begin_locked(&driver);
        else
            in_time = driver_wait_locked(&driver);
    }
    await_end_locked(session);
    progress_wait_locked(session->progress, -1);
    if (driver.drives)
        driver_end_locked(&driver);
}

// ---- The engine thread -------------------------------------------------------------------------

// Sleeps on the bell while calls use the right, then takes the right. seen: the value of `uses`
// when the engine thread last checked.
static void drive_engine_take(struct lockstep_session *session, uint64_t seen)
{
    struct drive *drive = &session->drive;
    int lease_ms = DRIVE_LEASE_MS;
    mutex_lock(&session->mutex);
    for (;;) {
        struct pollfd bell = {.fd = drive->bell, .events = POLLIN};
        drive->rest = DRIVE_AWAKE;
        if (drive->holder == DRIVE_NOBODY && (drive->left || drive->uses == seen))
            break;
        seen = drive->uses;
        drive->rest = DRIVE_LEASES;
        mutex_unlock(&session->mutex);
        if (poll(&bell, 1, lease_ms) > 0)
            drive_hear(drive);
        if (lease_ms < DRIVE_LEASE_MAX_MS)
            lease_ms *= 2;
        mutex_lock(&session->mutex);
    }
    drive_take_locked(session, DRIVE_ENGINE);
    mutex_unlock(&session->mutex);
}

// Passes the right to a waiter, and returns when this thread has it again. False: there is no
// waiter to pass it to.
static bool drive_engine_passes(struct lockstep_session *session)
{
    bool passed;
    uint64_t seen;
    mutex_lock(&session->mutex);
    seen = session->drive.uses;
    passed = drive_pass_locked(session);
    mutex_unlock(&session->mutex);
    if (passed)
        drive_engine_take(session, seen);
    return passed;
}

// Nothing is in flight: gives up the right, sleeps until something arrives, and takes the right.
static void drive_engine_dozes(struct lockstep_session *session)
{
    struct drive *drive = &session->drive;
    const int rest_ms = transport_rest(session->transport);
    uint64_t seen;
    mutex_lock(&session->mutex);
    if (rest_ms == 0 || ring_buffer_count(&session->drive.inbox) > 0 ||
        !list_empty(&drive->waiters)) {
        mutex_unlock(&session->mutex);
        return;
    }
    drive_release_locked(session);
    drive->rest = DRIVE_DOZES;
    seen = drive->uses;
    mutex_unlock(&session->mutex);
    transport_doze(session->transport, drive->bell, rest_ms);
    drive_hear(drive);
    drive_engine_take(session, seen);
}

static void drive_set_nice(struct lockstep_session *session)
{
    const int nice = session->config.engine.nice;
    char reason[64];
    if (nice == 0 || setpriority(PRIO_PROCESS, (id_t)gettid(), nice) == 0)
        return;
    log_event(&session->log, LOG_LEVEL_WARN, "engine_nice_refused", "nice=%d text=%s", nice,
              strerror_r(errno, reason, sizeof(reason)));
}

static void drive_run(void *argument)
{
    struct lockstep_session *session = argument;
    kernels_environment();
    drive_set_nice(session);
    drive_engine_take(session, 0);
    while (!session->drive.work->stops(session)) {
        (void)session->drive.work->attend(session);
        if (session->drive.work->stops(session) || drive_engine_passes(session))
            continue;
        if (session->drive.work->busy(session)) {
            transport_progress(session->transport, session->drive.work->patience(session));
            continue;
        }
        transport_progress(session->transport, 0);
        if (!session->drive.work->busy(session))
            drive_engine_dozes(session);
    }
    session->drive.work->finish(session);
}

static int drive_refuse_processors(void)
{
    const char *cpus = config_environment("LOCKSTEP_ENGINE_CPUS");
    if (!cpus)
        return error_set(LOCKSTEP_E_CONFIG, "the engine's thread may run on none of the processors "
                                            "in config.engine_cpus");
    return error_set(LOCKSTEP_E_CONFIG,
                     "the engine's thread may run on none of the processors in "
                     "LOCKSTEP_ENGINE_CPUS='%s'",
                     cpus);
}

int drive_check_processors(const struct config *config)
{
    cpu_set_t before;
    if (!config->engine.pinned || sched_getaffinity(0, sizeof(before), &before) < 0)
        return 0;
    if (sched_setaffinity(0, sizeof(config->engine.cpus), &config->engine.cpus) < 0)
        return drive_refuse_processors();
    (void)sched_setaffinity(0, sizeof(before), &before);
    return 0;
}

int drive_start(struct lockstep_session *session, const struct drive_work *work)
{
    const struct config *config = &session->config;
    session->drive.work = work;
    if (thread_start(&session->drive.thread, "lockstep-engine", drive_run, session) != 0)
        return error_set(LOCKSTEP_E_SYSTEM, "cannot start a thread");
    session->drive.has_thread = true;
    if (!config->engine.pinned ||
        pthread_setaffinity_np(session->drive.thread.id, sizeof(config->engine.cpus),
                               &config->engine.cpus) == 0)
        return 0;
    session_post(session, (struct command){.kind = COMMAND_STOP, .leaves = false});
    drive_join(session);
    return drive_refuse_processors();
}

void drive_join(struct lockstep_session *session)
{
    thread_join(&session->drive.thread);
    session->drive.has_thread = false;
}
