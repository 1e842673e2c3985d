// SPDX-License-Identifier: Apache-2.0
//
// The gate of a session: the checks with which every public function begins, the session's failure,
// which all of them return after it has happened, and the posting of commands to the inbox. Any
// thread.

#include "worker/session/gate.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/session/drive.h"
#include "worker/session/fork.h"
#include "worker/session/notify.h"
#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"
#include "worker/transport/wait.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GATE_BUCKETS_LATER \
    (SESSION_INBOX / 2) // Most commands in the inbox of a driver that sleeps.
#define GATE_ABORT_MS 1000 // How long a call waits until the driver has carried out an abort.

// The function of the trainer that this thread runs, for texts; NULL: none.
static _Thread_local const char *session_in_sink;

int session_check_sink(void)
{
    return !session_in_sink
               ? 0
               : error_set(LOCKSTEP_E_INVALID,
                           "%s, which it must not do: keep what it was told, and call the library "
                           "after it has returned",
                           session_in_sink);
}

int session_check_interrupted(const struct lockstep_session *session)
{
    if (!mutex_held(&session->mutex) && !mutex_held(&session->note.mutex) &&
        !mutex_held(&session->places.mutex))
        return 0;
    error_of(NULL);
    return error_set(LOCKSTEP_E_INVALID,
                     "a signal handler called the library while its thread was inside a function "
                     "of the same session: set a flag in the handler, and call the library after "
                     "it has returned");
}

int session_check_handle(struct lockstep_session *session)
{
    int status = session_check_sink();
    if (status < 0)
        return status;
    error_of(NULL);
    if (fork_in_child())
        return error_set(LOCKSTEP_E_FORKED,
                         "this process was forked from the one that opened the session");
    if (!session)
        return error_set(LOCKSTEP_E_INVALID, "the session is NULL");
    if (!handle_is(HANDLE_SESSION, session))
        return error_set(LOCKSTEP_E_INVALID, "this is not a session, or it was closed");
    status = session_check_interrupted(session);
    if (status < 0)
        return status;
    error_of(session);
    callers_note(&session->gate.callers);
    return 0;
}

const char *session_alone_text(const struct lockstep_session *session)
{
    return atomic_load_explicit(&session->gate.alone, memory_order_relaxed)
               ? "; the connection to the coordinator is lost, and with it the diagnosis of stalls"
               : "";
}

void session_late_text(const struct lockstep_session *session, char text[SESSION_LATE_BYTES])
{
    text[0] = '\0';
    if (atomic_load_explicit(&session->gate.alone, memory_order_acquire))
        snprintf(
            text, SESSION_LATE_BYTES,
            "; the coordinator at %.159s is gone since %" PRIu64
            " s, so nothing can say which rank is late",
            session->config.coordinator,
            (clock_now_ms() - atomic_load_explicit(&session->gate.alone_ms, memory_order_relaxed)) /
                1000);
}

int session_failure_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    if (session->gate.failure == 0)
        return 0;
    return error_set(session->gate.failure, "%s", session->gate.failure_text);
}

// A call after an abort fails. It first waits until the driver no longer touches user memory,
// because the caller may free that memory when the call has failed.
static int session_await_abort_locked(struct lockstep_session *session)
{
    static const bool never = false;
    const struct wish wish = {.flag = &never, .deadline_ms = clock_now_ms() + GATE_ABORT_MS};
    drive_until_locked(session, NULL, &wish);
    return session->gate.failure != 0 ? session_failure_locked(session)
                                      : error_set(LOCKSTEP_E_CLOSED, "this session was aborted");
}

int session_check(struct lockstep_session *session)
{
    int status = session_check_handle(session);
    if (status < 0 || (!atomic_load_explicit(&session->gate.failed, memory_order_acquire) &&
                       !atomic_load_explicit(&session->gate.aborting, memory_order_relaxed)))
        return status;
    mutex_lock(&session->mutex);
    status = session_failure_locked(session);
    if (status == 0)
        status = session_await_abort_locked(session);
    mutex_unlock(&session->mutex);
    return status;
}

