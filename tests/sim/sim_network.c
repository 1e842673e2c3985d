// SPDX-License-Identifier: Apache-2.0
//
// The simulated cluster: clock, events, streams, links. See sim_network.h.

#include "tests/sim/sim_network.h"

#include "protos/topology.h"
#include "tests/support/choice.h"
#include "tests/support/describe.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum event_kind {
    HAPPEN_STARTED, // A process begins.
    HAPPEN_UP, // A message reaches the coordinator.
    HAPPEN_DOWN, // A message reaches a worker.
    HAPPEN_UP_END, // The coordinator sees the end of a stream.
    HAPPEN_DOWN_END,
    HAPPEN_TIMER,
    HAPPEN_DATA,
    HAPPEN_COLLECTIVE,
    HAPPEN_GONE, // A link's end is seen.
    HAPPEN_CORE_TICK,
    HAPPEN_CORE_DRAIN,
    HAPPEN_CORE_CRASH,
    HAPPEN_CRASH,
    HAPPEN_BREAK,
    HAPPEN_NOT, // The message was in flight and is lost.
};

struct sim_event {
    uint64_t at_ms;
    uint64_t sequence; // Events of one time happen in the order in which they were made.
    enum event_kind kind;
    struct sim_worker *worker;
    struct sim_worker *from; // Sender of data that comes over a link.
    coordinator_peer peer;
    uint64_t number; // Timer token; settled step of a goodbye.
    uint32_t rank;
    bool left;
    struct sim_key key;
    size_t size;
    unsigned char bytes[];
};

struct sim_collective {
    struct sim_collective *next;
    char job[LOCKSTEP_JOB_NAME_BYTES];
    struct generation_id generation;
    struct sim_key key;
    uint32_t joined;
    bool members[LOCKSTEP_MAX_WORLD];
    size_t size;
    _Alignas(16) unsigned char payload[SIM_PAYLOAD_BYTES];
};

// ---- Random numbers and text -----------------------------------------------------------------

uint64_t sim_random(struct sim *sim, uint64_t bound)
{
    return choice_random(&sim->random) % bound;
}

bool sim_chance(struct sim *sim, uint32_t percent)
{
    return sim_random(sim, 100) < percent;
}

static uint64_t sim_delay(struct sim *sim)
{
    return 1 + sim_random(sim, sim->delay_ms);
}

void sim_trace(struct sim *sim, const char *format, ...)
{
    char *line = sim->trace[sim->trace_count % SIM_TRACE_LINES];
    va_list arguments;
    if (sim->trace_off)
        return;
    int used = snprintf(line, SIM_TRACE_BYTES, "[%5" PRIu64 "] ", sim->now_ms);
    va_start(arguments, format);
    vsnprintf(line + used, SIM_TRACE_BYTES - (size_t)used, format, arguments);
    va_end(arguments);
    for (const char *at = line; *at != '\0'; at++)
        sim->trace_hash = (sim->trace_hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    sim->trace_count++;
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    va_list arguments;
    const uint64_t count = sim->trace_count;
    uint64_t first = count > SIM_TRACE_LINES ? count - SIM_TRACE_LINES : 0;
    if (first > 0)
        fprintf(stderr, "... %" PRIu64 " lines before\n", first);
    for (; first < count; first++)
        fprintf(stderr, "%s\n", sim->trace[first % SIM_TRACE_LINES]);
    for (uint32_t i = 0; i < sim->worker_count; i++) {
        const struct sim_worker *worker = sim->workers[i];
        char text[256] = "";
        if (worker->end == SIM_RUNNING)
            worker->model->waits_for(worker, text, sizeof(text));
        fprintf(stderr, "worker %" PRIu32 ", %s: %s %s\n", i, sim_name(worker),
                sim_end_name(worker->end), text);
    }
    fprintf(stderr, "FAILED, again with LOCKSTEP_TEST_SIM_SEED=%" PRIu64 ": ", sim->seed);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    fail();
    abort();
}

const char *sim_name(const struct sim_worker *worker)
{
    static char names[4][LOCKSTEP_JOB_NAME_BYTES + 32];
    static unsigned turn;
    char *name = names[turn++ % 4];
    if (worker->generation.number == 0)
        snprintf(name, sizeof(names[0]), "worker %" PRIu32, worker->index);
    else
        snprintf(name, sizeof(names[0]), "rank %" PRIu32 " of %s", worker->rank, worker->job);
    return name;
}

const char *sim_end_name(enum sim_end end)
{
    static const char *const names[] = {"waits for", "done", "refused", "halted", "crashed"};
    return names[end];
}

// ---- The events, a heap by time --------------------------------------------------------------

static bool event_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->sequence < b->sequence;
}

