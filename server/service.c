// SPDX-License-Identifier: Apache-2.0
//
// Each event causes one step of the core, and the core's actions are then carried out. Stream
// thread. See service.h.

#include "server/service.h"

#include "protos/codec/down.h"
#include "protos/codec/up.h"

#include "base/clock.h"
#include "coordinator/coordinator.h"
#include "protos/codec/codec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define DECODE_LOG_MS 1000 // At most one line about undecodable messages in this time.

// The last stall of a job that was counted. Stalls are counted from snapshots. A snapshot has all
// stalls since the previous one, unless there are more than it keeps.
struct told {
    char job[LOCKSTEP_JOB_NAME_BYTES];
    uint64_t number;
};

struct service {
    // set at open or attach, then constant
    struct service_config config;
    const struct rpc_calls *calls;
    void *server;
    struct service_shown shown; // Empty if HTTP is off.
    struct launcher *launcher; // Borrowed; NULL: none.
    struct prober *prober; // Borrowed; NULL: none.
    void *memory; // The core's memory; owned.
    struct coordinator *core;
    uint64_t incarnation;
    // atomic
    atomic_bool drain_wanted;
    atomic_bool orphaned;
    // stream thread only
    struct service_counts counts;
    bool halted; // True if the current step of the core has sent a verdict.
    bool draining;
    bool user_stopped; // True once the launcher has said that the user stops the job.
    bool stopped;
    uint64_t drain_deadline_ms;
    uint64_t alone_ms; // When an orphan drains, in clock_now_ms. 0: a stream is there.
    struct told told[LOCKSTEP_MAX_JOBS];
    // When the next log line about undecodable messages may be written, in clock_now_ms.
    uint64_t decode_log_ms;
    uint64_t unauthorized_log_ms; // The same for unauthorized streams.
};

// ---- actions ----------------------------------------------------------------------------------

static void count_sent(struct service *service, const struct down_message *message)
{
    if ((unsigned)message->kind < SERVICE_DOWN_KINDS)
        service->counts.sent[message->kind]++;
    if (message->kind == DOWN_REFUSED && (unsigned)message->u.refused.refusal < SERVICE_REFUSALS)
        service->counts.refused[message->u.refused.refusal]++;
    if (message->kind != DOWN_HALT)
        return;
    if (!service->halted && message->u.halt.has_rank && service->launcher)
        launcher_say_cause(service->launcher, message->u.halt.rank);
    service->halted = true;
}

static void act_send(struct service *service, const struct coordinator_action *action)
{
    uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    size_t size = 0;
    enum codec_status status = codec_encode_down(action->message, bytes, sizeof(bytes), &size);
    if (status != CODEC_OK) {
        service->counts.encode_errors++;
        log_event(service->config.log, LOG_LEVEL_ERROR, "encode_failed",
                  "kind=%d status=%s hint=%s", (int)action->message->kind,
                  codec_status_name(status), "this is a bug of the coordinator; please report it");
        service->calls->abort(service->server, action->peer, RPC_INTERNAL,
                              "the coordinator could not encode a message");
        return;
    }
    count_sent(service, action->message);
    service->calls->send(service->server, action->peer, bytes, size);
}

static enum log_level level_of(const char *id)
{
    static const char *const warnings[] = {"halt",    "lost",        "refus",    "invalid",
                                           "dropped", "stall_began", "in_groups"};
    for (size_t i = 0; i < sizeof(warnings) / sizeof(warnings[0]); i++) {
        if (strstr(id, warnings[i]))
            return LOG_LEVEL_WARN;
    }
    return LOG_LEVEL_INFO;
}

static void act(void *context, const struct coordinator_action *action)
{
    struct service *service = context;
    switch (action->kind) {
    case ACTION_SEND:
        act_send(service, action);
        break;
    case ACTION_CLOSE:
        service->calls->finish(service->server, action->peer, RPC_OK, "");
        break;
    case ACTION_PROBE:
        if (service->prober)
            prober_ask(service->prober, action->peer, action->text);
        break;
    case ACTION_LOG:
        // A world whose members are all gone is sent no verdict, so messages are not counted.
        if (action->halt != HALT_NONE && (unsigned)action->halt < SERVICE_HALTS)
            service->counts.halted[action->halt]++;
        log_event(service->config.log, level_of(action->log_id), action->log_id, "%s",
                  action->text ? action->text : "");
        break;
    }
}

// ---- events -----------------------------------------------------------------------------------

