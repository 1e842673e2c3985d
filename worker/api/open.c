// SPDX-License-Identifier: Apache-2.0
//
// The life of a session: open, world, close, abort. This file creates the parts of a session and
// destroys them. Runs on trainer threads. The control thread runs two callbacks, which only pass
// messages to the engine's inbox or to the watch.

#include "worker/api/buffers.h"
#include "worker/api/check.h"
#include "worker/api/memory.h"
#include "worker/api/module.h"
#include "worker/api/step_device.h"
#include "worker/api/watched.h"
#include "worker/control/grpc.h"
#include "worker/control/local_address.h"
#include "worker/engine/engine.h"
#include "worker/session/exit.h"
#include "worker/session/fork.h"
#include "worker/session/group.h"
#include "worker/session/note.h"
#include "worker/session/session.h"
#include "worker/transport/lifecycle.h"

#include "base/clock.h"
#include "base/file_mode.h"
#include "base/parse.h"
#include "base/standard.h"
#include "base/text.h"
#include "base/tls_files.h"
#include "worker/device/device.h"
#include "worker/device/open.h"
#include "worker/session/headroom.h"
#include "worker/session/module/device_events.h"
#include "worker/session/plain.h"
#include "worker/support/config_device.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"
#include "worker/support/process.h"
#include "worker/support/spare.h"
#include "worker/watch/watch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

// If the world does not form in time, the coordinator refuses and says why. This is how long after
// the open timeout a rank still waits for that answer.
#define OPEN_ANSWER_SLACK_MS 2000
// How long a close waits for the coordinator's answer to its goodbye. Of a large world all ranks
// may close at once, which takes the coordinator longer.
#define OPEN_LINGER_MS 1000
#define OPEN_LINGER_RANK_MS 10 // So much longer for each rank.
#define OPEN_HANDLES (1 + LOCKSTEP_MAX_PLAIN) // Handles of a session and of its work.

// ---- The control thread's callbacks ------------------------------------------------------------

static void open_received(void *context, const struct down_message *message)
{
    struct lockstep_session *session = context;
    struct down_message *copy;
    if (message->kind == DOWN_INSPECT) {
        watch_inspect(session->watch, &message->u.inspect);
        return;
    }
    if (message->kind == DOWN_QUERY && message->u.query.key_count > 0 && !message->u.query.form) {
        watch_query(session->watch, &message->u.query);
        return;
    }
    copy = malloc(sizeof(*copy));
    if (!copy) {
        session_post(session, (struct command){.kind = COMMAND_LACK});
        return;
    }
    *copy = *message;
    session_post(session, (struct command){.kind = COMMAND_MESSAGE, .message = copy});
}

static void open_ended(void *context, const char *text)
{
    struct lockstep_session *session = context;
    char *copy = strdup(text);
    if (copy)
        session_post(session, (struct command){.kind = COMMAND_CONTROL_ENDED, .text = copy});
    else
        session_fail(session, LOCKSTEP_E_SYSTEM, "no memory");
}

static void open_stands(void *context)
{
    session_post(context, (struct command){.kind = COMMAND_CONTROL_STANDS});
}

// If the log goes nowhere, the line goes to stderr: for example why lockstep_open does not return.
static void open_warned(void *context, const char *event, const char *text)
{
    struct lockstep_session *session = context;
    const struct config *config = &session->config;
    log_event(&session->log, LOG_LEVEL_WARN, event, "text=%s", text);
    if (!session->log.sink && config->log_level >= LOCKSTEP_LOG_WARN)
        fprintf(stderr, "lockstep: %s\n", text);
}

// ---- Opening -----------------------------------------------------------------------------------

// Frees what a collective holds that the session's failure has left in flight.
static void open_end_works(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    for (uint32_t i = 0; session->works.all && i < SESSION_MAX_WORK; i++) {
        if (session->works.all[i].kind != 0)
            plain_end_locked(&session->works.all[i]);
    }
    mutex_unlock(&session->mutex);
}