static void heap_swap(struct sim *sim, size_t a, size_t b)
{
    struct sim_event *kept = sim->heap[a];
    sim->heap[a] = sim->heap[b];
    sim->heap[b] = kept;
}

static void heap_push(struct sim *sim, struct sim_event *event)
{
    if (sim->heap_count == sim->heap_capacity) {
        sim->heap_capacity = sim->heap_capacity == 0 ? 1024 : 2 * sim->heap_capacity;
        sim->heap = realloc(sim->heap, sim->heap_capacity * sizeof(struct sim_event *));
        assert_non_null(sim->heap);
    }
    size_t at = sim->heap_count++;
    sim->heap[at] = event;
    while (at > 0 && event_before(sim->heap[at], sim->heap[(at - 1) / 2])) {
        heap_swap(sim, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
}

static struct sim_event *heap_pop(struct sim *sim)
{
    struct sim_event *first = sim->heap[0];
    size_t at = 0;
    sim->heap[0] = sim->heap[--sim->heap_count];
    for (;;) {
        size_t least = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < sim->heap_count; child++)
            if (event_before(sim->heap[child], sim->heap[least]))
                least = child;
        if (least == at)
            return first;
        heap_swap(sim, at, least);
        at = least;
    }
}

static struct sim_event *event_new(struct sim *sim, enum event_kind kind, struct sim_worker *worker,
                                   uint64_t at_ms, const void *bytes, size_t size)
{
    struct sim_event *event = malloc(sizeof(*event) + size);
    assert_non_null(event);
    memset(event, 0, sizeof(*event));
    event->at_ms = at_ms;
    event->sequence = sim->sequence++;
    event->kind = kind;
    event->worker = worker;
    event->peer = !worker ? 0 : worker->peer;
    event->size = size;
    if (size > 0)
        memcpy(event->bytes, bytes, size);
    heap_push(sim, event);
    return event;
}

// ---- The coordinator -------------------------------------------------------------------------

static struct sim_worker *worker_of(struct sim *sim, coordinator_peer peer)
{
    for (uint32_t i = 0; i < sim->worker_count; i++)
        if (sim->workers[i]->peer == peer)
            return sim->workers[i];
    return NULL;
}

static uint64_t fifo(uint64_t *last_ms, uint64_t at_ms)
{
    if (at_ms > *last_ms)
        *last_ms = at_ms;
    return *last_ms;
}

static void core_action(void *context, const struct coordinator_action *action)
{
    char text[DESCRIBE_BYTES];
    struct sim *sim = context;
    if (action->kind == ACTION_PROBE)
        return;
    if (action->kind == ACTION_LOG) {
        sim_trace(sim, "coordinator logs %s %s", action->log_id, action->text);
        return;
    }
    struct sim_worker *worker = worker_of(sim, action->peer);
    // Streams that ended for the coordinator have lost their number, see core_stream_end.
    if (!worker)
        sim_fail(sim, "the coordinator speaks to stream %" PRIu64 ", which has ended",
                 action->peer);
    if (action->kind == ACTION_CLOSE) {
        sim_trace(sim, "coordinator closes the stream of %s", sim_name(worker));
        event_new(sim, HAPPEN_DOWN_END, worker, fifo(&worker->down_ms, sim->now_ms + 1), NULL, 0);
        // The end may be reported although the coordinator asked for it.
        if (sim_chance(sim, 50))
            event_new(sim, HAPPEN_UP_END, worker, sim->now_ms + 1, NULL, 0);
        worker->peer = 0;
        return;
    }
    describe_down(text, sizeof(text), action->message);
    sim_trace(sim, "coordinator -> %s: %s", sim_name(worker), text);
    const uint64_t at_ms = fifo(&worker->down_ms, sim->now_ms + sim_delay(sim));
    event_new(sim, HAPPEN_DOWN, worker, at_ms, action->message, sizeof(*action->message));
    if (action->message->kind == DOWN_GENERATION) {
        worker->assigned_number = action->message->generation.number;
        worker->assigned_rank = action->message->u.generation_start.rank;
        worker->assigned_ms = at_ms;
    }
    check_sent(worker, action->message);
}

static void core_step(struct sim *sim, struct coordinator_event *event)
{
    const struct coordinator_sink sink = {core_action, sim};
    for (size_t i = 0; i < sizeof(event->entropy); i++)
        event->entropy[i] = (uint8_t)sim_random(sim, 256);
    coordinator_step(sim->core, event, sim->now_ms, sink);
    const uint64_t deadline = coordinator_deadline(sim->core);
    if (deadline < sim->tick_ms) {
        sim->tick_ms = deadline < sim->now_ms ? sim->now_ms : deadline;
        event_new(sim, HAPPEN_CORE_TICK, NULL, sim->tick_ms, NULL, 0);
    }
}

static void core_stream_end(struct sim *sim, const struct sim_event *ended, const char *text)
{
    struct coordinator_event event = {
        .kind = EVENT_CLOSED, .peer = ended->peer, .text = text, .proven = true};
    if (ended->worker->peer == ended->peer)
        ended->worker->peer = 0;
    core_step(sim, &event);
}

// ---- Streams ---------------------------------------------------------------------------------

void sim_connect(struct sim_worker *worker, const struct up_hello *hello)
{
    struct up_message message = {.kind = UP_HELLO, .u.hello = *hello};
    struct sim *sim = worker->sim;
    worker->peer = sim->next_peer++;
    worker->up_ms = sim->now_ms;
    worker->down_ms = sim->now_ms;
    worker->open_timeout_ms = hello->open_timeout_ms;
    memset(&worker->generation, 0, sizeof(worker->generation));
    memcpy(worker->job, hello->job, sizeof(worker->job));
    if (sim->core_dead) {
        worker->broken = true;
        event_new(sim, HAPPEN_DOWN_END, worker, sim->now_ms + sim_delay(sim), NULL, 0);
    }
    sim_send(worker, &message);
}

void sim_send(struct sim_worker *worker, const struct up_message *message)
{
    struct sim *sim = worker->sim;
    struct up_message copy = *message;
    if (worker->peer == 0 || worker->broken)
        return;
    copy.generation = worker->generation;
    event_new(sim, HAPPEN_UP, worker, fifo(&worker->up_ms, sim->now_ms + sim_delay(sim)), &copy,
              sizeof(copy));
}

static void deliver_up(struct sim *sim, struct sim_event *sent)
{
    char text[DESCRIBE_BYTES];
    const struct up_message *message = (const struct up_message *)sent->bytes;
    struct coordinator_event event = {
        .kind = EVENT_MESSAGE, .peer = sent->peer, .message = message};
    if (sent->worker->peer != sent->peer)
        return; // The coordinator has closed the stream meanwhile.
    if (message->kind == UP_HELLO)
        sent->worker->hello_ms = sim->now_ms;
    describe_up(text, sizeof(text), message);
    if (message->kind != UP_HEARTBEAT)
        sim_trace(sim, "%s -> coordinator: %s", sim_name(sent->worker), text);
    check_up(sent->worker, message);
    core_step(sim, &event);
}

static void deliver_down(struct sim *sim, struct sim_event *sent)
{
    struct sim_worker *worker = sent->worker;
    const struct down_message *message = (const struct down_message *)sent->bytes;
    // Messages that a coordinator sent before its crash may still come.
    if (worker->end != SIM_RUNNING || (worker->broken && !sim->core_dead))
        return;
    if (message->kind == DOWN_GENERATION) {
        worker->generation = message->generation;
        worker->rank = message->u.generation_start.rank;
        worker->world_size = message->u.generation_start.world_size;
        worker->gone = false;
    }
    check_received(worker, message);
    worker->model->received(worker, message);
}

// From some message on, everything in flight on a stream is lost.
static void stream_cut(struct sim *sim, struct sim_worker *worker, enum event_kind kind)
{
    const uint64_t from = sim->now_ms + sim_random(sim, sim->delay_ms);
    for (size_t i = 0; i < sim->heap_count; i++) {
        struct sim_event *event = sim->heap[i];
        if (event->kind == kind && event->worker == worker && event->at_ms > from)
            event->peer = 0; // Nobody's.
    }
}

// ---- Links -----------------------------------------------------------------------------------

// The worker that has this rank in the generation of `worker`, known from when the coordinator
// assigned it.
static struct sim_worker *peer_at(const struct sim_worker *worker, uint32_t rank)
{
    struct sim *sim = worker->sim;
    for (uint32_t i = 0; i < sim->worker_count; i++) {
        struct sim_worker *other = sim->workers[i];
        if (other->assigned_number == worker->assigned_number && other->assigned_rank == rank &&
            strcmp(other->job, worker->job) == 0)
            return other;
    }
    sim_fail(sim, "%s speaks to rank %" PRIu32 ", which nobody has", sim_name(worker), rank);
}

// The index of a neighbour among the worker's neighbours.
static uint32_t link_to(const struct sim_worker *worker, uint32_t rank)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    const uint32_t count = topology_neighbours(worker->rank, worker->world_size, ranks);
    for (uint32_t i = 0; i < count; i++)
        if (ranks[i] == rank)
            return i;
    sim_fail(worker->sim, "%s has no link to rank %" PRIu32, sim_name(worker), rank);
}

