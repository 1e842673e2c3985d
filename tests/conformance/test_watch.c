// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the heartbeats and answers of a worker. A world of one rank joins a coordinator
// inside this program, so that the test can check every heartbeat and every part of an answer. The
// test's thread is the trainer. Every wait is for a message, none for a time.

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/codec/up.h"
#include "server/rpc/loop.h"
#include "server/service.h"
#include "tests/support/bounds.h"
#include "worker/session/session.h"
#include "worker/support/process.h"
#include "worker/watch/watch.h"

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 10000
#define PARTS 128

// ---- A coordinator that is listened to ---------------------------------------------------------

static struct {
    struct thread thread;
    struct rpc_server *server;
    struct service *service;
    struct rpc_events events; // The events of the service.
    struct log log;

    // guarded by mutex
    struct mutex mutex;
    struct cond changed;
    struct up_hello hello;
    struct up_heartbeat beat; // The last heartbeat.
    uint64_t beat_ms; // When the last heartbeat came.
    uint32_t beats; // How many heartbeats have come.
    struct up_modules modules; // The last part of the module list.
    // The answer to the last question. Once it is complete, the test may read it without the mutex
    // until the next question.
    struct up_answer parts[PARTS];
    uint32_t part_count;
    bool answered; // True if the answer is complete.
    rpc_peer peer; // The worker.
    uint64_t asked; // Id of the last question.
    uint64_t asks; // Id of a question that is not sent yet; 0: none.
    uint32_t what; // What the question asks for.
} there;

static uint64_t heard_ms; // When the last awaited heartbeat came. Test's thread only.

static void on_message(void *context, rpc_peer peer, const uint8_t *bytes, size_t size)
{
    static struct up_message message;
    (void)context;
    assert(codec_decode_up(bytes, size, &message, NULL) == CODEC_OK);
    mutex_lock(&there.mutex);
    there.peer = peer;
    if (message.kind == UP_HELLO)
        there.hello = message.u.hello;
    if (message.kind == UP_HEARTBEAT) {
        there.beat = message.u.heartbeat;
        there.beat_ms = clock_now_ms();
        there.beats++;
    }
    if (message.kind == UP_MODULES)
        there.modules = message.u.modules;
    // The coordinator asks questions of its own; their answers are ignored.
    if (message.kind == UP_ANSWER && message.u.answer.id == there.asked && !there.answered &&
        there.part_count < PARTS) {
        there.parts[there.part_count++] = message.u.answer;
        there.answered = message.u.answer.last;
    }
    cond_broadcast(&there.changed);
    mutex_unlock(&there.mutex);
    there.events.message(there.events.context, peer, bytes, size);
}

static uint64_t on_turn(void *context, uint64_t now_ms)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    struct down_message question = {.kind = DOWN_INSPECT};
    size_t size;
    (void)context;
    mutex_lock(&there.mutex);
    question.u.inspect = (struct down_inspect){.id = there.asks, .what = there.what};
    there.asks = 0;
    mutex_unlock(&there.mutex);
    if (question.u.inspect.id != 0) {
        assert(codec_encode_down(&question, bytes, sizeof(bytes), &size) == CODEC_OK);
        rpc_server_calls.send(there.server, there.peer, bytes, size);
    }
    return there.events.turn(there.events.context, now_ms);
}

static void serve(void *argument)
{
    (void)argument;
    rpc_server_run(there.server);
}