void session_fail(struct lockstep_session *session, int status, const char *text)
{
    enum drive_alarm alarm;
    mutex_lock(&session->mutex);
    if (session->gate.failure == 0) {
        session->gate.failure = status;
        text_copy(session->gate.failure_text, sizeof(session->gate.failure_text), text);
        atomic_store_explicit(&session->gate.failed, true, memory_order_release);
    }
    drive_changed_locked(session);
    alarm = drive_alarm_locked(session);
    mutex_unlock(&session->mutex);
    drive_sound(session, alarm);
    notify_failed(session);
}

void session_drop(const struct command *command)
{
    if (command->kind == COMMAND_MESSAGE)
        free(command->message);
    else if (command->kind == COMMAND_CONTROL_ENDED || command->kind == COMMAND_ABORT)
        free(command->text);
}

static void session_put(struct lockstep_session *session, struct command command, bool can_wait)
{
    struct drive *drive = &session->drive;
    enum drive_alarm alarm = ALARM_NOBODY;
    bool posted;
    mutex_lock(&session->mutex);
    posted = ring_buffer_push(&drive->inbox, &command);
    can_wait = can_wait && drive_is_engines_locked(session) &&
               ring_buffer_count(&drive->inbox) < GATE_BUCKETS_LATER;
    if (posted)
        alarm = can_wait ? ALARM_LATER : drive_alarm_locked(session);
    mutex_unlock(&session->mutex);
    drive_sound(session, alarm);
    if (posted)
        return;
    session_drop(&command);
    session_fail(session, LOCKSTEP_E_SYSTEM, "the engine's inbox is full");
}

void session_post(struct lockstep_session *session, struct command command)
{
    session_put(session, command, false);
}

// The engine's thread does not wake up for a bucket where every core computes. Its work would take
// a core from a thread that computes, and this rank and its mates would wait for turns of the
// scheduler: the step would become longer by more than the communication. So the bucket stays in
// the inbox until a call of the trainer waits, which is when its core is free, or until a mate has
// launched more than this rank. Such a mate waits for this rank, and has left its core. Ranks with
// devices, sockets or a step that they learn have other resources to use meanwhile.
void session_post_bucket(struct lockstep_session *session, struct command command)
{
    const struct step *step = &session->step;
    const bool can_wait =
        !step->learning && !session->devices.first && step->times.begin_used != STEP_USED_UNKNOWN &&
        transport_can_wait(session->transport, step->times.begin, step->times.begin_used);
    session_put(session, command, can_wait);
}

int session_abort(struct lockstep_session *session, int status, const char *reason)
{
    char text[LOCKSTEP_TEXT_BYTES];
    char *copy;
    if (session->config.solo) {
        snprintf(text, sizeof(text), "this session was aborted: %.900s", reason);
        session_fail(session, status, text);
        return 0;
    }
    copy = strdup(reason);
    if (!copy)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    session_post(session, (struct command){.kind = COMMAND_ABORT, .status = status, .text = copy});
    atomic_store_explicit(&session->gate.aborting, true, memory_order_release);
    return 0;
}

static void gate_log_to_trainer(void *context, enum log_level level, const char *line, size_t size)
{
    const struct config *config = context;
    (void)size;
    const char *outer = session_in_sink;
    session_in_sink = "the log sink (config.log) called the library";
    config->log(config->log_context, (lockstep_log_level)level, line);
    session_in_sink = outer;
}

#define GATE_RANK_BYTES 24 // "from_rank=4294967295 "

// Lines of several ranks may come to one terminal, so each line has its rank in front. Before the
// world has formed there is no rank.
static void gate_log_to_stderr(void *context, enum log_level level, const char *line, size_t size)
{
    const struct lockstep_session *session = context;
    char bytes[LOG_LINE_BYTES + GATE_RANK_BYTES];
    struct text text;
    if (session->world.size == 0) {
        log_sink_stderr(NULL, level, line, size);
        return;
    }
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "from_rank=%" PRIu32 " %s", session->world.rank, line);
    log_sink_stderr(NULL, level, bytes, text.size);
}

void session_log_init(struct lockstep_session *session)
{
    struct config *config = &session->config;
    const enum log_level level = (enum log_level)config->log_level;
    if (config->log)
        log_init(&session->log, level, gate_log_to_trainer, config);
    else
        log_init(&session->log, level, !config->logs_to_stderr ? NULL : gate_log_to_stderr,
                 session);
}

void session_call_trainer(void (*function)(void *context), void *context)
{
    session_in_sink = "the function of lockstep_work_notify called the library";
    function(context);
    session_in_sink = NULL;
}
