// SPDX-License-Identifier: Apache-2.0
//
// Workers without trainers: each has a real control stream, joins a job, and sends heartbeats that
// say it trains. The load test and the tests of the status page use them. They answer a stack query
// with invented stacks and events.
//
// --culprit: after a while one worker stays outside the library, and all others wait for it.
// --late: all others wait for one rank in each step.
// --leave-ms: all workers leave in good order, then the program ends.
// --lose-ms: rank 1 dies, then the program ends.
// --hostile: names and texts contain markup, which the page must escape.

#include "base/clock.h"
#include "base/thread.h"
#include "protos/trace.h"
#include "protos/types.h"
#include "worker/control/control.h"
#include "worker/control/grpc.h"

#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define STEP_MS 100
#define SLOTS 12
#define MODULES 3
#define RANKS_A_HOST 8
#define LINGER_MS 1000 // Time for messages that are still to be sent.

static struct {
    const char *address;
    const char *job;
    uint32_t workers; // Workers of the world.
    uint32_t first; // The first worker of this process.
    uint32_t count; // Workers of this process; 0: all from `first` on.
    uint32_t culprit; // The rank that stands still; UINT32_MAX: none.
    uint64_t culprit_ms;
    uint32_t late; // The rank that is late in each step; UINT32_MAX: none.
    uint64_t leave_ms; // When all workers leave; 0: never.
    uint64_t lose_ms; // When rank 1 dies; 0: never.
    bool hostile;
} options = {
    .job = "fleet", .workers = 4, .culprit = UINT32_MAX, .culprit_ms = 5000, .late = UINT32_MAX};

static const char *const module_names[MODULES] = {"actor", "critic", "world_model.encoder"};
static const char *const hostile_names[MODULES] = {"<script>document.title='taken'</script>",
                                                   "</td><img src=x onerror=\"alert(1)\">",
                                                   "\"'&amp;\\ \xe2\x80\xae txet"};

struct worker {
    struct control *control;
    uint32_t id;
    atomic_uint rank;
    atomic_bool trains; // True if the worker sends heartbeats.
    struct generation_id generation;
};

static struct worker *workers;
static atomic_uint verified;
static atomic_uint ended;
static atomic_bool stopping; // True if no more heartbeats are sent.
static _Atomic(uint64_t) started_ms; // When the last worker had started; 0: not yet.

static void say(struct worker *worker, const struct up_message *message)
{
    if (control_send(worker->control, message) < 0)
        atomic_fetch_add(&ended, 1);
}

// ---- how it trains ----------------------------------------------------------------------------

static bool stuck(uint64_t elapsed_ms)
{
    return options.culprit != UINT32_MAX && elapsed_ms >= options.culprit_ms;
}

static void fill_place(struct place *place, uint32_t rank, uint64_t elapsed_ms)
{
    const bool waits = stuck(elapsed_ms);
    const uint64_t in_step_ms = (waits ? options.culprit_ms : elapsed_ms) % STEP_MS;
    place->count = SLOTS;
    place->position = (uint32_t)(in_step_ms * SLOTS / STEP_MS);
    place->open = true;
    place->slot = (struct slot_id){.module = place->position % MODULES};
    place->calls_open = 0;
    place->usual_us = 20000;
    place->longest_us = 40000;
    place->module = place->slot.module;
    place->waited_us = elapsed_ms * (rank == options.late ? 20 : 100);
    if (options.late != UINT32_MAX && rank != options.late)
        place->waited_us = elapsed_ms * 300;
    if (waits && rank == options.culprit) {
        place->api = API_CALL_END;
        place->module = 0;
        place->call = 3;
        place->api_ms = elapsed_ms - options.culprit_ms;
    } else if (waits) {
        place->api = API_STEP_END;
        place->module = LOCKSTEP_MAX_MODULES;
        place->inside = true;
        place->waits = true;
        place->done = true;
        place->api_ms = elapsed_ms - options.culprit_ms;
    } else {
        place->api = rank % 3 ? API_GRAD_READY : API_CALL_BEGIN;
        place->calls_open = rank % 2;
        place->ready = rank % 30;
        place->gradients = 30;
        place->api_ms = rank % 5;
    }
}