// The arrival time of a message that is sent now over a link. A message does not arrive before the
// other end knows its generation.
static uint64_t link_ms(struct sim_worker *worker, const struct sim_worker *to)
{
    const uint64_t at_ms = worker->sim->now_ms + sim_delay(worker->sim);
    return fifo(&worker->data_ms[link_to(worker, to->assigned_rank)],
                at_ms > to->assigned_ms ? at_ms : to->assigned_ms);
}

void sim_data(struct sim_worker *worker, uint32_t rank, const void *bytes, size_t size)
{
    struct sim_worker *to = peer_at(worker, rank);
    if (worker->gone)
        sim_fail(worker->sim, "%s uses a link that it has closed", sim_name(worker));
    struct sim_event *event =
        event_new(worker->sim, HAPPEN_DATA, to, link_ms(worker, to), bytes, size);
    event->from = worker;
    event->rank = worker->rank;
}

static bool linked(const struct sim_worker *worker)
{
    return worker->end == SIM_RUNNING && worker->generation.number != 0 && !worker->gone;
}

// Resets a link: the messages in flight are lost from some message on. Returns the time at which
// the other end sees the reset.
static uint64_t link_cut(struct sim_worker *worker, const struct sim_worker *to)
{
    struct sim *sim = worker->sim;
    const uint64_t sent_ms = link_ms(worker, to);
    const uint64_t cut_ms = sim->now_ms + sim_delay(sim);
    if (!sim->lossy || cut_ms <= to->assigned_ms || cut_ms >= sent_ms || sim_chance(sim, 50))
        return sent_ms;
    for (size_t i = 0; i < sim->heap_count; i++) {
        struct sim_event *event = sim->heap[i];
        if (event->kind == HAPPEN_DATA && event->from == worker && event->worker == to &&
            event->at_ms >= cut_ms)
            event->kind = HAPPEN_NOT;
    }
    return cut_ms;
}