static void open_free(struct lockstep_session *session)
{
    for (uint32_t i = 0; i < session->module_count; i++) {
        module_remove_handles(session->modules[i]);
        module_free(session->modules[i]);
    }
    for (uint32_t i = 0; session->works.all && i < LOCKSTEP_MAX_PLAIN; i++)
        handle_remove(&session->works.all[i]);
    open_end_works(session);
    handle_remove(session);
    group_free_all(session);
    notify_fini(&session->works.notify);
    buffers_fini(session);
    memory_fini(session);
    if (session->devices.first)
        device_events_close(session);
    for (uint32_t i = 0; i < session->devices.count; i++)
        device_close(session->devices.all[i]);
    watch_close(session->watch);
    progress_close(&session->tracker);
    trace_close(&session->trace, false);
    ring_buffer_fini(&session->drive.inbox);
    drive_fini(&session->drive);
    mutex_fini(&session->mutex);
    mutex_fini(&session->note.mutex);
    mutex_fini(&session->places.mutex);
    spare_end();
    free(session->engine.order);
    free(session->places.known);
    free(session->works.all);
    free(session->works.names);
    free(session);
}

// Adds the handles of the session and of its work. They are added before the session joins a world,
// so that no failure for want of handles is possible afterwards.
static bool open_add_handles(struct lockstep_session *session)
{
    bool added = handle_add(HANDLE_SESSION, session) == 0;
    for (uint32_t i = SESSION_MAX_WORK; added && i-- > 0;) {
        struct lockstep_work *work = &session->works.all[i];
        work->session = session;
        list_init(&work->unmatched);
        if (i >= LOCKSTEP_MAX_PLAIN)
            continue;
        added = handle_add(HANDLE_WORK, work) == 0;
        work->next_free = session->works.first_free;
        session->works.first_free = work;
    }
    return added;
}

static int open_allocate(const struct config *config, struct lockstep_session **allocated)
{
    struct lockstep_session *session = calloc(1, sizeof(*session));
    bool whole;
    if (!session)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for a session");
    spare_begin();
    mutex_init(&session->mutex);
    mutex_init(&session->note.mutex);
    mutex_init(&session->places.mutex);
    list_init(&session->call_waiters);
    notify_init(&session->works.notify);
    list_init(&session->works.unmatched);
    session->landing.landed = true;
    whole = drive_init(&session->drive) == 0;
    session->config = *config;
    session->step.uneven = config->uneven;
    session->engine.order = calloc(1, sizeof(*session->engine.order));
    session->works.all = calloc(SESSION_MAX_WORK, sizeof(*session->works.all));
    session->works.names = calloc(SESSION_NAME_PLACES, sizeof(*session->works.names));
    whole = whole &&
            ring_buffer_init(&session->drive.inbox, SESSION_INBOX, sizeof(struct command)) &&
            session->engine.order && session->works.all && session->works.names;
    if (!whole || !open_add_handles(session)) {
        open_free(session);
        return whole ? error_set(LOCKSTEP_E_SYSTEM,
                                 "this process has %d handles of sessions, modules, calls and work "
                                 "at most, and a session needs %d: close modules or sessions first",
                                 LOCKSTEP_MAX_HANDLES, OPEN_HANDLES)
                     : error_set(LOCKSTEP_E_SYSTEM, "no memory for a session");
    }
    session_log_init(session);
    *allocated = session;
    return 0;
}

static void open_name_device(const struct lockstep_session *session, struct up_hello *hello)
{
    const struct device_facts *facts =
        !session->devices.first ? NULL : device_facts(session->devices.first);
    static_assert(sizeof(facts->uuid) == sizeof(hello->gpu.uuid), "both are the driver's");
    text_copy(hello->device, sizeof(hello->device), !facts ? "cpu" : "cuda");
    text_copy(hello->gpu_problem, sizeof(hello->gpu_problem), session->devices.problem);
    hello->has_gpu = facts != NULL;
    if (!facts)
        return;
    memcpy(&hello->gpu.uuid, facts->uuid, sizeof(hello->gpu.uuid));
    hello->gpu.capability = facts->capability;
    hello->gpu.driver_version = facts->driver_version;
    hello->gpu.nccl_version = facts->nccl_version;
    text_copy(hello->gpu.nccl_missing, sizeof(hello->gpu.nccl_missing), facts->nccl_missing);
    for (uint32_t i = 1; i < session->devices.count; i++)
        memcpy(&hello->further_gpus[hello->further_gpu_count++],
               device_facts(session->devices.all[i])->uuid, sizeof(struct uuid));
}