static void fill_heartbeat(struct worker *worker, struct up_message *message)
{
    struct up_heartbeat *beat = &message->u.heartbeat;
    const uint64_t begun_ms = atomic_load(&started_ms);
    const uint64_t elapsed_ms = begun_ms ? clock_now_ms() - begun_ms : 0;
    const uint64_t trained_ms = stuck(elapsed_ms) ? options.culprit_ms : elapsed_ms;
    *message = (struct up_message){.kind = UP_HEARTBEAT};
    beat->settled = trained_ms / STEP_MS;
    beat->step = beat->settled + 1;
    beat->activity = ACTIVITY_IN_CALL;
    beat->totals.steps = beat->settled;
    beat->totals.in_flight_us = beat->settled * 60000;
    beat->totals.overlap_us = beat->settled * 50000;
    // Exposed time grows by about 10 ms a step, with a swing that repeats each minute.
    beat->totals.exposed_us = beat->settled * 10000 + trained_ms % 60000 / 3;
    beat->bytes_sent = beat->settled * 40000000 + trained_ms % 10000 * 4000;
    const double loss = 0.3 + 2 / (1 + (double)trained_ms / 20000);
    const double rate = 1280 + (double)(trained_ms * 7 % 97);
    if (options.hostile)
        snprintf(beat->mark, sizeof(beat->mark), "<b onclick=alert(1)>mark</b>");
    else
        snprintf(beat->mark, sizeof(beat->mark), "epoch %u loss=%.4f samples/s=%.0f",
                 (unsigned)(trained_ms / 30000), loss, rate);
    if (begun_ms)
        fill_place(&beat->place, atomic_load(&worker->rank), elapsed_ms);
}

// ---- what it answers --------------------------------------------------------------------------

static void answer_stacks(struct worker *worker, struct up_message *message, bool last)
{
    struct up_answer *answer = &message->u.answer;
    answer->kind = ANSWER_PLACE;
    memset(&answer->u, 0, sizeof(answer->u));
    snprintf(answer->u.place.phase, sizeof(answer->u.place.phase), "main");
    say(worker, message);

    answer->kind = ANSWER_THREADS;
    memset(&answer->u, 0, sizeof(answer->u));
    answer->u.threads.count = 1;
    struct stack_thread *thread = &answer->u.threads.threads[0];
    *thread = (struct stack_thread){
        .tid = 1000 + worker->id, .state = 'S', .trainer = true, .syscall = 230};
    snprintf(thread->name, sizeof(thread->name), "%s", options.hostile ? "<i>t</i>" : "trainer");
    snprintf(thread->wchan, sizeof(thread->wchan), "hrtimer_nanosleep");
    say(worker, message);

    answer->kind = ANSWER_FRAMES;
    memset(&answer->u, 0, sizeof(answer->u));
    answer->u.frames.count = 2;
    struct stack_frame *frames = answer->u.frames.frames;
    frames[0] = (struct stack_frame){.python = true, .offset = 44};
    snprintf(frames[0].object, sizeof(frames[0]).object, "replay_buffer.py");
    snprintf(frames[0].symbol, sizeof(frames[0]).symbol, "%s",
             options.hostile ? "<script>frame</script>" : "sample");
    frames[1] = (struct stack_frame){.offset = 0x1a2b};
    snprintf(frames[1].object, sizeof(frames[1]).object, "libc.so.6");
    snprintf(frames[1].symbol, sizeof(frames[1]).symbol, "clock_nanosleep");
    answer->last = last;
    say(worker, message);
}

static void answer_events(struct worker *worker, struct up_message *message)
{
    static const uint16_t kinds[] = {TRACE_STEP_BEGIN, TRACE_CALL_BEGIN, TRACE_LAUNCH,
                                     TRACE_CALL_END,   TRACE_FINAL,      TRACE_STEP_END,
                                     TRACE_SETTLED};
    const uint32_t count = sizeof(kinds) / sizeof(kinds[0]);
    struct up_answer *answer = &message->u.answer;
    answer->kind = ANSWER_EVENTS;
    memset(&answer->u, 0, sizeof(answer->u));
    answer->u.events.count = 10 * count;
    for (uint32_t i = 0; i < 10 * count; i++) {
        answer->u.events.events[i] = (struct trace_event){
            .time_ns = answer->clock_ns - (10 * count - i) * UINT64_C(5000000),
            .step = 1 + i / count,
            .kind = kinds[i % count],
        };
    }
    answer->last = true;
    say(worker, message);
}

static void answer(struct worker *worker, const struct down_message *question)
{
    const struct down_inspect *inspect = &question->u.inspect;
    struct timespec now;
    struct up_message message = {.kind = UP_ANSWER, .generation = question->generation};
    const bool events = inspect->what & INSPECT_EVENTS;
    clock_gettime(CLOCK_MONOTONIC, &now);
    message.u.answer.id = inspect->id;
    message.u.answer.clock_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    if (inspect->what & INSPECT_STACKS)
        answer_stacks(worker, &message, !events);
    if (events)
        answer_events(worker, &message);
}