// The ring is broken: a rank that has not got the result of a collective yet may never get it.
static void collectives_cut(struct sim_worker *worker)
{
    struct sim *sim = worker->sim;
    for (size_t i = 0; sim->lossy && i < sim->heap_count; i++) {
        struct sim_event *event = sim->heap[i];
        if (event->kind == HAPPEN_COLLECTIVE && sim_chance(sim, 50) &&
            event->worker->assigned_number == worker->assigned_number &&
            strcmp(event->worker->job, worker->job) == 0)
            event->kind = HAPPEN_NOT;
    }
}

static void links_close(struct sim_worker *worker, bool left, uint64_t settled)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    if (worker->gone || worker->generation.number == 0)
        return;
    worker->gone = true;
    worker->left = left;
    collectives_cut(worker);
    const uint32_t count = topology_neighbours(worker->rank, worker->world_size, ranks);
    for (uint32_t i = 0; i < count; i++) {
        struct sim_worker *to = peer_at(worker, ranks[i]);
        const uint64_t at_ms = left ? link_ms(worker, to) : link_cut(worker, to);
        struct sim_event *event = event_new(worker->sim, HAPPEN_GONE, to, at_ms, NULL, 0);
        event->rank = worker->rank;
        event->left = left;
        event->number = settled;
    }
}