static void open_hello(const struct lockstep_session *session, struct up_message *message)
{
    const struct config *config = &session->config;
    struct up_hello *hello = &message->u.hello;
    *message = (struct up_message){.kind = UP_HELLO};
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    hello->uuid = session->uuid;
    hello->pid = (uint32_t)getpid();
    text_copy(hello->job, sizeof(hello->job), config->job);
    text_copy(hello->host, sizeof(hello->host), config->host);
    text_copy(hello->host_id, sizeof(hello->host_id), config->host_id);
    text_copy(hello->address, sizeof(hello->address), session->address);
    hello->world_min = config->world.min;
    hello->world_max = config->world.max;
    hello->window_ms = config->world.window_ms;
    hello->has_rank_hint = config->world.has_rank_hint;
    hello->rank_hint = config->world.rank_hint;
    hello->open_timeout_ms = config->open_timeout_ms;
    hello->on_failure =
        config->on_failure == LOCKSTEP_ON_FAILURE_CONTINUE ? FAILURE_CONTINUE : FAILURE_ERROR;
    hello->elsewhere = parse_has_choice(config->coordinator);
    hello->virtual_ranks = config->virtual_ranks;
    open_name_device(session, hello);
    hello->started = process_started(hello->pid);
    hello->cores = config->cores;
}

// Warns if other users can read the private key: with it they could join the job.
static void open_warn_key(struct lockstep_session *session)
{
    char key[sizeof(session->config.tls_dir) + sizeof(TLS_KEY_FILE) + 1];
    unsigned mode;
    snprintf(key, sizeof(key), "%s/%s", session->config.tls_dir, TLS_KEY_FILE);
    if (session->config.tls_dir[0] != '\0' && file_mode_exposed(key, &mode))
        log_event(&session->log, LOG_LEVEL_WARN, "secret_exposed", "file=%s mode=%04o hint=%s", key,
                  mode, FILE_MODE_HINT);
}

static int open_connect(struct lockstep_session *session)
{
    const struct config *config = &session->config;
    const struct control_target target = {config->coordinator, config->open_timeout_ms,
                                          config->tls_dir, config->job};
    const struct control_events events = {open_received, open_ended, session,
                                          open_warned,   open_ended, open_stands};
    struct up_message hello;
    char error[LOCKSTEP_TEXT_BYTES];
    int status;
    if (watched_start(session) < 0)
        return error_set(LOCKSTEP_E_SYSTEM, "cannot start a thread");
    status = control_open(&target, &events, &session->control, error, sizeof(error));
    if (status < 0)
        return error_set(status == -2 ? LOCKSTEP_E_SYSTEM : LOCKSTEP_E_CONFIG, "%s", error);
    open_warn_key(session);
    open_hello(session, &hello);
    status = control_send(session->control, &hello);
    if (status == -3)
        return error_set(LOCKSTEP_E_CONFIG, "the configuration does not fit a hello message");
    if (status == -4)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for a message to the coordinator");
    return 0;
}

static int open_await_world(struct lockstep_session *session)
{
    const uint32_t wait_ms = session->config.open_timeout_ms;
    const struct wish wish = {.flag = &session->world.formed,
                              .deadline_ms = clock_now_ms() + wait_ms + OPEN_ANSWER_SLACK_MS};
    const char *why = session->step.change.text; // Why ranks recovered last; "": they did not.
    int status = 0;
    error_of(session); // The goodbye to the other ranks gives the failure as its reason.
    mutex_lock(&session->mutex);
    drive_until_locked(session, NULL, &wish);
    if (session->gate.failure != 0)
        status = session_failure_locked(session);
    else if (!session->world.formed)
        status = error_set(LOCKSTEP_E_TIMEOUT, "the world did not form within %u ms%s%s", wait_ms,
                           why[0] ? ": " : ", and the coordinator did not say why", why);
    mutex_unlock(&session->mutex);
    return status;
}