static int coordinator_start(void **state)
{
    const struct service_config config = {.log = &there.log};
    const struct rpc_config rpc = {.host = "127.0.0.1",
                                   .method = "/lockstep.v1.Coordinator/Session",
                                   .service = "lockstep.v1.Coordinator",
                                   .log = &there.log};
    struct rpc_events events;
    char error[LOCKSTEP_TEXT_BYTES];
    sigset_t all;
    sigset_t before;
    (void)state;
    mutex_init(&there.mutex);
    cond_init(&there.changed);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (service_open(&config, &there.service, error, sizeof(error)) < 0)
        return -1;
    events = there.events = service_events(there.service);
    events.message = on_message;
    events.turn = on_turn;
    if (rpc_server_open(&rpc, &events, &there.server, error, sizeof(error)) < 0)
        return -1;
    service_attach(there.service, &rpc_server_calls, there.server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread_start(&there.thread, "coordinator", serve, NULL);
}

static int coordinator_stop(void **state)
{
    (void)state;
    service_drain(there.service);
    rpc_server_wake(there.server);
    thread_join(&there.thread);
    rpc_server_close(there.server);
    service_close(there.service);
    return 0;
}

// ---- What it heard -----------------------------------------------------------------------------

static uint64_t patience_ms(void)
{
    return clock_now_ms() + test_bound_ms(PATIENCE_MS);
}

// Waits for the first new heartbeat for which `is` returns true.
static struct up_heartbeat await_beat(bool (*is)(const struct up_heartbeat *beat), const char *what)
{
    const uint64_t deadline_ms = patience_ms();
    struct up_heartbeat beat;
    bool found = false;
    mutex_lock(&there.mutex);
    uint32_t seen = there.beats;
    do {
        found = there.beats != seen && is(&there.beat);
        seen = there.beats;
    } while (!found && cond_wait_until(&there.changed, &there.mutex, deadline_ms));
    beat = there.beat;
    heard_ms = there.beat_ms;
    mutex_unlock(&there.mutex);
    if (!found)
        fail_msg("no heartbeat says: %s; the last one: api %d inside %d activity %d", what,
                 beat.place.api, beat.place.inside, beat.activity);
    return beat;
}

#define AWAIT_BEAT(is) await_beat(is, #is)

// Asks the worker a question and waits for the complete answer.
static void ask(uint64_t id, uint32_t what)
{
    const uint64_t deadline_ms = patience_ms();
    mutex_lock(&there.mutex);
    there.part_count = 0;
    there.answered = false;
    there.asked = there.asks = id;
    there.what = what;
    mutex_unlock(&there.mutex);
    rpc_server_wake(there.server);
    mutex_lock(&there.mutex);
    while (!there.answered && cond_wait_until(&there.changed, &there.mutex, deadline_ms))
        ;
    const bool answered = there.answered;
    mutex_unlock(&there.mutex);
    assert_true(answered);
    for (uint32_t i = 0; i < there.part_count; i++) {
        assert_int_equal(there.parts[i].id, id);
        assert_int_equal(there.parts[i].last, i + 1 == there.part_count);
        assert_true(there.parts[i].clock_ns <= clock_now_ns());
    }
}

static const struct up_answer *part_of(enum answer_kind kind)
{
    for (uint32_t i = 0; i < there.part_count; i++) {
        if (there.parts[i].kind == kind)
            return &there.parts[i];
    }
    return NULL;
}

// ---- A trainer ---------------------------------------------------------------------------------

#define PARAMETERS 3

static float values[PARAMETERS][4];
static float gradients[PARAMETERS][4];
static const int64_t shape[] = {4};

struct trainer {
    lockstep_session *session;
    lockstep_module *module;
};

static int trainer_open(void **state)
{
    static struct trainer trainer;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%u", rpc_server_port(there.server));
    config.coordinator = address;
    config.job = "watched";
    config.world_size = 1;
    config.transport = LOCKSTEP_TRANSPORT_LOOPBACK;
    *state = &trainer;
    return lockstep_open(&config, &trainer.session);
}

static int trainer_close(void **state)
{
    const struct trainer *trainer = *state;
    return lockstep_close(trainer->session);
}

static void trainer_start(struct trainer *trainer)
{
    static const char *const names[] = {"first", "second", "third"};
    struct lockstep_parameter parameters[PARAMETERS];
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    for (uint32_t p = 0; p < PARAMETERS; p++)
        parameters[p] = (struct lockstep_parameter){.name = names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = shape,
                                                    .data = values[p],
                                                    .gradient = gradients[p]};
    module.name = "actor";
    module.parameters = parameters;
    module.parameter_count = PARAMETERS;
    assert_int_equal(lockstep_module_register(trainer->session, &module, &trainer->module), 0);
    assert_int_equal(lockstep_start(trainer->session), 0);
}

static lockstep_call *trainer_begin(struct trainer *trainer)
{
    lockstep_call *call;
    assert_int_equal(lockstep_step_begin(trainer->session, NULL, NULL), 0);
    assert_int_equal(lockstep_call_begin(trainer->module, &call), 0);
    return call;
}

static void trainer_end(struct trainer *trainer, lockstep_call *call)
{
    for (uint32_t p = 0; p < PARAMETERS; p++)
        (void)lockstep_grad_ready(trainer->module, call, p, NULL, NULL);
    assert_int_equal(lockstep_call_end(call), 0);
    assert_int_equal(lockstep_step_end(trainer->session, NULL), 0);
}

// ---- Heartbeats --------------------------------------------------------------------------------

static bool is_after_open(const struct up_heartbeat *beat)
{
    return beat->place.api == API_OPEN && !beat->place.inside;
}

static void test_after_open(void **state)
{
    const struct up_heartbeat beat = AWAIT_BEAT(is_after_open);
    (void)state;
    assert_int_equal(beat.activity, ACTIVITY_OUTSIDE);
    assert_int_equal(beat.flags & ~(uint32_t)PLACE_THROTTLED, PLACE_FIRST);
    assert_int_equal(beat.place.module, LOCKSTEP_MAX_MODULES);
    assert_string_equal(there.hello.device, "cpu");
    assert_int_equal(there.hello.started, process_started((uint32_t)getpid()));
}

static bool is_in_gradients(const struct up_heartbeat *beat)
{
    return beat->place.api == API_GRAD_READY;
}

static bool is_after_call_end(const struct up_heartbeat *beat)
{
    return beat->place.api == API_CALL_END;
}

static bool is_after_step_end(const struct up_heartbeat *beat)
{
    return beat->place.api == API_STEP_END && !beat->place.inside && beat->settled == 1;
}

static void test_a_step(void **state)
{
    struct trainer *trainer = *state;
    struct up_heartbeat beat;
    trainer_start(trainer);
    lockstep_call *call = trainer_begin(trainer);
    usleep(20000); // More than a tick of the coarse clock.
    assert_int_equal(lockstep_grad_ready(trainer->module, call, 2, NULL, NULL), 0);
    beat = AWAIT_BEAT(is_in_gradients);
    assert_int_equal(beat.step, 1);
    assert_int_equal(beat.settled, 0);
    assert_int_equal(beat.activity, ACTIVITY_IN_CALL);
    assert_true(beat.place.open && beat.place.learning && !beat.place.waits && !beat.place.inside);
    assert_int_equal(beat.place.module, 0);
    assert_int_equal(beat.place.call, 0);
    assert_int_equal(there.modules.total, 1);
    assert_string_equal(there.modules.names[0], "actor");
    assert_int_equal(beat.place.calls_open, 1);
    assert_int_equal(beat.place.ready, 1);
    assert_int_equal(beat.place.gradients, PARAMETERS);
    for (uint32_t p = 0; p < 2; p++)
        assert_int_equal(lockstep_grad_ready(trainer->module, call, p, NULL, NULL), 0);
    assert_int_equal(lockstep_call_end(call), 0);
    beat = AWAIT_BEAT(is_after_call_end);
    assert_int_equal(beat.activity, ACTIVITY_OUTSIDE);
    assert_int_equal(beat.place.calls_open, 0);
    assert_int_equal(beat.place.ready, 0);
    assert_int_equal(beat.place.gradients, 0);
    assert_int_equal(lockstep_step_end(trainer->session, NULL), 0);
    beat = AWAIT_BEAT(is_after_step_end);
    assert_true(!beat.place.open && beat.place.position == 0 && beat.place.count == 0);
    // A planned step, whose slots are known from the begin.
    call = trainer_begin(trainer);
    usleep(20000);
    assert_int_equal(lockstep_grad_ready(trainer->module, call, 0, NULL, NULL), 0);
    beat = AWAIT_BEAT(is_in_gradients);
    assert_true(beat.place.open && !beat.place.learning && !beat.place.done);
    assert_int_equal(beat.place.position, 0);
    assert_int_equal(beat.place.count, 1);
    trainer_end(trainer, call);
}

// Functions of the library that are called inside a pause do not end the pause.
static bool is_paused_after_call(const struct up_heartbeat *beat)
{
    return beat->activity == ACTIVITY_PAUSED && beat->place.api == API_CALL_END;
}

static bool is_resumed(const struct up_heartbeat *beat)
{
    return (beat->flags & PLACE_PAUSED) == 0;
}

static bool is_marked(const struct up_heartbeat *beat)
{
    return strncmp(beat->mark, "epoch", 5) == 0;
}

// A mark keeps 127 bytes. The cut lies between two characters.
static void test_a_long_mark_is_copied_and_cut(void **state)
{
    struct trainer *trainer = *state;
    char given[256];
    char mark[256] = "epoch \xc3\xa9";
    for (size_t i = 8; i < 200; i += 2)
        memcpy(mark + i, "\xc3\xa9", 3);
    trainer_start(trainer);
    memcpy(given, mark, sizeof(given));
    assert_int_equal(lockstep_mark(trainer->session, given), 0);
    memset(given, 'x', sizeof(given));
    const struct up_heartbeat beat = AWAIT_BEAT(is_marked);
    assert_int_equal(strlen(beat.mark), 126);
    assert_memory_equal(beat.mark, mark, 126);
}

static void test_a_pause_lasts_until_resume(void **state)
{
    struct trainer *trainer = *state;
    struct up_heartbeat beat;
    int64_t sum = 1;
    trainer_start(trainer);
    assert_int_equal(lockstep_pause(trainer->session, "evaluating", 60000), 0);
    assert_int_equal(lockstep_allreduce(trainer->session, "loss", &sum, 1, LOCKSTEP_INT64,
                                        LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER),
                     0);
    lockstep_call *call = trainer_begin(trainer);
    assert_int_equal(lockstep_call_end(call), 0);
    beat = AWAIT_BEAT(is_paused_after_call);
    assert_int_equal(beat.flags & PLACE_PAUSED, PLACE_PAUSED);
    assert_int_equal(beat.pause_ms, 60000);
    assert_string_equal(beat.mark, "evaluating");
    assert_int_equal(beat.place.plain, 1);
    const uint64_t resumed_ms = clock_now_ms();
    assert_int_equal(lockstep_resume(trainer->session), 0);
    beat = AWAIT_BEAT(is_resumed);
    assert_true(heard_ms >= resumed_ms);
    assert_int_equal(beat.pause_ms, 0);
    assert_string_equal(beat.mark, "");
    assert_int_equal(lockstep_step_end(trainer->session, NULL), LOCKSTEP_E_UNUSED);
}

static bool is_in_call(const struct up_heartbeat *beat)
{
    return beat->activity == ACTIVITY_IN_CALL;
}

static void test_other_functions_do_not_close_a_call(void **state)
{
    struct trainer *trainer = *state;
    struct up_heartbeat beat;
    int64_t sum = 1;
    trainer_start(trainer);
    lockstep_call *call = trainer_begin(trainer);
    assert_int_equal(lockstep_allreduce(trainer->session, "loss", &sum, 1, LOCKSTEP_INT64,
                                        LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER),
                     0);
    beat = AWAIT_BEAT(is_in_call);
    assert_int_equal(beat.place.api, API_COLLECTIVE);
    assert_int_equal(beat.place.calls_open, 1);
    assert_false(beat.place.inside);
    trainer_end(trainer, call);
}

static bool says_long_away(const struct up_heartbeat *beat)
{
    return beat->place.api == API_START && beat->place.api_ms > 1500;
}

// A trainer that computes without a call of the library.
static void spin(void *argument)
{
    atomic_bool *go = argument;
    while (atomic_load(go))
        ;
}

static void test_heartbeats_while_the_trainer_spins(void **state)
{
    struct thread thread;
    atomic_bool go = true;
    trainer_start(*state);
    assert_int_equal(thread_start(&thread, "spins", spin, &go), 0);
    const struct up_heartbeat beat = AWAIT_BEAT(says_long_away);
    atomic_store(&go, false);
    thread_join(&thread);
    assert_false(beat.place.inside || beat.place.waits);
    assert_int_equal(beat.activity, ACTIVITY_OUTSIDE);
}

// A heartbeat has the function that was entered or left last. If the calls of two threads overlap,
// it also says that one is blocked.
static void test_visits(void **state)
{
    const struct trainer *trainer = *state;
    struct lockstep_session *session = trainer->session;
    static struct up_message message;
    const struct place *place = &message.u.heartbeat.place;
    const struct visit first =
        progress_enter(&session->tracker, API_STEP_END, PROGRESS_NO_MODULE, 0);
    mutex_lock(&session->mutex);
    progress_wait_locked(session->progress, 1);
    mutex_unlock(&session->mutex);
    const struct visit second = progress_enter(&session->tracker, API_CALL_END, 7, 9);
    progress_read(&session->tracker, &message);
    assert_true(place->inside && place->waits && place->api == API_CALL_END);
    assert_int_equal(place->module, 7);
    assert_int_equal(place->call, 9);
    assert_int_equal(progress_leave(&second, -3), -3);
    progress_read(&session->tracker, &message);
    assert_true(place->inside && place->waits);
    assert_int_equal(message.u.heartbeat.activity, ACTIVITY_WAITING);
    mutex_lock(&session->mutex);
    progress_wait_locked(session->progress, -1);
    mutex_unlock(&session->mutex);
    progress_leave(&first, 0);
    progress_read(&session->tracker, &message);
    assert_true(!place->inside && !place->waits && place->api == API_STEP_END);
}

// The waiting time grows during a wait, not only at its end. Saving a file does not count as
// waiting.
static void test_what_is_waited_for(void **state)
{
    struct lockstep_session *session = ((const struct trainer *)*state)->session;
    static struct up_message message;
    const struct place *place = &message.u.heartbeat.place;
    progress_read(&session->tracker, &message);
    const uint64_t before_us = place->waited_us;
    struct visit visit = progress_enter(&session->tracker, API_STATE, PROGRESS_NO_MODULE, 0);
    visit.entered_ms -= 30000; // As if the function had run for 30 s.
    progress_leave(&visit, 0);
    progress_read(&session->tracker, &message);
    assert_int_equal(place->waited_us, before_us);
    visit = progress_enter(&session->tracker, API_STEP_END, PROGRESS_NO_MODULE, 0);
    visit.entered_ms -= 30000;
    atomic_fetch_sub(&session->progress->api_ms, 30000);
    mutex_lock(&session->mutex);
    progress_wait_locked(session->progress, 1);
    mutex_unlock(&session->mutex);
    progress_read(&session->tracker, &message);
    assert_in_range(place->waited_us - before_us, 30000000, 31000000);
    mutex_lock(&session->mutex);
    progress_wait_locked(session->progress, -1);
    mutex_unlock(&session->mutex);
    progress_leave(&visit, 0);
    progress_read(&session->tracker, &message);
    assert_in_range(place->waited_us - before_us, 30000000, 31000000);
}

// True if a heartbeat says that the trainer is blocked when `blocked` threads are blocked, of which
// `for_calls` are in lockstep_call_wait. Two threads may wait there.
static bool is_blocked(struct lockstep_session *session, int blocked, uint32_t for_calls)
{
    static struct up_message message;
    mutex_lock(&session->mutex);
    progress_wait_locked(session->progress, blocked);
    mutex_unlock(&session->mutex);
    atomic_store(&session->waiting, for_calls);
    session->config.trainer_threads = 2;
    progress_read(&session->tracker, &message);
    mutex_lock(&session->mutex);
    progress_wait_locked(session->progress, -blocked);
    mutex_unlock(&session->mutex);
    atomic_store(&session->waiting, 0);
    return message.u.heartbeat.place.waits;
}

// The trainer is not blocked while one of the threads that may wait for calls does not wait.
static void test_threads_that_wait_for_calls(void **state)
{
    struct lockstep_session *session = ((const struct trainer *)*state)->session;
    assert_false(is_blocked(session, 0, 0));
    assert_false(is_blocked(session, 0, 1));
    assert_false(is_blocked(session, 1, 1));
    assert_true(is_blocked(session, 2, 2));
    assert_true(is_blocked(session, 1, 0));
    assert_true(is_blocked(session, 2, 1));
}

// The usual and the longest time between a function and the next call.
static void test_what_is_usual(void **state)
{
    const struct trainer *trainer = *state;
    struct lockstep_session *session = trainer->session;
    static struct up_message message;
    const struct place *place = &message.u.heartbeat.place;
    for (uint32_t i = 0; i < 300; i++) {
        struct visit visit = progress_enter(&session->tracker, API_CALL_END, 3, 1);
        progress_leave(&visit, 0);
        // As if the trainer had not called the library for 30 s or 100 ms.
        atomic_fetch_sub(&session->progress->api_ms, i == 250 ? 30000 : 100);
        visit = progress_enter(&session->tracker, API_STEP_END, PROGRESS_NO_MODULE, 0);
        progress_leave(&visit, 0);
    }
    const struct visit visit = progress_enter(&session->tracker, API_CALL_END, 3, 1);
    progress_leave(&visit, 0);
    progress_read(&session->tracker, &message);
    assert_in_range(place->usual_us, 100000, 300000);
    assert_in_range(place->longest_us, 30000000, 30100000);
}

static bool names_a_mate(const struct up_heartbeat *beat)
{
    return beat->mate_count == 1;
}

static bool names_no_mate(const struct up_heartbeat *beat)
{
    return beat->mate_count == 0;
}

static void test_a_mate_that_is_stopped(void **state)
{
    const struct trainer *trainer = *state;
    struct locality locality = {.hosts = 1, .mate_count = 2, .mates = {0, 5}};
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(127);
    }
    locality.mate_pids[1] = (uint32_t)pid;
    locality.mate_started[1] = process_started((uint32_t)pid);
    watch_formed(trainer->session->watch, &locality);
    (void)AWAIT_BEAT(names_no_mate);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    const struct up_heartbeat beat = AWAIT_BEAT(names_a_mate);
    assert_int_equal(beat.mates[0].rank, 5);
    assert_int_equal(beat.mates[0].state, 'T');
    locality.mate_started[1]++; // Another process with the same pid.
    watch_formed(trainer->session->watch, &locality);
    (void)AWAIT_BEAT(names_no_mate);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static pid_t sleeper(bool ends)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (ends)
            _exit(0);
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static bool names_many_mates(const struct up_heartbeat *beat)
{
    return beat->mate_count == LOCKSTEP_MATES_NAMED;
}

// Condition: more mates have ended than a heartbeat can name, and the last mate is stopped.
// Decision: the heartbeat names the stopped mate.
static void test_a_stopped_mate_comes_first(void **state)
{
    enum {
        MATES = LOCKSTEP_MATES_NAMED + 2
    };
    const struct trainer *trainer = *state;
    struct locality locality = {.hosts = 1, .mate_count = MATES + 1};
    pid_t pids[MATES];
    for (uint32_t i = 0; i < MATES; i++) {
        pids[i] = sleeper(i + 1 < MATES);
        locality.mates[i + 1] = i + 1;
        locality.mate_pids[i + 1] = (uint32_t)pids[i];
        locality.mate_started[i + 1] = process_started((uint32_t)pids[i]);
    }
    assert_int_equal(kill(pids[MATES - 1], SIGSTOP), 0);
    watch_formed(trainer->session->watch, &locality);
    const struct up_heartbeat beat = AWAIT_BEAT(names_many_mates);
    assert_int_equal(beat.mates[0].rank, MATES);
    assert_int_equal(beat.mates[0].state, 'T');
    assert_int_equal(beat.mates[1].state, 'Z');
    assert_int_equal(kill(pids[MATES - 1], SIGKILL), 0);
    for (uint32_t i = 0; i < MATES; i++)
        waitpid(pids[i], NULL, 0);
}

// ---- Answers -----------------------------------------------------------------------------------

// Returns the place that the session names once a gradient is missing there. On a busy machine the
// driving thread may not answer in time.
static const struct answer_place *ask_until_missing(uint64_t id)
{
    const uint64_t deadline_ms = patience_ms();
    do
        ask(id, INSPECT_PLACE);
    while (part_of(ANSWER_PLACE)->u.place.missing_total == 0 && clock_now_ms() < deadline_ms);
    return &part_of(ANSWER_PLACE)->u.place;
}

static void test_an_answer_names_what_is_missing(void **state)
{
    struct trainer *trainer = *state;
    trainer_start(trainer);
    lockstep_call *call = trainer_begin(trainer);
    assert_int_equal(lockstep_grad_ready(trainer->module, call, 1, NULL, NULL), 0);
    const struct answer_place *place = ask_until_missing(71);
    assert_int_equal(there.part_count, 1);
    assert_int_equal(place->missing_total, 2);
    assert_int_equal(place->missing_count, 2);
    assert_string_equal(place->missing[0], "first");
    assert_string_equal(place->missing[1], "third");
    assert_string_equal(place->doing, "");
    trainer_end(trainer, call);
    ask(72, INSPECT_PLACE);
    assert_int_equal(part_of(ANSWER_PLACE)->u.place.missing_total, 0);
}

// The driver has no command about a step that only accumulates.
static void test_an_answer_names_what_a_step_that_accumulates_lacks(void **state)
{
    struct trainer *trainer = *state;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_call *call;
    options.accumulate = 1;
    options.phase = "warm";
    trainer_start(trainer);
    assert_int_equal(lockstep_step_begin(trainer->session, &options, NULL), 0);
    assert_int_equal(lockstep_call_begin(trainer->module, &call), 0);
    assert_int_equal(lockstep_grad_ready(trainer->module, call, 1, NULL, NULL), 0);
    const struct answer_place *place = ask_until_missing(74);
    assert_int_equal(place->missing_total, 2);
    assert_string_equal(place->missing[0], "first");
    assert_string_equal(place->missing[1], "third");
    assert_string_equal(place->phase, "warm");
    trainer_end(trainer, call);
    ask(75, INSPECT_PLACE);
    assert_int_equal(part_of(ANSWER_PLACE)->u.place.missing_total, 0);
}

static void test_an_answer_brings_events(void **state)
{
    struct trainer *trainer = *state;
    uint32_t settled = 0;
    trainer_start(trainer);
    for (uint32_t i = 0; i < 3; i++)
        trainer_end(trainer, trainer_begin(trainer));
    ask(73, INSPECT_EVENTS);
    assert_non_null(part_of(ANSWER_PLACE));
    for (uint32_t i = 0; i < there.part_count; i++) {
        const struct answer_events *events = &there.parts[i].u.events;
        for (uint32_t e = 0; there.parts[i].kind == ANSWER_EVENTS && e < events->count; e++) {
            settled += events->events[e].kind == TRACE_SETTLED;
            assert_true(events->events[e].kind != TRACE_SETTLED ||
                        events->events[e].step == settled);
        }
    }
    assert_int_equal(settled, 3);
}

static void test_an_answer_brings_stacks(void **state)
{
    trainer_start(*state);
    ask(74, INSPECT_STACKS);
    const struct up_answer *threads = part_of(ANSWER_THREADS);
    assert_non_null(threads);
    assert_int_equal(threads->u.threads.threads[0].tid, gettid());
    assert_true(threads->u.threads.threads[0].trainer);
    // This program has the library inside, as one with liblockstep.a has.
    bool engine = false, grpc = false, own = false;
    for (uint32_t p = 0; p < there.part_count; p++) {
        const struct answer_threads *some = &there.parts[p].u.threads;
        for (uint32_t t = 0; there.parts[p].kind == ANSWER_THREADS && t < some->count; t++) {
            const struct stack_thread *thread = &some->threads[t];
            engine |= thread->own && strcmp(thread->name, "lockstep-engine") == 0;
            grpc |= thread->own && strncmp(thread->name, "lockstep-", 9) != 0;
            own |= thread->own && (thread->trainer || strcmp(thread->name, "coordinator") == 0);
        }
    }
    assert_true(engine);
    assert_false(own);
#if !defined(__SANITIZE_THREAD__)
    assert_true(grpc);
    assert_non_null(part_of(ANSWER_FRAMES));
#endif
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, trainer_open, trainer_close)
    const struct CMUnitTest tests[] = {
        TEST(after_open),
        TEST(a_step),
        TEST(a_long_mark_is_copied_and_cut),
        TEST(a_pause_lasts_until_resume),
        TEST(other_functions_do_not_close_a_call),
        TEST(heartbeats_while_the_trainer_spins),
        TEST(visits),
        TEST(what_is_waited_for),
        TEST(threads_that_wait_for_calls),
        TEST(what_is_usual),
        TEST(a_mate_that_is_stopped),
        TEST(a_stopped_mate_comes_first),
        TEST(an_answer_names_what_is_missing),
        TEST(an_answer_names_what_a_step_that_accumulates_lacks),
        TEST(an_answer_brings_events),
        TEST(an_answer_brings_stacks),
    };
    return cmocka_run_group_tests_name("watch", tests, coordinator_start, coordinator_stop);
}
