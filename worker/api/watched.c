// SPDX-License-Identifier: Apache-2.0
//
// Connects a session with its watch and its tracker. The trainer runs the functions that watched.h
// declares, the watch thread runs the others.

#include "worker/api/watched.h"

#include "worker/control/grpc.h"
#include "worker/session/await.h"
#include "worker/session/note.h"
#include "worker/session/session.h"
#include "worker/session/work_told.h"
#include "worker/watch/progress.h"
#include "worker/watch/watch.h"

#include <string.h>

// True if the noted failure is a timeout, and the trainer is waiting again. A trainer may wait in
// many short calls. If its process is killed in one of them, the timeout of an earlier one is not
// the cause.
static bool watched_waits_again(const struct up_heartbeat *heartbeat)
{
    static const char timeout[] = "LOCKSTEP_E_TIMEOUT: ";
    const enum api_function api = heartbeat->place.api;
    return heartbeat->place.inside && strncmp(heartbeat->failure, timeout, strlen(timeout)) == 0 &&
           (api == API_WORK_WAIT || api == API_CALL_WAIT || api == API_STEP_END);
}

// All ranks have the same metrics and counters, so one of them reports these.
static void watched_numbers(struct lockstep_session *session, struct up_heartbeat *heartbeat)
{
    if (session->world.rank != 0)
        return;
    mutex_lock(&session->mutex);
    metrics_tell(session, heartbeat);
    counter_tell(session, heartbeat);
    mutex_unlock(&session->mutex);
}

static void watched_fill(void *context, const struct down_query *query, uint64_t *stood,
                         struct up_message *beat)
{
    struct lockstep_session *session = context;
    struct up_heartbeat *heartbeat = &beat->u.heartbeat;
    session_read_note(session, heartbeat->failure, sizeof(heartbeat->failure));
    if (watched_waits_again(heartbeat))
        heartbeat->failure[0] = '\0';
    if (beat->generation.number == 0)
        return; // Before the world has formed there is no wait to report.
    await_read(session, query, stood, &heartbeat->await);
    work_told_beat(session, heartbeat);
    watched_numbers(session, heartbeat);
}

static int watched_send(void *context, const struct up_message *message)
{
    const struct lockstep_session *session = context;
    return control_send(session->control, message);
}

static void watched_ask_driver(void *context)
{
    session_post(context, (struct command){.kind = COMMAND_INSPECT});
}

int watched_track(struct lockstep_session *session)
{
    session->tracker = (struct tracker){.trace = &session->trace,
                                        .mutex = &session->mutex,
                                        .trainer_threads = &session->config.trainer_threads,
                                        .call_waits = &session->waiting,
                                        .noted = &session->note.noted};
    if (progress_open(&session->tracker) < 0)
        return -1;
    session->progress = session->tracker.words;
    return 0;
}

int watched_start(struct lockstep_session *session)
{
    const struct watch_events events = {watched_fill, watched_send, watched_ask_driver, session};
    return watch_start(&events, &session->tracker, &session->gate.callers, &session->watch);
}