static void open_shut(struct lockstep_session *session, bool leave)
{
    struct up_message message = {.kind = UP_LEAVE};
    exit_unwatch(session);
    session_read_note(session, message.u.leave.cause, sizeof(message.u.leave.cause));
    engine_stop(session, leave);
    watch_stop(session->watch);
    if (session->control) {
        message.generation = session->world.generation;
        message.u.leave.settled = atomic_load(&session->progress->settled);
        engine_last_word(session, &message.u.leave);
        control_send(session->control, &message);
        control_close(session->control, OPEN_LINGER_MS + OPEN_LINGER_RANK_MS * session->world.size);
    }
    fork_unwatch(session);
    if (session->transport)
        transport_close(session->transport);
    // The control thread may have posted commands after the engine thread ended. Frees them.
    for (struct command command; ring_buffer_pop(&session->drive.inbox, &command);)
        session_drop(&command);
}

static int open_join(struct lockstep_session *session)
{
    int status = fork_is_late() ? fork_refuse() : check_address(&session->config);
    if (status == 0) {
        memory_share(session);
        status = engine_start(session);
    }
    if (status < 0)
        return status;
    fork_watch(session);
    status = open_connect(session);
    if (status == 0)
        exit_watch(session);
    if (status == 0)
        status = open_await_world(session);
    if (status < 0)
        open_shut(session, false);
    return status;
}

static int open_begin(struct lockstep_session *session)
{
    if (getrandom(&session->uuid, sizeof(session->uuid), 0) < 0)
        return error_set(LOCKSTEP_E_SYSTEM,
                         "the kernel gives this process no random bytes (getrandom): %s",
                         strerror(errno));
    if (trace_open(&session->config, &session->uuid, &session->log, &session->trace) < 0 ||
        watched_track(session) < 0)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for a session");
    return 0;
}

// Opens one device. "auto" means the calling thread's current device, so it is resolved here.
static int open_one(struct lockstep_session *session, const char *choice)
{
    char error[LOCKSTEP_TEXT_BYTES];
    struct device *device;
    struct text problem;
    const int opened = device_open(choice, &device, error, sizeof(error));
    if (opened == 0 && device)
        session->devices.all[session->devices.count++] = device;
    if (opened != -1)
        return opened;
    text_init(&problem, session->devices.problem, sizeof(session->devices.problem));
    text_append(&problem, "%s: %s", choice, error);
    return -1;
}

static int open_device(struct lockstep_session *session)
{
    const char *rest = session->config.device + sizeof(CONFIG_DEVICE_KIND) - 1;
    char choice[32];
    uint64_t number;
    int opened = 0;
    if (strncmp(session->config.device, CONFIG_DEVICE_KIND, strlen(CONFIG_DEVICE_KIND)) != 0) {
        opened = open_one(session, session->config.device);
        rest = "";
    }
    while (opened == 0 && *rest != '\0' && config_device_next(&rest, &number)) {
        snprintf(choice, sizeof(choice), CONFIG_DEVICE_KIND "%" PRIu64, number);
        opened = open_one(session, choice);
    }
    session->devices.first = opened == 0 ? session->devices.all[0] : NULL;
    if (session->devices.first)
        device_events_open(session);
    if (session->devices.first && session->config.virtual_ranks > 0)
        text_copy(session->devices.problem, sizeof(session->devices.problem),
                  "config.virtual_ranks adds in host memory only");
    return opened == -2 ? error_set(LOCKSTEP_E_SYSTEM, "no memory for a device") : 0;
}

static int open_enter(struct lockstep_session *session)
{
    const struct visit visit = progress_enter(&session->tracker, API_OPEN, PROGRESS_NO_MODULE, 0);
    session->world.root = session->config.root;
    if (!session->config.solo)
        return progress_leave(&visit, open_join(session));
    session->world.size = session->world.tuned_size = 1;
    if (session->config.virtual_ranks > 0)
        deal_begin(&session->world.deal, session->config.virtual_ranks, 1);
    return progress_leave(&visit, check_alone(&session->config));
}

// Fails to open, because the device cannot be used. The rank joins the world first: otherwise the
// other ranks would wait for it instead of getting an error, too.
static int open_without(struct lockstep_session *session)
{
    if (!session->config.solo && open_enter(session) == 0)
        open_shut(session, true);
    return error_set(LOCKSTEP_E_UNSUPPORTED,
                     "the device cannot be used, %s; LOCKSTEP_DEVICE=none (config.device) does "
                     "without",
                     session->devices.problem);
}