// Fills with fresh random bytes. Without them no generation may form, so a failure ends the
// process.
static void randomize(void *bytes, size_t size)
{
    uint8_t *place = bytes;
    while (size > 0) {
        ssize_t got = getrandom(place, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            perror("getrandom");
            abort();
        }
        place += got;
        size -= (size_t)got;
    }
}

static void step(struct service *service, struct coordinator_event *event)
{
    struct coordinator_sink sink = {act, service};
    randomize(event->entropy, sizeof(event->entropy));
    service->halted = false;
    coordinator_step(service->core, event, clock_now_ms(), sink);
}

static void step_closed(struct service *service, rpc_peer peer, const char *text)
{
    struct coordinator_event event = {.kind = EVENT_CLOSED, .peer = peer, .text = text};
    step(service, &event);
}

static void on_opened(void *context, rpc_peer peer, const char *address)
{
    struct service *service = context;
    log_event(service->config.log, LOG_LEVEL_DEBUG, "stream_opened", "peer=%" PRIx64 " from=%s",
              peer, address);
}

static void on_closed(void *context, rpc_peer peer, const char *text)
{
    struct service *service = context;
    log_event(service->config.log, LOG_LEVEL_DEBUG, "stream_closed", "peer=%" PRIx64 " text=%s",
              peer, text);
    step_closed(service, peer, text);
}

static void on_undecodable(struct service *service, rpc_peer peer, enum codec_status status,
                           const char *detail, size_t size)
{
    uint64_t now_ms = clock_now_ms();
    char text[LOCKSTEP_TEXT_BYTES];
    char told[LOCKSTEP_TEXT_BYTES];
    if (!detail)
        detail = codec_status_name(status);
    snprintf(text, sizeof(text), "it sent a message that cannot be decoded: %s", detail);
    snprintf(told, sizeof(told), "the message cannot be decoded: %s", detail);
    service->counts.decode_errors++;
    if (now_ms >= service->decode_log_ms) {
        service->decode_log_ms = now_ms + DECODE_LOG_MS;
        log_event(service->config.log, LOG_LEVEL_WARN, "decode_failed",
                  "peer=%" PRIx64 " status=%s bytes=%zu text=%s total=%" PRIu64 " hint=%s", peer,
                  codec_status_name(status), size, text, service->counts.decode_errors,
                  "whatever connected is no worker of this version of lockstep");
    }
    service->calls->abort(service->server, peer, RPC_INVALID_ARGUMENT, told);
    step_closed(service, peer, text);
}

// Keeps an answer only if the core has asked for it. Must run before the core handles the answer,
// because then the core forgets its question.
static void keep_answer(struct service *service, rpc_peer peer, const struct up_message *message)
{
    const struct up_answer *answer = &message->u.answer;
    struct peer_view view;
    if (service->shown.archive && coordinator_peer_view(service->core, peer, &view) &&
        view.asked != 0 && view.asked == answer->id &&
        message->generation.number == view.generation &&
        message->generation.incarnation == view.incarnation)
        archive_put(service->shown.archive, &view, answer, clock_now_ms());
}

// A hello is the only message that names a job. The service has stored nothing about this stream.
// The text that the client gets is the same whether the job exists or not.
static void on_unauthorized(struct service *service, rpc_peer peer, const char *job)
{
    uint64_t now_ms = clock_now_ms();
    if (now_ms >= service->unauthorized_log_ms) {
        service->unauthorized_log_ms = now_ms + DECODE_LOG_MS;
        log_event(service->config.log, LOG_LEVEL_WARN, "unauthorized",
                  "peer=%" PRIx64 " asked_for=%s hint=%s", peer, job,
                  "its certificate does not name a worker of this job");
    }
    service->calls->abort(service->server, peer, RPC_PERMISSION_DENIED, RPC_UNAUTHORIZED_TEXT);
    step_closed(service, peer, "its certificate is not of this job");
}

// Returns how many workers were refused so far.
static uint64_t refusals(const struct service *service)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < SERVICE_REFUSALS; i++)
        sum += service->counts.refused[i];
    return sum;
}