// ---- how it joins -----------------------------------------------------------------------------

static void say_hello(struct worker *worker)
{
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *hello = &message.u.hello;
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    snprintf(hello->job, sizeof(hello->job), "%s", options.job);
    memcpy(hello->uuid.bytes, &worker->id, sizeof(worker->id));
    hello->uuid.bytes[sizeof(hello->uuid.bytes) - 1] = 1;
    const uint32_t host = worker->id / RANKS_A_HOST;
    snprintf(hello->host_id, sizeof(hello->host_id), "host-%u", host);
    snprintf(hello->host, sizeof(hello->host), options.hostile ? "<u>node-%u</u>" : "node-%u",
             host);
    snprintf(hello->address, sizeof(hello->address), "tcp:127.0.0.1:%u", 1024 + worker->id);
    snprintf(hello->device, sizeof(hello->device), "cpu");
    hello->pid = 10000 + worker->id;
    hello->world_min = options.workers;
    hello->world_max = options.workers;
    hello->open_timeout_ms = 10 * LOCKSTEP_OPEN_TIMEOUT_MS;
    say(worker, &message);
}

static void name_modules(struct worker *worker, const struct generation_id *generation)
{
    struct up_message message = {.kind = UP_MODULES, .generation = *generation};
    struct up_modules *modules = &message.u.modules;
    modules->total = MODULES;
    modules->count = MODULES;
    for (uint32_t i = 0; i < MODULES; i++)
        snprintf(modules->names[i], sizeof(modules->names[i]), "%s",
                 options.hostile ? hostile_names[i] : module_names[i]);
    say(worker, &message);
}

static void on_message(void *context, const struct down_message *message)
{
    struct worker *worker = context;
    struct up_message links = {.kind = UP_LINKS, .generation = message->generation};
    struct up_message start = {.kind = UP_START, .generation = message->generation};
    if (message->kind == DOWN_GENERATION) {
        worker->generation = message->generation;
        atomic_store(&worker->rank, message->u.generation_start.rank);
        links.u.links = (struct up_links){.shares = true,
                                          .latency_ns = 1000,
                                          .bytes_per_s = 1000000000,
                                          .wish = ALGORITHM_BY_SIZE};
        say(worker, &links);
    } else if (message->kind == DOWN_TUNING) {
        start.u.start = (struct up_start){.manifest_hash = 7, .item_count = 3};
        say(worker, &start);
    } else if (message->kind == DOWN_VERIFIED) {
        if (atomic_load(&worker->rank) == 0)
            name_modules(worker, &message->generation);
        atomic_store(&worker->trains, true);
        if (atomic_fetch_add(&verified, 1) + 1 == options.count)
            atomic_store(&started_ms, clock_now_ms());
    } else if (message->kind == DOWN_INSPECT) {
        answer(worker, message);
    } else if (message->kind == DOWN_REFUSED ||
               (message->kind == DOWN_HALT && !atomic_load(&stopping))) {
        fprintf(stderr, "fleet: worker %u was turned away\n", worker->id);
        atomic_fetch_add(&ended, 1);
    }
}

static void on_ended(void *context, const char *text)
{
    const struct worker *worker = context;
    if (atomic_fetch_add(&ended, 1) == 0 && !atomic_load(&stopping))
        fprintf(stderr, "fleet: the stream of worker %u has ended: %s\n", worker->id, text);
}

static bool open_worker(uint32_t index)
{
    char error[LOCKSTEP_TEXT_BYTES];
    struct worker *worker = &workers[index];
    struct control_events events = {.received = on_message, .ended = on_ended, .context = worker};
    worker->id = options.first + index;
    const struct control_target target = {options.address, LOCKSTEP_OPEN_TIMEOUT_MS, NULL, NULL};
    if (control_open(&target, &events, &worker->control, error, sizeof(error)) < 0) {
        fprintf(stderr, "fleet: %s\n", error);
        return false;
    }
    say_hello(worker);
    return true;
}

// ---- all of them ------------------------------------------------------------------------------