void sim_reset(struct sim_worker *worker)
{
    links_close(worker, false, 0);
}

static void deliver_gone(struct sim *sim, const struct sim_event *event)
{
    sim_trace(sim, "%s sees that rank %" PRIu32 " %s", sim_name(event->worker), event->rank,
              event->left ? "left" : "is gone");
    event->worker->model->peer_gone(event->worker, event->rank, event->left, event->number);
}

void sim_goodbye(struct sim_worker *worker, uint64_t settled)
{
    links_close(worker, true, settled);
}

// ---- Collectives -----------------------------------------------------------------------------

static bool key_equal(const struct sim_key *a, const struct sim_key *b)
{
    return a->kind == b->kind && a->number == b->number && a->step == b->step &&
           a->space == b->space;
}

static struct sim_collective *collective_of(struct sim_worker *worker, const struct sim_key *key)
{
    struct sim *sim = worker->sim;
    struct sim_collective *collective = sim->collectives;
    while (collective &&
           !(key_equal(&collective->key, key) && strcmp(collective->job, worker->job) == 0 &&
             collective->generation.number == worker->generation.number))
        collective = collective->next;
    if (collective)
        return collective;
    collective = calloc(1, sizeof(*collective));
    assert_non_null(collective);
    collective->generation = worker->generation;
    memcpy(collective->job, worker->job, sizeof(collective->job));
    collective->key = *key;
    collective->next = sim->collectives;
    sim->collectives = collective;
    return collective;
}

static void collective_forget(struct sim *sim, struct sim_collective *collective)
{
    struct sim_collective **at = &sim->collectives;
    while (*at != collective)
        at = &(*at)->next;
    *at = collective->next;
    free(collective);
}

void sim_join(struct sim_worker *worker, const struct sim_key *key, const void *payload,
              size_t size)
{
    struct sim *sim = worker->sim;
    struct sim_collective *collective = collective_of(worker, key);
    assert_true(size <= SIM_PAYLOAD_BYTES);
    if (collective->members[worker->rank])
        sim_fail(sim, "%s joins a collective of step %" PRIu64 " twice", sim_name(worker),
                 key->step);
    collective->members[worker->rank] = true;
    if (collective->joined++ == 0 && size > 0)
        memcpy(collective->payload, payload, size);
    else if (size > 0)
        worker->model->merge(key, collective->payload, payload);
    collective->size = size;
    if (collective->joined < worker->world_size)
        return;
    for (uint32_t rank = 0; rank < worker->world_size; rank++) {
        struct sim_event *event =
            event_new(sim, HAPPEN_COLLECTIVE, peer_at(worker, rank), sim->now_ms + sim_delay(sim),
                      collective->payload, collective->size);
        event->key = *key;
    }
    collective_forget(sim, collective);
}

// ---- Processes -------------------------------------------------------------------------------

struct sim_worker *sim_spawn(struct sim *sim, const struct sim_model *model, uint64_t delay_ms)
{
    struct sim_worker *worker = calloc(1, sizeof(*worker));
    assert_non_null(worker);
    assert_true(sim->worker_count < SIM_MAX_WORKERS);
    worker->sim = sim;
    worker->model = model;
    worker->index = sim->worker_count;
    worker->state = calloc(1, model->bytes);
    assert_non_null(worker->state);
    sim->workers[sim->worker_count++] = worker;
    event_new(sim, HAPPEN_STARTED, worker, sim->now_ms + delay_ms, NULL, 0);
    return worker;
}