// Tries once to open a session. *again becomes true if the coordinator was lost after it had given
// this rank a number and before the world had formed: a new coordinator then forms a new world.
static int open_once(const struct config *config, struct lockstep_session **opened, bool *again)
{
    struct lockstep_session *session = NULL;
    int status = headroom_check(config);
    if (status == 0)
        status = open_allocate(config, &session);
    if (status == 0)
        status = open_begin(session);
    if (status == 0)
        status = open_device(session);
    if (status == 0) {
        status = session->devices.problem[0] == '\0' ? open_enter(session) : open_without(session);
    }
    *again = status == LOCKSTEP_E_UNREACHABLE && session && session->world.size > 0 &&
             !session->world.formed;
    if (status < 0) {
        if (session)
            open_free(session);
        return status;
    }
    *opened = session;
    return 0;
}

// Opens a session. If the coordinator is lost while the world forms, tries again until the open
// timeout is over.
static int open_in_time(struct config *config, struct lockstep_session **session)
{
    const uint64_t deadline_ms = clock_now_ms() + config->open_timeout_ms;
    for (;;) {
        bool again;
        const int status = open_once(config, session, &again);
        const uint64_t now_ms = clock_now_ms();
        if (!again || now_ms >= deadline_ms)
            return status;
        config->open_timeout_ms = (uint32_t)(deadline_ms - now_ms);
    }
}

int lockstep_open(const struct lockstep_config *config, lockstep_session **session)
{
    struct config *resolved;
    int status;
    if (fork_in_child())
        return error_set(LOCKSTEP_E_FORKED, "this process was forked from one with a session");
    if (!session)
        return error_set(LOCKSTEP_E_INVALID, "session is NULL: nowhere to put the handle");
    *session = NULL;
    status = session_check_sink();
    if (status < 0)
        return status;
    error_of(NULL);
    error_note_by(session_note);
    if (!standard_occupy())
        return error_set(LOCKSTEP_E_SYSTEM, "cannot open /dev/null: %s", strerror(errno));
    resolved = calloc(1, sizeof(*resolved));
    if (!resolved)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    status = config_resolve(config, resolved);
    if (status == 0)
        status = open_in_time(resolved, session);
    free(resolved);
    return status;
}

// ---- World, abort and close --------------------------------------------------------------------

int lockstep_world(lockstep_session *session, uint32_t *rank, uint32_t *world_size)
{
    const int status = session_check_handle(session);
    if (status < 0)
        return status;
    mutex_lock(&session->mutex); // A death changes both, at any time.
    if (rank)
        *rank = session->world.rank;
    if (world_size)
        *world_size = session->world.size;
    mutex_unlock(&session->mutex);
    return 0;
}

int lockstep_abort(lockstep_session *session, const char *reason)
{
    int status = session_check_handle(session);
    char text[LOCKSTEP_MARK_BYTES];
    if (status < 0)
        return status;
    text_copy(text, sizeof(text), !reason ? "aborted" : reason);
    exit_abort_begins(session);
    status = session_abort(session, LOCKSTEP_E_CLOSED, text);
    exit_tell_abort(session);
    return status;
}

// A failure if another thread waits inside the session, which lockstep_close is about to free.
static int open_check_waits(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    const bool waits = session->awaiting.blocked > 0;
    mutex_unlock(&session->mutex);
    return !waits ? 0
                  : error_set(LOCKSTEP_E_INVALID,
                              "lockstep_close: another thread waits inside a function of this "
                              "session: call lockstep_close when that function has returned "
                              "(lockstep_abort ends its wait)");
}

int lockstep_close(lockstep_session *session)
{
    int status = session_check_handle(session);
    if (status == 0)
        status = open_check_waits(session);
    if (status < 0)
        return status;
    handle_remove(session);
    exit_await_aborts(session);
    // No progress_leave follows: the memory of the visit is freed with the session.
    (void)progress_enter(&session->tracker, API_CLOSE, PROGRESS_NO_MODULE, 0);
    // The trainer's stream counts on the results. A rank that is gone or a failed device ends the
    // wait.
    if (step_device_land(session, COND_NO_DEADLINE) < 0)
        log_event(&session->log, LOG_LEVEL_WARN, "step_dropped", "text=%s", lockstep_error_text());
    if (!session->config.solo)
        open_shut(session, true);
    trace_close(&session->trace, session->gate.failure != 0);
    open_free(session);
    return 0;
}