static bool read_options(int argc, char **argv)
{
    static const struct option longs[] = {
        {"address", required_argument, NULL, 'a'},  {"job", required_argument, NULL, 'j'},
        {"workers", required_argument, NULL, 'w'},  {"culprit", required_argument, NULL, 'c'},
        {"after-ms", required_argument, NULL, 't'}, {"hostile", no_argument, NULL, 'h'},
        {"late", required_argument, NULL, 'l'},     {"leave-ms", required_argument, NULL, 'e'},
        {"lose-ms", required_argument, NULL, 'd'},  {"first", required_argument, NULL, 'f'},
        {"count", required_argument, NULL, 'n'},    {0}};
    int code;
    while ((code = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (code) {
        case 'a':
            options.address = optarg;
            break;
        case 'j':
            options.job = optarg;
            break;
        case 'w':
            options.workers = (uint32_t)atoi(optarg);
            break;
        case 'c':
            options.culprit = (uint32_t)atoi(optarg);
            break;
        case 't':
            options.culprit_ms = (uint64_t)atoi(optarg);
            break;
        case 'f':
            options.first = (uint32_t)atoi(optarg);
            break;
        case 'n':
            options.count = (uint32_t)atoi(optarg);
            break;
        case 'l':
            options.late = (uint32_t)atoi(optarg);
            break;
        case 'e':
            options.leave_ms = (uint64_t)atoi(optarg);
            break;
        case 'd':
            options.lose_ms = (uint64_t)atoi(optarg);
            break;
        case 'h':
            options.hostile = true;
            break;
        default:
            return false;
        }
    }
    if (options.count == 0)
        options.count = options.workers - options.first;
    return options.address && options.workers > 0 && options.workers <= LOCKSTEP_MAX_WORLD &&
           options.first < options.workers && options.count <= options.workers - options.first;
}

// Sends the heartbeats of all workers, evenly spread over each second.
static void beat(void *argument)
{
    static struct up_message message;
    (void)argument;
    for (uint32_t i = 0; !atomic_load(&stopping); i = (i + 1) % options.count) {
        if (atomic_load(&workers[i].trains)) {
            message = (struct up_message){.kind = UP_HEARTBEAT};
            fill_heartbeat(&workers[i], &message);
            (void)control_send(workers[i].control,
                               &message); // Refused while an older heartbeat waits.
        }
        usleep(LOCKSTEP_HEARTBEAT_MS * 1000 / options.count);
    }
}

// All workers leave, and say that one more step is settled than in their last heartbeats.
static void leave(void)
{
    static struct up_message message;
    const uint64_t settled = (clock_now_ms() - atomic_load(&started_ms)) / STEP_MS + 1;
    for (uint32_t i = 0; i < options.count; i++) {
        if (!atomic_exchange(&workers[i].trains, false))
            continue;
        message = (struct up_message){.kind = UP_LEAVE, .u.leave = {.settled = settled}};
        message.generation = workers[i].generation;
        say(&workers[i], &message);
    }
    for (uint32_t i = 0; i < options.count; i++) {
        if (workers[i].control)
            control_close(workers[i].control, LINGER_MS);
    }
}

// Rank 1 dies, another rank sees it, and all others leave after the verdict. The end of a control
// stream alone is no death.
static void lose(void)
{
    static struct up_message message = {.kind = UP_LOST,
                                        .u.lost = {.rank = 1, .text = "connection closed by peer"}};
    uint32_t i = 0;
    while (i + 1 < options.count && atomic_load(&workers[i].rank) != 1)
        i++;
    atomic_store(&workers[i].trains, false);
    control_close(workers[i].control, 0);
    workers[i].control = NULL;
    i = i == 0 ? 1 : 0;
    message.generation = workers[i].generation;
    message.u.lost.step = (clock_now_ms() - atomic_load(&started_ms)) / STEP_MS + 1;
    say(&workers[i], &message);
    usleep(LINGER_MS * 1000);
    leave();
}

int main(int argc, char **argv)
{
    struct thread heart;
    if (!read_options(argc, argv)) {
        fprintf(stderr, "usage: fleet --address HOST:PORT [--job NAME] [--workers N] "
                        "[--first ID --count N] [--culprit RANK --after-ms MS] [--late RANK] "
                        "[--leave-ms MS] [--lose-ms MS] [--hostile]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); // It ends with the test that started it.
    workers = calloc(options.count, sizeof(*workers));
    if (!workers)
        return 1;
    for (uint32_t i = 0; i < options.count; i++) {
        if (!open_worker(i))
            return 1;
    }
    if (thread_start(&heart, "heart", beat, NULL) != 0)
        return 1;
    while (atomic_load(&started_ms) == 0 && atomic_load(&ended) == 0)
        usleep(10000);
    if (atomic_load(&ended) > 0)
        return 1;
    printf("%u workers train\n", options.count);
    fflush(stdout);
    if (options.leave_ms > 0 || options.lose_ms > 0) {
        usleep((useconds_t)(options.leave_ms + options.lose_ms) * 1000);
        atomic_store(&stopping, true);
        thread_join(&heart);
        options.lose_ms > 0 ? lose() : leave();
        return 0;
    }
    thread_join(&heart);
    return 0;
}