static void on_message(void *context, rpc_peer peer, const uint8_t *bytes, size_t size)
{
    struct service *service = context;
    struct up_message message;
    const char *detail = NULL;
    enum codec_status status = codec_decode_up(bytes, size, &message, &detail);
    if (status != CODEC_OK) {
        on_undecodable(service, peer, status, detail, size);
        return;
    }
    if ((unsigned)message.kind < SERVICE_UP_KINDS)
        service->counts.received[message.kind]++;
    if (message.kind == UP_HELLO &&
        !service->calls->allows(service->server, peer, message.u.hello.job)) {
        on_unauthorized(service, peer, message.u.hello.job);
        return;
    }
    struct coordinator_event event = {.kind = EVENT_MESSAGE, .peer = peer, .message = &message};
    if (message.kind == UP_HELLO)
        event.origin = service->calls->origin(service->server, peer);
    if (message.kind == UP_ANSWER)
        keep_answer(service, peer, &message);
    const uint64_t refused = refusals(service);
    step(service, &event);
    if (message.kind == UP_HELLO && service->launcher)
        launcher_say_hello(service->launcher, &message.u.hello, refusals(service) > refused);
}

// ---- turns ------------------------------------------------------------------------------------

static void begin_drain(struct service *service, uint64_t now_ms)
{
    struct coordinator_event event = {.kind = EVENT_DRAIN};
    service->draining = true;
    service->drain_deadline_ms = now_ms + service->config.drain_ms;
    log_event(service->config.log, LOG_LEVEL_INFO, "drain_started", "streams=%u drain_ms=%u",
              service->calls->counts(service->server).streams, service->config.drain_ms);
    service->calls->set_serving(service->server, false);
    if (service->shown.board)
        snapshot_expire(service->shown.board);
    step(service, &event);
}

static void drain(struct service *service, uint64_t now_ms)
{
    uint32_t streams = service->calls->counts(service->server).streams;
    if (service->stopped || (streams > 0 && now_ms < service->drain_deadline_ms))
        return;
    service->stopped = true;
    // Without time to drain, or after the end of the job, it is no wonder that streams are cut.
    const bool surprise = streams > 0 && service->config.drain_ms > 0 && !service->user_stopped;
    log_event(service->config.log, surprise ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "drained",
              "streams_cut=%u", streams);
    service->calls->stop(service->server);
}

// Begins to drain if this is an orphan whose workers are gone. Returns when it will do so.
static uint64_t outlive(struct service *service, uint64_t now_ms)
{
    if (!atomic_load_explicit(&service->orphaned, memory_order_relaxed) || service->draining)
        return UINT64_MAX;
    if (service->calls->counts(service->server).streams > 0)
        service->alone_ms = 0;
    else if (service->alone_ms == 0)
        service->alone_ms = now_ms + service->config.outlive_ms;
    else if (now_ms >= service->alone_ms)
        begin_drain(service, now_ms);
    return service->alone_ms > 0 && !service->draining ? service->alone_ms : UINT64_MAX;
}

static struct told *told_of(struct service *service, const char *job)
{
    for (size_t i = 0; i < LOCKSTEP_MAX_JOBS; i++) {
        if (strcmp(service->told[i].job, job) == 0)
            return &service->told[i];
    }
    return NULL;
}

// Returns a place for a job. A job that no longer exists gives up its place.
static struct told *told_new(struct service *service, const struct snapshot *snapshot,
                             const char *job)
{
    for (size_t i = 0; i < LOCKSTEP_MAX_JOBS; i++) {
        struct told *told = &service->told[i];
        if (told->job[0] && snapshot_find(snapshot, told->job))
            continue;
        snprintf(told->job, sizeof(told->job), "%s", job);
        told->number = 0;
        return told;
    }
    return NULL; // Not reached: there are as many places as jobs in a snapshot at most.
}

static void count_stalls(struct service *service, const struct snapshot *snapshot)
{
    for (uint32_t j = 0; j < snapshot->job_count; j++) {
        const struct snapshot_job *job = &snapshot->jobs[j];
        const struct stall_view *stalls = &snapshot->stalls[job->stalls.first];
        struct told *told = told_of(service, job->view.name);
        if (job->stalls.count == 0)
            continue;
        if (!told)
            told = told_new(service, snapshot, job->view.name);
        // A newer job has the same name, and its numbers start again.
        if (told && stalls[0].number < told->number)
            told->number = 0;
        for (uint32_t i = 0; told && i < job->stalls.count; i++) {
            if (stalls[i].number > told->number && (unsigned)stalls[i].kind < SERVICE_STALLS)
                service->counts.stalls[stalls[i].kind]++;
        }
        if (told)
            told->number = stalls[0].number;
    }
}