void sim_timer(struct sim_worker *worker, uint64_t delay_ms)
{
    struct sim *sim = worker->sim;
    struct sim_event *event = event_new(sim, HAPPEN_TIMER, worker, sim->now_ms + delay_ms, NULL, 0);
    event->number = ++worker->timer_token;
}

void sim_exit(struct sim_worker *worker, enum sim_end end)
{
    struct sim *sim = worker->sim;
    if (worker->end != SIM_RUNNING)
        return;
    worker->end = end;
    worker->ended_ms = sim->now_ms;
    sim_trace(sim, "%s is %s", sim_name(worker), sim_end_name(end));
    links_close(worker, false, 0);
    if (worker->peer != 0)
        event_new(sim, HAPPEN_UP_END, worker, fifo(&worker->up_ms, sim->now_ms + sim_delay(sim)),
                  NULL, 0);
}

static void process_crash(struct sim *sim, struct sim_worker *worker)
{
    if (worker->end != SIM_RUNNING)
        return;
    stream_cut(sim, worker, HAPPEN_UP);
    sim_exit(worker, SIM_CRASHED);
}

static void process_break(struct sim *sim, struct sim_worker *worker)
{
    if (worker->end != SIM_RUNNING || worker->peer == 0 || worker->broken)
        return;
    sim_trace(sim, "the stream of %s breaks", sim_name(worker));
    stream_cut(sim, worker, HAPPEN_UP);
    event_new(sim, HAPPEN_UP_END, worker, sim->now_ms + sim->delay_ms + sim_delay(sim), NULL, 0);
    worker->broken = true;
    event_new(sim, HAPPEN_DOWN_END, worker, sim->now_ms + sim_delay(sim), NULL, 0);
}

// The coordinator is gone. Each worker sees the end of its stream after a delay of its own.
static void core_crash(struct sim *sim)
{
    sim->core_dead = true;
    sim_trace(sim, "the coordinator crashes");
    for (uint32_t i = 0; i < sim->worker_count; i++) {
        struct sim_worker *worker = sim->workers[i];
        if (worker->end != SIM_RUNNING || worker->peer == 0 || worker->broken)
            continue;
        stream_cut(sim, worker, HAPPEN_DOWN);
        worker->broken = true;
        event_new(sim, HAPPEN_DOWN_END, worker,
                  fifo(&worker->down_ms, sim->now_ms + sim_delay(sim)), NULL, 0);
    }
}

static void event_at(struct sim_worker *worker, enum event_kind kind, uint64_t at_ms)
{
    event_new(worker->sim, kind, worker, at_ms, NULL, 0);
}

void sim_crash_at(struct sim_worker *worker, uint64_t at_ms)
{
    event_at(worker, HAPPEN_CRASH, at_ms);
}

void sim_break_at(struct sim_worker *worker, uint64_t at_ms)
{
    event_at(worker, HAPPEN_BREAK, at_ms);
}

void sim_core_crash_at(struct sim *sim, uint64_t at_ms)
{
    event_new(sim, HAPPEN_CORE_CRASH, NULL, at_ms, NULL, 0);
}

void sim_drain_at(struct sim *sim, uint64_t at_ms)
{
    event_new(sim, HAPPEN_CORE_DRAIN, NULL, at_ms, NULL, 0);
}

// ---- Running ---------------------------------------------------------------------------------

static void deliver_core(struct sim *sim, const struct sim_event *event)
{
    struct coordinator_event drain = {.kind = EVENT_DRAIN};
    struct coordinator_event tick = {.kind = EVENT_TICK};
    if (event->kind == HAPPEN_CORE_CRASH) {
        core_crash(sim);
        return;
    }
    if (event->kind == HAPPEN_CORE_DRAIN) {
        sim_trace(sim, "coordinator drains");
        core_step(sim, &drain);
        return;
    }
    if (event->at_ms == sim->tick_ms)
        sim->tick_ms = UINT64_MAX;
    core_step(sim, &tick);
}