static void show(struct service *service, uint64_t now_ms)
{
    struct snapshot *snapshot = snapshot_make(service->core, now_ms);
    if (!snapshot)
        return;
    snapshot->incarnation = service->incarnation;
    snapshot->draining = service->draining;
    count_stalls(service, snapshot);
    snapshot->counts = service->counts;
    snapshot->rpc = service->calls->counts(service->server);
    snapshot_publish(service->shown.board, snapshot);
}

static void pass_asks(struct service *service)
{
    struct ask ask;
    while (service->shown.asks && asks_take(service->shown.asks, &ask)) {
        struct coordinator_event event = {
            .kind = EVENT_ASK, .job = ask.job, .rank = ask.rank, .what = ask.what};
        step(service, &event);
    }
}

// Passes on what the launcher has said. The answer tells it that the core knows.
static void pass_launcher(struct service *service)
{
    struct launcher_word word;
    while (service->launcher && launcher_take(service->launcher, &word)) {
        struct coordinator_event event = {.text = word.text, .job = word.job};
        event.kind = word.kind == LAUNCHER_STOPPING ? EVENT_STOPPING : EVENT_ABSENT;
        service->user_stopped |= word.kind == LAUNCHER_STOPPING;
        if (word.kind != LAUNCHER_ASKS)
            step(service, &event);
        launcher_answer(service->launcher);
    }
}

// Tells the core which data ports were reached.
static void pass_probes(struct service *service)
{
    struct prober_answer answer;
    while (service->prober && prober_take(service->prober, &answer)) {
        struct coordinator_event event = {.kind = EVENT_PROBED,
                                          .peer = answer.peer,
                                          .reached = answer.reached,
                                          .refused = answer.refused};
        step(service, &event);
    }
}

static uint64_t on_turn(void *context, uint64_t now_ms)
{
    struct service *service = context;
    pass_probes(service);
    pass_launcher(service);
    if (!service->draining && atomic_load_explicit(&service->drain_wanted, memory_order_relaxed))
        begin_drain(service, now_ms);
    if (now_ms >= coordinator_deadline(service->core)) {
        struct coordinator_event event = {.kind = EVENT_TICK};
        step(service, &event);
    }
    pass_asks(service);
    if (service->shown.board && snapshot_wanted(service->shown.board))
        show(service, now_ms);
    const uint64_t alone_ms = outlive(service, now_ms);
    if (service->draining)
        drain(service, now_ms);
    uint64_t next = coordinator_deadline(service->core);
    if (service->launcher && !launcher_flush(service->launcher) &&
        now_ms + LAUNCHER_FLUSH_MS < next)
        next = now_ms + LAUNCHER_FLUSH_MS;
    if (alone_ms < next)
        next = alone_ms;
    if (service->draining && service->drain_deadline_ms < next)
        next = service->drain_deadline_ms;
    return next;
}

struct rpc_events service_events(struct service *service)
{
    return (struct rpc_events){
        .opened = on_opened,
        .message = on_message,
        .closed = on_closed,
        .turn = on_turn,
        .context = service,
    };
}

// ---- open and close ---------------------------------------------------------------------------

int service_open(const struct service_config *config, struct service **result, char *error,
                 size_t error_bytes)
{
    struct service *service = calloc(1, sizeof(*service));
    void *memory = malloc(coordinator_bytes());
    if (!service || !memory) {
        free(service);
        free(memory);
        snprintf(error, error_bytes, "no memory for the coordinator (%zu MiB are needed)",
                 coordinator_bytes() >> 20);
        return -1;
    }
    service->config = *config;
    while (service->incarnation == 0)
        randomize(&service->incarnation, sizeof(service->incarnation));
    struct coordinator_config core = {
        .incarnation = service->incarnation,
        .chunk_bytes = config->chunk_bytes,
        .stall_floor_ms = config->stall_floor_ms,
    };
    service->memory = memory;
    service->core = coordinator_init(memory, &core);
    *result = service;
    return 0;
}

void service_attach(struct service *service, const struct rpc_calls *calls, void *server)
{
    service->calls = calls;
    service->server = server;
}

void service_show(struct service *service, const struct service_shown *shown)
{
    service->shown = *shown;
}

void service_serve(struct service *service, struct launcher *launcher)
{
    service->launcher = launcher;
}

void service_probe(struct service *service, struct prober *prober)
{
    service->prober = prober;
}

void service_drain(struct service *service)
{
    atomic_store(&service->drain_wanted, true);
}

void service_outlive(struct service *service)
{
    atomic_store(&service->orphaned, true);
}

void service_close(struct service *service)
{
    free(service->memory);
    free(service);
}