static void deliver_worker(struct sim *sim, struct sim_event *event)
{
    struct sim_worker *worker = event->worker;
    const bool running = worker->end == SIM_RUNNING;
    switch (event->kind) {
    case HAPPEN_STARTED:
        if (running)
            worker->model->started(worker);
        return;
    case HAPPEN_DOWN_END:
        if (running && !worker->disconnected)
            worker->model->disconnected(worker);
        worker->disconnected = true;
        return;
    case HAPPEN_DATA:
        if (linked(worker))
            worker->model->data(worker, event->rank, event->bytes, event->size);
        return;
    case HAPPEN_GONE:
        if (linked(worker))
            deliver_gone(sim, event);
        return;
    case HAPPEN_TIMER:
        if (running && event->number == worker->timer_token)
            worker->model->timer(worker);
        return;
    case HAPPEN_COLLECTIVE:
        if (running)
            worker->model->collective(worker, &event->key, event->bytes);
        return;
    case HAPPEN_CRASH:
        process_crash(sim, worker);
        return;
    case HAPPEN_BREAK:
        process_break(sim, worker);
        return;
    case HAPPEN_UP:
    case HAPPEN_DOWN:
    case HAPPEN_UP_END:
    case HAPPEN_CORE_TICK:
    case HAPPEN_CORE_DRAIN:
    case HAPPEN_CORE_CRASH:
    case HAPPEN_NOT:
        break;
    }
}

static void deliver(struct sim *sim, struct sim_event *event)
{
    switch (event->kind) {
    case HAPPEN_UP:
        if (event->peer != 0 && !sim->core_dead)
            deliver_up(sim, event);
        return;
    case HAPPEN_UP_END:
        if (event->peer != 0 && !sim->core_dead)
            core_stream_end(sim, event, "connection reset by peer");
        return;
    case HAPPEN_DOWN:
        if (event->peer != 0)
            deliver_down(sim, event);
        return;
    case HAPPEN_CORE_TICK:
    case HAPPEN_CORE_DRAIN:
    case HAPPEN_CORE_CRASH:
        if (!sim->core_dead)
            deliver_core(sim, event);
        return;
    case HAPPEN_NOT:
        return;
    case HAPPEN_STARTED:
    case HAPPEN_DOWN_END:
    case HAPPEN_TIMER:
    case HAPPEN_DATA:
    case HAPPEN_GONE:
    case HAPPEN_COLLECTIVE:
    case HAPPEN_CRASH:
    case HAPPEN_BREAK:
        deliver_worker(sim, event);
        return;
    }
}

bool sim_run(struct sim *sim, uint64_t limit_ms)
{
    while (sim->heap_count > 0 && sim->heap[0]->at_ms <= limit_ms) {
        struct sim_event *event = heap_pop(sim);
        sim->now_ms = event->at_ms;
        sim->steps++;
        deliver(sim, event);
        free(event);
    }
    return sim->heap_count == 0;
}

void sim_begin(struct sim *sim, uint64_t seed)
{
    void *memory = sim->memory;
    char(*trace)[SIM_TRACE_BYTES] = sim->trace;
    struct sim_worker **workers = sim->workers;
    memset(sim, 0, sizeof(*sim));
    sim->memory = memory ? memory : malloc(coordinator_bytes());
    sim->trace = trace ? trace : malloc(SIM_TRACE_LINES * sizeof(*trace));
    sim->workers = workers ? workers : malloc(SIM_MAX_WORKERS * sizeof(struct sim_worker *));
    assert_true(sim->memory && sim->trace && sim->workers);
    sim->seed = seed;
    sim->random = (seed + 1) * UINT64_C(0xd1342543de82ef95);
    sim->delay_ms = 10;
    sim->tick_ms = UINT64_MAX;
    sim->next_peer = 1;
    const struct coordinator_config config = {.incarnation = 1 + sim_random(sim, UINT64_MAX - 1)};
    sim->core = coordinator_init(sim->memory, &config);
    check_begin(sim);
}

void sim_end(struct sim *sim)
{
    check_end(sim);
    while (sim->heap_count > 0)
        free(heap_pop(sim));
    while (sim->collectives)
        collective_forget(sim, sim->collectives);
    for (uint32_t i = 0; i < sim->worker_count; i++) {
        free(sim->workers[i]->state);
        free(sim->workers[i]);
    }
    free(sim->heap);
    sim->heap = NULL;
}
