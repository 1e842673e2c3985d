// SPDX-License-Identifier: Apache-2.0
//
// Conformance: wrong programs and wrong environments. The test covers invalid handles for every
// public function, calls in the wrong order, structures of other sizes, invalid names, bad
// variables and addresses, worlds that never form, and a forked child. The library always returns a
// status and a sentence that says what to do, and the process never ends.

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "tests/support/cluster.h"
#include "worker/session/session.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OPEN_BOUND_MS 2500 // Timeout of lockstep_open; long enough for a delayed worker to join.

// ---- Checks on the test's thread ---------------------------------------------------------------

// Checks the status of a call, and that the error text of a failure contains `part`.
static void check(int line, const char *call, int expected, const char *part, int status)
{
    const char *text = status < 0 ? lockstep_error_text() : "";
    if (status != expected)
        fail_msg("line %d: %s returned %s instead of %s: %s", line, call,
                 lockstep_status_name(status), lockstep_status_name(expected), text);
    if (status < 0 && (text[0] == '\0' || !strstr(text, part)))
        fail_msg("line %d: %s: the text has no '%s': %s", line, call, part, text);
}

#define CHECK(expected, part, call) check(__LINE__, #call, expected, part, call)
#define OK(call) CHECK(LOCKSTEP_OK, "", call)
#define INVALID(part, call) CHECK(LOCKSTEP_E_INVALID, part, call)

// ---- Every function that takes a handle --------------------------------------------------------

static int64_t scratch[4];

static int use_world(void *s)
{
    return lockstep_world(s, NULL, NULL);
}
static int use_leaves(void *s)
{
    return lockstep_leaves(s, NULL, NULL, NULL);
}
static int use_close(void *s)
{
    return lockstep_close(s);
}
static int use_abort(void *s)
{
    return lockstep_abort(s, "why");
}
static int use_register(void *s)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = "m";
    return lockstep_module_register(s, &config, &module);
}
static int use_start(void *s)
{
    return lockstep_start(s);
}
static int use_step_begin(void *s)
{
    return lockstep_step_begin(s, NULL, NULL);
}
static int use_world_change(void *s)
{
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    return lockstep_world_change(s, &change);
}
static int use_uneven_set(void *s)
{
    return lockstep_uneven_set(s, LOCKSTEP_UNEVEN_NONE);
}
static int use_step_end(void *s)
{
    return lockstep_step_end(s, NULL);
}
static int use_report(void *s)
{
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    return lockstep_step_report(s, 1, 0, &report);
}
static int use_allreduce(void *s)
{
    return lockstep_allreduce(s, "c", scratch, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 1000);
}
static int use_broadcast(void *s)
{
    return lockstep_broadcast(s, "c", scratch, 1, LOCKSTEP_INT64, 0, 1000);
}
static int use_barrier(void *s)
{
    return lockstep_barrier(s, "c", 1000);
}
static int use_allreduce_async(void *s)
{
    lockstep_work *work;
    return lockstep_allreduce_async(s, "c", scratch, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, &work);
}
static int use_broadcast_async(void *s)
{
    lockstep_work *work;
    return lockstep_broadcast_async(s, "c", scratch, 1, LOCKSTEP_INT64, 0, &work);
}
static int use_barrier_async(void *s)
{
    lockstep_work *work;
    return lockstep_barrier_async(s, "c", &work);
}
static int use_counter_add(void *s)
{
    return lockstep_counter_add(s, "c", 1);
}
static int use_counter_read(void *s)
{
    return lockstep_counter_read(s, "c", scratch);
}
static int use_metric_add(void *s)
{
    return lockstep_metric_add(s, "m", LOCKSTEP_METRIC_SUM, 1);
}
static int use_metric_read(void *s)
{
    double value;
    return lockstep_metric_read(s, "m", &value, NULL);
}
static int use_mark(void *s)
{
    return lockstep_mark(s, "here");
}
static int use_pause(void *s)
{
    return lockstep_pause(s, "saving", 5);
}
static int use_resume(void *s)
{
    return lockstep_resume(s);
}
static int use_state_check(void *s)
{
    return lockstep_state_check(s);
}
static int use_state_hash(void *s)
{
    uint64_t hash;
    return lockstep_state_hash(s, &hash);
}
static int use_save(void *s)
{
    return lockstep_session_save(s, "/nowhere");
}
static int use_load(void *s)
{
    return lockstep_session_load(s, "/nowhere");
}
static int use_alloc(void *s)
{
    void *memory;
    return lockstep_alloc(s, 8, &memory);
}
static int use_free(void *s)
{
    return lockstep_free(s, NULL);
}
static int use_step_wait(void *s)
{
    return lockstep_step_wait(s, NULL, 0);
}
static int use_state_sync(void *s)
{
    return lockstep_state_sync(s);
}
static int use_layout_save(void *s)
{
    return lockstep_layout_save(s, "/nowhere");
}
static int use_layout_load(void *s)
{
    return lockstep_layout_load(s, "/nowhere");
}
static int use_module_close(void *m)
{
    return lockstep_module_close(m);
}
static int use_module_gradients(void *m)
{
    void *gradients[3];
    return lockstep_module_gradients(m, gradients, 3);
}
static int use_parameter_move(void *m)
{
    return lockstep_parameter_move(m, 0, NULL, NULL);
}
static int use_module_freeze(void *m)
{
    return lockstep_module_freeze(m, NULL, 0, 1);
}
static int use_phase_unused(void *m)
{
    return lockstep_phase_unused(m, NULL, NULL, 0);
}
static int use_module_usage(void *m)
{
    uint32_t ranks[3];
    return lockstep_module_usage(m, ranks, 3);
}
static int use_module_used(void *m)
{
    uint8_t used[3];
    return lockstep_module_used(m, used, 3);
}
static int use_module_means(void *m)
{
    void *means[3];
    return lockstep_module_means(m, 0, means, 3);
}
static int use_bucket_parameters(void *m)
{
    const uint32_t *parameters;
    uint32_t count;
    return lockstep_bucket_parameters(m, 0, &parameters, &count);
}
static int use_replica_ready(void *m)
{
    return lockstep_replica_ready(m, NULL, 0, 0, NULL, NULL);
}
static int use_call_current(void *m)
{
    lockstep_call *call;
    return lockstep_call_current(m, &call);
}
static int use_call_begin(void *m)
{
    lockstep_call *call;
    return lockstep_call_begin(m, &call);
}
static int use_ready(void *m)
{
    return lockstep_grad_ready(m, NULL, 0, NULL, NULL);
}
static int use_call_end(void *c)
{
    return lockstep_call_end(c);
}
static int use_unused(void *c)
{
    return lockstep_call_unused(c, NULL, 0);
}
static int use_call_abort(void *c)
{
    return lockstep_call_abort(c);
}
static int use_call_wait(void *c)
{
    return lockstep_call_wait(c, 0);
}
static int use_call_next(void *c)
{
    uint32_t bucket;
    return lockstep_call_next(c, 0, &bucket);
}
static int use_work(void *w)
{
    return lockstep_work_wait(w, 0);
}

static int use_group_create(void *s)
{
    static const uint32_t ranks[] = {0};
    lockstep_group *group;
    return lockstep_group_create(s, ranks, 1, "g", &group);
}
static int use_collective_run(void *s)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.kind = LOCKSTEP_ALL_GATHER;
    what.name = "c";
    return lockstep_collective_run(s, &what, 1000);
}
static int use_collective_begin(void *s)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    lockstep_work *work;
    what.kind = LOCKSTEP_ALL_GATHER;
    what.name = "c";
    return lockstep_collective_begin(s, &what, &work);
}
static int use_collective_wait(void *s)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    lockstep_work *work;
    what.kind = LOCKSTEP_ALL_GATHER;
    what.name = "c";
    return lockstep_collective_wait(s, &what, 1, &work);
}
static int use_session_fd(void *s)
{
    int fd;
    return lockstep_session_fd(s, &fd);
}
static void told(void *context)
{
    (void)context;
}
static int use_notify(void *w)
{
    return lockstep_work_notify(w, told, NULL);
}
static int use_group_world(void *g)
{
    return lockstep_group_world(g, NULL, NULL);
}
static int use_group_close(void *g)
{
    return lockstep_group_close(g);
}

enum handle {
    SESSION,
    MODULE,
    CALL,
    WORK,
    GROUP,
    HANDLES
};

struct use {
    const char *name;
    enum handle handle;
    int (*use)(void *handle);
    bool after_failure; // True if the function also works in a failed session.
};

static const struct use uses[] = {
    {"world", SESSION, use_world, true},
    {"leaves", SESSION, use_leaves, true},
    {"abort", SESSION, use_abort, true},
    {"module_register", SESSION, use_register, false},
    {"start", SESSION, use_start, false},
    {"step_begin", SESSION, use_step_begin, false},
    {"uneven_set", SESSION, use_uneven_set, false},
    {"world_change", SESSION, use_world_change, false},
    {"step_end", SESSION, use_step_end, false},
    {"step_wait", SESSION, use_step_wait, false},
    {"step_report", SESSION, use_report, true},
    {"allreduce", SESSION, use_allreduce, false},
    {"broadcast", SESSION, use_broadcast, false},
    {"barrier", SESSION, use_barrier, false},
    {"allreduce_async", SESSION, use_allreduce_async, false},
    {"broadcast_async", SESSION, use_broadcast_async, false},
    {"barrier_async", SESSION, use_barrier_async, false},
    {"group_create", SESSION, use_group_create, false},
    {"collective_run", SESSION, use_collective_run, false},
    {"collective_begin", SESSION, use_collective_begin, false},
    {"collective_wait", SESSION, use_collective_wait, false},
    {"session_fd", SESSION, use_session_fd, true},
    {"counter_add", SESSION, use_counter_add, false},
    {"counter_read", SESSION, use_counter_read, false},
    {"metric_add", SESSION, use_metric_add, false},
    {"metric_read", SESSION, use_metric_read, false},
    {"mark", SESSION, use_mark, false},
    {"pause", SESSION, use_pause, false},
    {"resume", SESSION, use_resume, false},
    {"state_check", SESSION, use_state_check, false},
    {"state_hash", SESSION, use_state_hash, false},
    {"state_sync", SESSION, use_state_sync, false},
    {"layout_save", SESSION, use_layout_save, false},
    {"layout_load", SESSION, use_layout_load, false},
    {"session_save", SESSION, use_save, false},
    {"session_load", SESSION, use_load, false},
    {"alloc", SESSION, use_alloc, false},
    {"free", SESSION, use_free, false},
    {"module_gradients", MODULE, use_module_gradients, false},
    {"parameter_move", MODULE, use_parameter_move, false},
    {"module_freeze", MODULE, use_module_freeze, false},
    {"phase_unused", MODULE, use_phase_unused, false},
    {"module_usage", MODULE, use_module_usage, false},
    {"module_used", MODULE, use_module_used, false},
    {"module_means", MODULE, use_module_means, false},
    {"bucket_parameters", MODULE, use_bucket_parameters, false},
    {"replica_ready", MODULE, use_replica_ready, false},
    {"call_current", MODULE, use_call_current, false},
    {"module_close", MODULE, use_module_close, false},
    {"call_begin", MODULE, use_call_begin, false},
    {"grad_ready", MODULE, use_ready, false},
    {"call_end", CALL, use_call_end, false},
    {"call_unused", CALL, use_unused, false},
    {"call_abort", CALL, use_call_abort, false},
    {"call_wait", CALL, use_call_wait, false},
    {"call_next", CALL, use_call_next, false},
    {"work_notify", WORK, use_notify, true},
    {"work_wait", WORK, use_work, false},
    {"group_world", GROUP, use_group_world, true},
    {"group_close", GROUP, use_group_close, true},
    {"close", SESSION, use_close, true}, // Last, because it ends the session.
};
#define USES (sizeof(uses) / sizeof(uses[0]))

// ---- A session alone, with one of each handle --------------------------------------------------

static float values[4][4]; // values[3] is a buffer; the others are parameters.
static float gradients[4];
static float bias_gradient[4]; // The gradient of parameter 1, passed with each report.
static const int64_t four[] = {4};
static struct lockstep_parameter parameters[] = {
    {.name = "weight",
     .dtype = LOCKSTEP_FLOAT32,
     .dims = 1,
     .shape = four,
     .data = values[0],
     .gradient = gradients},
    {.name = "bias",
     .dtype = LOCKSTEP_FLOAT32,
     .dims = 1,
     .shape = four,
     .data = values[1],
     .gradient = NULL},
    {.name = "table",
     .dtype = LOCKSTEP_FLOAT32,
     .dims = 1,
     .shape = four,
     .data = values[2],
     .gradient = NULL,
     .flags = LOCKSTEP_PARAMETER_FROZEN},
};

static struct lockstep_module_config describe(const char *name)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    config.name = name;
    config.parameters = parameters;
    config.parameter_count = 3;
    return config;
}

// The same module with values and a gradient of its own.
static struct lockstep_module_config describe_apart(const char *name)
{
    static float other_values[3][4];
    static float other_gradients[4];
    static struct lockstep_parameter apart[3];
    struct lockstep_module_config config = describe(name);
    memcpy(apart, parameters, sizeof(apart));
    for (int i = 0; i < 3; i++)
        apart[i].data = other_values[i];
    apart[0].gradient = other_gradients;
    config.parameters = apart;
    return config;
}

// Makes one handle of each kind: a started session in a step, a module, an open call, work in
// flight, and a group. config NULL: a session without a coordinator.
static void open_all(const struct lockstep_config *config, void **handles)
{
    static const uint32_t ranks[] = {0};
    const struct lockstep_module_config description = describe("net");
    OK(lockstep_open(config, (lockstep_session **)&handles[SESSION]));
    OK(lockstep_module_register(handles[SESSION], &description,
                                (lockstep_module **)&handles[MODULE]));
    OK(lockstep_start(handles[SESSION]));
    OK(lockstep_step_begin(handles[SESSION], NULL, NULL));
    OK(lockstep_call_begin(handles[MODULE], (lockstep_call **)&handles[CALL]));
    OK(lockstep_barrier_async(handles[SESSION], "b", (lockstep_work **)&handles[WORK]));
    OK(lockstep_group_create(handles[SESSION], ranks, 1, "alone",
                             (lockstep_group **)&handles[GROUP]));
}

// ---- Invalid handles ---------------------------------------------------------------------------

static void every_function_refuses_null(void **state)
{
    (void)state;
    for (size_t i = 0; i < USES; i++)
        check(__LINE__, uses[i].name, LOCKSTEP_E_INVALID, "is NULL", uses[i].use(NULL));
    INVALID("session is NULL", lockstep_open(NULL, NULL));
}

static void every_function_refuses_foreign_memory(void **state)
{
    void *foreign[64] = {0};
    (void)state;
    for (size_t i = 0; i < USES; i++) {
        check(__LINE__, uses[i].name, LOCKSTEP_E_INVALID, "this is not", uses[i].use(foreign));
        check(__LINE__, uses[i].name, LOCKSTEP_E_INVALID, "this is not",
              uses[i].use((char *)foreign + 3));
        check(__LINE__, uses[i].name, LOCKSTEP_E_INVALID, "this is not",
              uses[i].use((void *)(uintptr_t)8));
    }
}

// Every function refuses a valid handle of another kind.
static void every_function_refuses_other_kinds(void **state)
{
    void *handles[HANDLES];
    (void)state;
    open_all(NULL, handles);
    for (size_t i = 0; i < USES; i++) {
        for (int kind = 0; kind < HANDLES; kind++) {
            if (kind != (int)uses[i].handle)
                check(__LINE__, uses[i].name, LOCKSTEP_E_INVALID, "this is not",
                      uses[i].use(handles[kind]));
        }
    }
    OK(lockstep_close(handles[SESSION]));
}

static void every_function_refuses_closed_handles(void **state)
{
    void *handles[HANDLES];
    (void)state;
    open_all(NULL, handles);
    OK(lockstep_close(handles[SESSION]));
    for (size_t i = 0; i < USES; i++)
        check(__LINE__, uses[i].name, LOCKSTEP_E_INVALID, "this is not",
              uses[i].use(handles[uses[i].handle]));
}

static void a_failed_session_says_why_each_time(void **state)
{
    void *handles[HANDLES];
    (void)state;
    open_all(NULL, handles);
    OK(lockstep_work_wait(handles[WORK], 0));
    OK(lockstep_abort(handles[SESSION], "the loss is NaN"));
    for (size_t i = 0; i < USES; i++) {
        if (!uses[i].after_failure)
            check(__LINE__, uses[i].name, LOCKSTEP_E_CLOSED, "aborted",
                  uses[i].use(handles[uses[i].handle]));
    }
    OK(lockstep_world(handles[SESSION], NULL, NULL));
    OK(lockstep_abort(handles[SESSION], NULL));
    OK(lockstep_close(handles[SESSION]));
}

// ---- The wrong place ---------------------------------------------------------------------------

// A log sink that calls every function that it has a handle for.
struct calls_back {
    const char *event; // The log line at which the sink calls.
    void *handles[HANDLES];
    atomic_uint rounds;
    _Atomic(const char *) passed; // A function that did not refuse the call; NULL: none.
};

static void sink_that_calls_back(void *context, lockstep_log_level level, const char *line)
{
    struct calls_back *calls = context;
    lockstep_session *session;
    (void)level;
    if (!strstr(line, calls->event))
        return;
    for (size_t i = 0; i < USES; i++) {
        void *handle = calls->handles[uses[i].handle];
        if (handle && (uses[i].use(handle) != LOCKSTEP_E_INVALID ||
                       !strstr(lockstep_error_text(), "the log sink")))
            atomic_store(&calls->passed, uses[i].name);
    }
    if (lockstep_open(NULL, &session) != LOCKSTEP_E_INVALID)
        atomic_store(&calls->passed, "open");
    atomic_fetch_add(&calls->rounds, 1);
}

// The sink runs on the trainer's thread, inside a function of the library.
static void a_log_sink_may_not_call_inside_a_call(void **state)
{
    static const char *const patterns[] = {"no such name"};
    struct calls_back calls = {.event = "ignore_matches_nothing"};
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config description = describe("net");
    lockstep_module *module;
    (void)state;
    config.log = sink_that_calls_back;
    config.log_context = &calls;
    config.log_level = LOCKSTEP_LOG_WARN;
    description.ignore = patterns;
    description.ignore_count = 1;
    OK(lockstep_open(&config, (lockstep_session **)&calls.handles[SESSION]));
    OK(lockstep_module_register(calls.handles[SESSION], &description, &module));
    assert_int_equal(atomic_load(&calls.rounds), 1);
    assert_null(atomic_load(&calls.passed));
    OK(lockstep_close(calls.handles[SESSION]));
}

static void what_is_not_supported_says_so(void **state)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    (void)state;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport = LOCKSTEP_TRANSPORT_LOOPBACK;
    CHECK(LOCKSTEP_E_UNSUPPORTED, "config.transport loopback", lockstep_open(&config, &session));
}

// A rank without a device passes a stream.
static void streams_without_a_device(void **state)
{
    void *handles[HANDLES];
    (void)state;
    open_all(NULL, handles);
    CHECK(LOCKSTEP_E_INVALID, "this rank has no device: set config.device",
          lockstep_grad_ready(handles[MODULE], NULL, 0, NULL, scratch));
    OK(lockstep_call_end(handles[CALL]));
    CHECK(LOCKSTEP_E_INVALID, "this rank has no device: set config.device",
          lockstep_step_end(handles[SESSION], scratch));
    CHECK(LOCKSTEP_E_UNUSED, "2 gradients", lockstep_step_end(handles[SESSION], NULL));
    OK(lockstep_close(handles[SESSION]));
}

static void devices_that_cannot_be_used(void **state)
{
    static const char *const wrong[] = {
        "cuda",     "cuda:", "cuda:x", "cuda:-1", "cuda:12345", "cuda:000000000000001",
        "gpu",      "none ", "Auto",   "",        "cuda:0,",    "cuda:,1",
        "cuda:0 1", "auto,1"};
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        config.device = wrong[i];
        CHECK(LOCKSTEP_E_CONFIG, "is not none, auto or cuda:N", lockstep_open(&config, &session));
        CHECK(LOCKSTEP_E_CONFIG, "is not none, auto or cuda:N", lockstep_config_check(&config));
    }
    config.device = "cuda:1,0,1";
    CHECK(LOCKSTEP_E_CONFIG, "'cuda:1,0,1' names cuda:1 twice", lockstep_open(&config, &session));
    setenv("LOCKSTEP_DEVICE", "cuda", 1);
    config.device = "none";
    CHECK(LOCKSTEP_E_CONFIG, "LOCKSTEP_DEVICE", lockstep_open(&config, &session));
    setenv("LOCKSTEP_DEVICE", "none", 1);
    config.device = "cuda";
    OK(lockstep_open(&config, &session));
    OK(lockstep_close(session));
    setenv("LOCKSTEP_DEVICE", "cuda:9999", 1); // No machine has 10,000 devices.
    CHECK(LOCKSTEP_E_UNSUPPORTED,
          "the device cannot be used, cuda:9999: ", lockstep_open(&config, &session));
    assert_null(session);
    setenv("LOCKSTEP_DEVICE", "auto", 1); // Nobody has loaded CUDA, and there is nothing to adopt.
    setenv("LOCKSTEP_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
    CHECK(LOCKSTEP_E_UNSUPPORTED, "LOCKSTEP_CUDA_LIBRARY", lockstep_open(&config, &session));
    unsetenv("LOCKSTEP_CUDA_LIBRARY");
    unsetenv("LOCKSTEP_DEVICE");
}

// ---- Order of calls ----------------------------------------------------------------------------

static void calls_in_the_wrong_order(void **state)
{
    const struct lockstep_module_config description = describe("net");
    const struct lockstep_module_config other = describe_apart("other");
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_module *second;
    lockstep_call *call;
    lockstep_call *again;
    uint64_t hash;
    (void)state;
    OK(lockstep_open(NULL, &session));
    INVALID("lockstep_start", lockstep_step_begin(session, NULL, NULL));
    INVALID("lockstep_step_begin", lockstep_step_end(session, NULL));
    INVALID("lockstep_start", lockstep_state_hash(session, &hash));
    OK(lockstep_module_register(session, &description, &module));
    INVALID("named 'net' already", lockstep_module_register(session, &description, &second));
    assert_null(second);
    OK(lockstep_module_register(session, &other, &second));
    INVALID("outside a step", lockstep_call_begin(module, &call));
    assert_null(call);
    OK(lockstep_start(session));
    INVALID("already", lockstep_start(session));
    INVALID("named 'other' already", lockstep_module_register(session, &other, &second));
    INVALID("outside a step", lockstep_call_begin(module, &call));
    INVALID("no report", lockstep_step_report(session, 0, 0, &report));
    INVALID("no report", lockstep_step_report(session, 1, 0, &report));
    OK(lockstep_step_begin(session, NULL, NULL));
    INVALID("step 1 is open", lockstep_step_begin(session, NULL, NULL));
    INVALID("outside a step", lockstep_state_check(session));
    INVALID("outside a step", lockstep_state_hash(session, &hash));
    INVALID("no report", lockstep_step_report(session, 1, 0, &report));
    INVALID("outside a call", lockstep_grad_ready(module, NULL, 0, NULL, NULL));
    INVALID("nowhere", lockstep_call_begin(module, NULL));
    INVALID("nowhere", lockstep_call_current(module, NULL));
    INVALID("no call is open", lockstep_call_current(module, &again));
    OK(lockstep_call_begin(module, &call));
    OK(lockstep_call_current(module, &again));
    assert_ptr_equal(again, call);
    INVALID("replicas 0 to 0; 1 is none", lockstep_replica_ready(module, call, 1, 0, NULL, NULL));
    INVALID("its call is open", lockstep_call_begin(module, &again));
    INVALID("0 to 2; 3 is none", lockstep_grad_ready(module, call, 3, NULL, NULL));
    INVALID("'table' is frozen", lockstep_grad_ready(module, call, 2, gradients, NULL));
    INVALID("'bias'", lockstep_grad_ready(module, call, 1, NULL, NULL));
    OK(lockstep_grad_ready(module, call, 1, bias_gradient, NULL));
    OK(lockstep_grad_ready(module, call, 0, NULL, NULL));
    INVALID("'weight' is ready twice", lockstep_grad_ready(module, call, 0, NULL, NULL));
    INVALID("lockstep_call_end", lockstep_step_end(session, NULL));
    OK(lockstep_call_end(call));
    INVALID("no call is open", lockstep_call_current(module, &again));
    assert_null(again);
    INVALID("ended already", lockstep_call_end(call));
    INVALID("calls_per_step, which is 1", lockstep_call_begin(module, &again));
    INVALID("ended already", lockstep_call_unused(call, NULL, 0));
    OK(lockstep_step_end(session, NULL));
    OK(lockstep_step_report(session, 1, 0, &report));
    INVALID("step 1", lockstep_step_report(session, 2, 0, &report));
    OK(lockstep_close(session));
}

static void calls_beyond_what_was_declared(void **state)
{
    struct lockstep_module_config description = describe("net");
    const uint32_t declared[] = {1, 2, 3};
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *calls[3];
    (void)state;
    description.calls_per_step = 2;
    OK(lockstep_open(NULL, &session));
    OK(lockstep_module_register(session, &description, &module));
    OK(lockstep_start(session));
    OK(lockstep_step_begin(session, NULL, NULL));
    OK(lockstep_call_begin(module, &calls[0]));
    INVALID("parameters is NULL", lockstep_call_unused(calls[0], NULL, 1));
    INVALID("3 is none", lockstep_call_unused(calls[0], declared + 2, 1));
    INVALID("'table' is frozen", lockstep_call_unused(calls[0], declared, 2));
    OK(lockstep_call_unused(calls[0], NULL, 0));
    OK(lockstep_call_unused(calls[0], declared, 1));
    INVALID("'bias' is declared unused twice", lockstep_call_unused(calls[0], declared, 1));
    INVALID("'bias' is ready after it was declared unused",
            lockstep_grad_ready(module, NULL, 1, bias_gradient, NULL));
    OK(lockstep_grad_ready(module, NULL, 0, NULL, NULL));
    INVALID("'weight' is ready twice in call 1", lockstep_grad_ready(module, NULL, 0, NULL, NULL));
    OK(lockstep_call_end(calls[0]));
    OK(lockstep_call_begin(module, &calls[1]));
    assert_ptr_not_equal(calls[0], calls[1]);
    INVALID("outside a call", lockstep_grad_ready(module, calls[0], 0, NULL, NULL));
    INVALID("ended already", lockstep_call_end(calls[0]));
    OK(lockstep_grad_ready(module, calls[1], 0, NULL, NULL));
    INVALID("twice in call 2", lockstep_grad_ready(module, calls[1], 0, NULL, NULL));
    OK(lockstep_grad_ready(module, calls[1], 1, bias_gradient, NULL));
    INVALID("'bias' is declared unused after it was ready",
            lockstep_call_unused(calls[1], declared, 1));
    OK(lockstep_call_end(calls[1]));
    INVALID("calls_per_step, which is 2", lockstep_call_begin(module, &calls[2]));
    assert_null(calls[2]);
    OK(lockstep_step_end(session, NULL));
    OK(lockstep_close(session));
}

static void calls_that_are_given_up(void **state)
{
    const struct lockstep_module_config description = describe("net");
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    lockstep_call *again;
    (void)state;
    OK(lockstep_open(NULL, &session));
    OK(lockstep_module_register(session, &description, &module));
    OK(lockstep_start(session));
    for (int i = 0; i < 2; i++) {
        OK(lockstep_step_begin(session, NULL, NULL));
        OK(lockstep_call_begin(module, &call));
        OK(lockstep_grad_ready(module, call, 0, NULL, NULL));
        OK(lockstep_call_abort(call));
        INVALID("ended already", lockstep_call_abort(call));
        INVALID("ended already", lockstep_call_end(call));
        INVALID("outside a call", lockstep_grad_ready(module, call, 1, bias_gradient, NULL));
        INVALID("no call after lockstep_call_abort", lockstep_call_begin(module, &again));
        CHECK(LOCKSTEP_E_UNUSED, "module 'net' on rank 0", lockstep_step_end(session, NULL));
    }
    OK(lockstep_close(session));
}

// A step of a single rank with weight 0 has no mean.
static void a_step_without_weight(void **state)
{
    const struct lockstep_module_config description = describe("net");
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    (void)state;
    options.weight = 0;
    OK(lockstep_open(NULL, &session));
    OK(lockstep_module_register(session, &description, &module));
    OK(lockstep_start(session));
    OK(lockstep_step_begin(session, &options, NULL));
    OK(lockstep_step_end(session, NULL)); // The module was not called.
    OK(lockstep_step_begin(session, &options, NULL));
    OK(lockstep_call_begin(module, &call));
    OK(lockstep_grad_ready(module, call, 0, NULL, NULL));
    OK(lockstep_grad_ready(module, call, 1, bias_gradient, NULL));
    OK(lockstep_call_end(call));
    INVALID("weight 0", lockstep_step_end(session, NULL));
    OK(lockstep_step_begin(session, NULL, NULL));
    OK(lockstep_step_end(session, NULL));
    OK(lockstep_close(session));
}

static void windows_that_cannot_be(void **state)
{
    const struct lockstep_module_config description = describe("net");
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    (void)state;
    OK(lockstep_open(NULL, &session));
    OK(lockstep_module_register(session, &description, &module));
    OK(lockstep_start(session));
    options.accumulate = 2;
    INVALID("accumulate, exhausted and keep_weight are 0 or 1",
            lockstep_step_begin(session, &options, NULL));
    options.accumulate = 1;
    options.weight = 4;
    INVALID("one weight", lockstep_step_begin(session, &options, NULL));
    options.weight = 1;
    for (int i = 0; i < 3; i++) {
        OK(lockstep_step_begin(session, &options, &view));
        assert_int_equal(view.step, 1);
        OK(lockstep_call_begin(module, &call));
        OK(lockstep_grad_ready(module, call, (uint32_t)i % 2,
                               i % 2 == 0 ? gradients : bias_gradient, NULL));
        INVALID("open call", lockstep_step_end(session, NULL));
        OK(lockstep_call_end(call));
        INVALID("calls_per_step, which is 1", lockstep_call_begin(module, &call));
        OK(lockstep_step_end(session, NULL));
        INVALID("no step is open", lockstep_step_end(session, NULL));
        INVALID("no report", lockstep_step_report(session, 1, 0, &report));
    }
    options.phase = "other";
    INVALID("phase 'other' inside a window", lockstep_step_begin(session, &options, NULL));
    OK(lockstep_step_begin(session, NULL, &view));
    assert_int_equal(view.step, 1);
    OK(lockstep_step_end(session, NULL)); // Both parameters were used in the window.
    OK(lockstep_step_report(session, 1, 0, &report));
    OK(lockstep_step_begin(session, &options, &view));
    assert_int_equal(view.step, 2);
    OK(lockstep_close(session)); // A window is open.
}

static void a_call_of_another_module(void **state)
{
    const struct lockstep_module_config first = describe("first");
    const struct lockstep_module_config second = describe_apart("second");
    lockstep_session *session;
    lockstep_module *modules[2];
    lockstep_call *calls[2];
    (void)state;
    OK(lockstep_open(NULL, &session));
    OK(lockstep_module_register(session, &first, &modules[0]));
    OK(lockstep_module_register(session, &second, &modules[1]));
    OK(lockstep_start(session));
    OK(lockstep_step_begin(session, NULL, NULL));
    OK(lockstep_call_begin(modules[0], &calls[0]));
    OK(lockstep_call_begin(modules[1], &calls[1]));
    INVALID("module 'first': this is not its call",
            lockstep_grad_ready(modules[0], calls[1], 0, NULL, NULL));
    INVALID("is not", lockstep_grad_ready(modules[0], (lockstep_call *)scratch, 0, NULL, NULL));
    OK(lockstep_close(session)); // A step and calls are open.
}

// ---- Structures --------------------------------------------------------------------------------

static void structures_of_another_size(void **state)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config description = describe("net");
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    struct lockstep_report report = {.struct_bytes = 0};
    lockstep_session *session = (void *)scratch;
    lockstep_module *module;
    (void)state;
    config.struct_bytes = 0;
    INVALID("LOCKSTEP_CONFIG_INIT", lockstep_open(&config, &session));
    assert_null(session);
    config.struct_bytes = sizeof(config) + 8;
    INVALID("not older", lockstep_open(&config, &session));
    config.struct_bytes = offsetof(struct lockstep_config, world_size); // As of an older header.
    OK(lockstep_open(&config, &session));
    INVALID("description is NULL", lockstep_module_register(session, NULL, &module));
    INVALID("nowhere", lockstep_module_register(session, &description, NULL));
    description.struct_bytes = 8;
    INVALID("struct_bytes of the module's description is 8, and has to be ",
            lockstep_module_register(session, &description, &module));
    description = describe("net");
    description.parameter_bytes = 8;
    INVALID("parameter_bytes of the module's description is 8, and has to be ",
            lockstep_module_register(session, &description, &module));
    description = describe("net");
    description.buffer_bytes = 800;
    INVALID("buffer_bytes of the module's description is 800, and has to be ",
            lockstep_module_register(session, &description, &module));
    description = describe("net");
    description.struct_bytes = sizeof(description) + 8;
    INVALID("not older", lockstep_module_register(session, &description, &module));
    description = describe("net");
    description.calls_per_step = 1 << 20; // Not read, because struct_bytes ends before it.
    description.struct_bytes = offsetof(struct lockstep_module_config, calls_per_step);
    OK(lockstep_module_register(session, &description, &module));
    OK(lockstep_start(session));
    options.struct_bytes = 8;
    INVALID("LOCKSTEP_STEP_INIT", lockstep_step_begin(session, &options, NULL));
    options.struct_bytes = sizeof(options) + 8;
    INVALID("not older", lockstep_step_begin(session, &options, NULL));
    options.struct_bytes = offsetof(struct lockstep_step_options, accumulate); // An older header.
    options.accumulate = 77;
    OK(lockstep_step_begin(session, &options, NULL));
    OK(lockstep_step_end(session, NULL));
    view.struct_bytes = 8;
    INVALID("LOCKSTEP_STEP_VIEW_INIT", lockstep_step_begin(session, NULL, &view));
    OK(lockstep_step_begin(session, NULL, NULL));
    OK(lockstep_step_end(session, NULL));
    INVALID("LOCKSTEP_REPORT_INIT", lockstep_step_report(session, 2, 0, NULL));
    INVALID("LOCKSTEP_REPORT_INIT", lockstep_step_report(session, 2, 0, &report));
    report.struct_bytes = offsetof(struct lockstep_report, first_ready_us); // An older header.
    report.first_ready_us = 77;
    OK(lockstep_step_report(session, 2, 0, &report));
    assert_int_equal(report.first_ready_us, 77);
    OK(lockstep_close(session));
}

struct bad_module {
    const char *part;
    void (*spoil)(struct lockstep_module_config *config, struct lockstep_parameter *parameter,
                  struct lockstep_buffer *buffer);
};

#define SPOIL(name, change) \
    static void name(struct lockstep_module_config *config, struct lockstep_parameter *parameter, \
                     struct lockstep_buffer *buffer) \
    { \
        (void)config, (void)parameter, (void)buffer; \
        change; \
    }

static char long_name[300];
static const int64_t negative[] = {-4};
static const int64_t immense[] = {INT64_MAX / 2, 8};

SPOIL(no_name, config->name = NULL)
SPOIL(empty_name, config->name = "")
SPOIL(too_long, config->name = long_name)
SPOIL(no_utf8, config->name = "\xc3\x28")
SPOIL(no_parameters, config->parameters = NULL)
SPOIL(no_buffers, config->buffers = NULL)
SPOIL(odd_kind, config->gradient_kind = (lockstep_gradient_kind)9)
SPOIL(odd_unused, config->unused = (lockstep_unused_policy)9)
SPOIL(many_calls, config->calls_per_step = 257)
SPOIL(odd_wire, config->wire = (lockstep_wire)3)
SPOIL(positive_exponent, config->float16_exponent = 1)
SPOIL(small_exponent, config->float16_exponent = -15)
SPOIL(many_replicas, config->replicas = 17)
SPOIL(odd_separate, config->separate_calls = 2)
SPOIL(odd_abort, config->on_abort = (lockstep_abort_policy)2)
SPOIL(many_reports, parameter->ready_count = 32769)
SPOIL(shared_with_nobody, parameter->flags = LOCKSTEP_PARAMETER_SHARED)
SPOIL(no_parameter_name, parameter->name = NULL)
SPOIL(long_parameter_name, parameter->name = long_name)
SPOIL(parameter_no_utf8, parameter->name = "w\xff")
SPOIL(same_names, parameter->name = "bias")
SPOIL(odd_dtype, parameter->dtype = (lockstep_dtype)77)
SPOIL(zero_dtype, parameter->dtype = (lockstep_dtype)0)
SPOIL(integer, parameter->dtype = LOCKSTEP_INT32)
SPOIL(many_dims, parameter->dims = 9)
SPOIL(no_shape, parameter->shape = NULL)
SPOIL(negative_shape, parameter->shape = negative)
SPOIL(immense_shape, (parameter->shape = immense, parameter->dims = 2))
SPOIL(no_data, parameter->data = NULL)
SPOIL(odd_flags, parameter->flags = 0x80)
SPOIL(odd_policy, buffer->policy = (lockstep_buffer_policy)5)
SPOIL(no_buffer_name, buffer->name = "")
SPOIL(no_buffer_data, buffer->data = NULL)

static const struct bad_module bad_modules[] = {
    {"has no name", no_name},
    {"has no name", empty_name},
    {"too long: 299 bytes, at most 255", too_long},
    {"UTF-8", no_utf8},
    {"a count and no array", no_parameters},
    {"a count and no array", no_buffers},
    {"gradient_kind", odd_kind},
    {"unused policy", odd_unused},
    {"calls_per_step is 257", many_calls},
    {"the module's wire is 3, which is unknown", odd_wire},
    {"float16_exponent is 1; it is from -14 to 0", positive_exponent},
    {"float16_exponent is -15; it is from -14 to 0", small_exponent},
    {"replicas is 17; a process has at most 16", many_replicas},
    {"separate_calls is not 0 or 1", odd_separate},
    {"on_abort is unknown", odd_abort},
    {"'weight' has the ready_count 32769", many_reports},
    {"'weight' is shared, and no earlier parameter has its memory", shared_with_nobody},
    {"parameter 0 has no name", no_parameter_name},
    {"parameter 0 is too long", long_parameter_name},
    {"parameter 0 is not valid UTF-8", parameter_no_utf8},
    {"parameters 0 and 1 are both named 'bias'", same_names},
    {"'weight' has dtype 77", odd_dtype},
    {"'weight' has dtype 0", zero_dtype},
    {"LOCKSTEP_PARAMETER_FROZEN", integer},
    {"'weight' has 9 dimensions", many_dims},
    {"no shape", no_shape},
    {"'weight' has the negative size -4", negative_shape},
    {"'weight' has more elements", immense_shape},
    {"'weight' has 4 elements and data NULL", no_data},
    {"'weight' has unknown flags 0x80", odd_flags},
    {"'mean' has the unknown policy 5", odd_policy},
    {"buffer 0 has no name", no_buffer_name},
    {"'mean' has 4 elements and data NULL", no_buffer_data},
};

static void modules_that_cannot_be(void **state)
{
    const struct lockstep_buffer good = {.name = "mean",
                                         .dtype = LOCKSTEP_FLOAT32,
                                         .dims = 1,
                                         .shape = four,
                                         .data = values[3],
                                         .policy = LOCKSTEP_BUFFER_AT_START};
    lockstep_session *session;
    lockstep_module *module;
    (void)state;
    memset(long_name, 'n', sizeof(long_name) - 1);
    OK(lockstep_open(NULL, &session));
    for (size_t i = 0; i < sizeof(bad_modules) / sizeof(bad_modules[0]); i++) {
        struct lockstep_module_config config = describe("net");
        struct lockstep_parameter copies[3];
        struct lockstep_buffer buffer = good;
        memcpy(copies, parameters, sizeof(copies));
        config.parameters = copies;
        config.buffers = &buffer;
        config.buffer_count = 1;
        bad_modules[i].spoil(&config, &copies[0], &buffer);
        INVALID(bad_modules[i].part, lockstep_module_register(session, &config, &module));
        assert_null(module);
    }
    OK(lockstep_close(session));
}

// ---- Names and arguments -----------------------------------------------------------------------

static void names_that_are_none(void **state)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    static const char *const bad[] = {NULL, "", long_name};
    static const char *const phases[] = {long_name, "\xff"};
    lockstep_session *session;
    (void)state;
    memset(long_name, 'n', sizeof(long_name) - 1);
    OK(lockstep_open(NULL, &session));
    OK(lockstep_start(session));
    for (int i = 0; i < 3; i++) {
        INVALID("1 to 255 bytes", lockstep_barrier(session, bad[i], 1000));
        INVALID("1 to 255 bytes", lockstep_counter_add(session, bad[i], 1));
        INVALID("1 to 255 bytes", lockstep_counter_read(session, bad[i], scratch));
    }
    INVALID("UTF-8", lockstep_barrier(session, "\xff", 1000));
    INVALID("the library's", lockstep_barrier(session, "lockstep/mine", 1000));
    INVALID("nowhere", lockstep_counter_read(session, "c", NULL));
    INVALID("UTF-8", lockstep_mark(session, NULL));
    INVALID("UTF-8", lockstep_mark(session, "\xff"));
    OK(lockstep_mark(session, long_name)); // The mark is cut.
    OK(lockstep_pause(session, NULL, 0));
    OK(lockstep_resume(session));
    for (int i = 0; i < 2; i++) {
        options.phase = phases[i];
        INVALID("a phase has at most 255 bytes", lockstep_step_begin(session, &options, NULL));
    }
    OK(lockstep_close(session));
}

static void collectives_that_cannot_be(void **state)
{
    lockstep_session *session;
    lockstep_work *work;
    (void)state;
    OK(lockstep_open(NULL, &session));
    INVALID("data is NULL",
            lockstep_allreduce(session, "c", NULL, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 0));
    INVALID("data is NULL", lockstep_broadcast(session, "c", NULL, 1, LOCKSTEP_INT64, 0, 0));
    OK(lockstep_allreduce(session, "c", NULL, 0, LOCKSTEP_INT64, LOCKSTEP_SUM, 1000));
    INVALID("dtype 14",
            lockstep_allreduce(session, "c", scratch, 1, (lockstep_dtype)14, LOCKSTEP_SUM, 0));
    INVALID("op 8",
            lockstep_allreduce(session, "c", scratch, 1, LOCKSTEP_INT64, (lockstep_op)8, 0));
    INVALID("do not fit",
            lockstep_allreduce(session, "c", scratch, UINT64_MAX, LOCKSTEP_INT64, LOCKSTEP_SUM, 0));
    INVALID("no rank 1 in a world of 1",
            lockstep_broadcast(session, "c", scratch, 1, LOCKSTEP_INT64, 1, 0));
    INVALID("nowhere", lockstep_barrier_async(session, "c", NULL));
    INVALID("take the sum", lockstep_allreduce_async(session, "c", scratch, 1, LOCKSTEP_INT64,
                                                     LOCKSTEP_MEAN, &work));
    assert_null(work);
    OK(lockstep_close(session));
}

// Everything that grows has a limit. A call that would exceed a limit fails with a sentence.
static void limits_are_told(void **state)
{
    static lockstep_work *works[256];
    struct lockstep_module_config description = LOCKSTEP_MODULE_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_work *work;
    char name[32];
    (void)state;
    OK(lockstep_open(NULL, &session));
    for (int i = 0; i < 256; i++)
        OK(lockstep_barrier_async(session, "same", &works[i]));
    INVALID("wait for one first", lockstep_barrier_async(session, "same", &work));
    for (int i = 0; i < 256; i++)
        OK(lockstep_work_wait(works[i], 0));
    for (int i = 1; i < 4096; i++) {
        snprintf(name, sizeof(name), "name %d", i);
        OK(lockstep_barrier(session, name, 1000));
    }
    INVALID("use a name again", lockstep_barrier(session, "one more", 1000));
    description.name = name;
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof(name), "module %d", i);
        OK(lockstep_module_register(session, &description, &module));
    }
    description.name = "one more";
    INVALID("at most 64 modules", lockstep_module_register(session, &description, &module));
    OK(lockstep_close(session));
}

// Over TCP blocks are not shared, so nothing is allocated before it is touched.
static void too_many_blocks(void **state)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    void *memory;
    (void)state;
    config.transport = LOCKSTEP_TRANSPORT_TCP;
    OK(lockstep_open(&config, &session));
    for (int i = 0; i < 1048576; i++)
        OK(lockstep_alloc(session, 1, &memory));
    INVALID("at most 1048576 blocks", lockstep_alloc(session, 1, &memory));
    OK(lockstep_close(session));
}

static void too_many_parameters(void **state)
{
    struct lockstep_module_config description = LOCKSTEP_MODULE_INIT;
    lockstep_session *session;
    lockstep_module *module;
    (void)state;
    description.name = "net";
    description.parameters = parameters;
    description.parameter_count = 262145;
    OK(lockstep_open(NULL, &session));
    INVALID(
        "with module 'net' the session would have 262145 parameters and buffers; a session has at "
        "most 262144: leave out tensors that are not reduced, or describe",
        lockstep_module_register(session, &description, &module));
    OK(lockstep_close(session));
}

// ---- Configuration and environment -------------------------------------------------------------

struct bad_variable {
    const char *name;
    const char *value;
    const char *part;
};

static const struct bad_variable bad_variables[] = {
    {"LOCKSTEP_WORLD_SIZE", "two", "LOCKSTEP_WORLD_SIZE='two'"},
    {"LOCKSTEP_WORLD_SIZE", "-1", "LOCKSTEP_WORLD_SIZE='-1'"},
    {"LOCKSTEP_WORLD_SIZE", "99999999999", "LOCKSTEP_WORLD_SIZE='99999999999'"},
    {"LOCKSTEP_WORLD_SIZE", "2000", "LOCKSTEP_WORLD_SIZE=2000 is above the limit of 1024"},
    {"LOCKSTEP_WORLD_SIZE", "0", "LOCKSTEP_WORLD_SIZE is 0"},
    {"LOCKSTEP_WORLD_SIZE", "2", "needs a coordinator (LOCKSTEP_WORLD_SIZE=2)"},
    {"LOCKSTEP_WORLD_MIN", "x", "LOCKSTEP_WORLD_MIN='x'"},
    {"LOCKSTEP_WORLD_MIN", "2000", "LOCKSTEP_WORLD_MIN=2000 is above the limit of 1024"},
    {"LOCKSTEP_WORLD_MIN", "2", "needs a coordinator (LOCKSTEP_WORLD_MIN=2)"},
    {"LOCKSTEP_WORLD_MAX", "2", "LOCKSTEP_WORLD_MAX=2 is set, and not how many"},
    {"WORLD_SIZE", "4", "one of 4 processes (WORLD_SIZE=4), and no coordinator is named"},
    {"LOCKSTEP_RANK_HINT", "1", "LOCKSTEP_RANK_HINT=1"},
    {"LOCKSTEP_RANK_HINT", "x", "LOCKSTEP_RANK_HINT='x'"},
    {"WORLD_SIZE", "5000", "WORLD_SIZE=5000 is above the limit of 1024"},
    {"SLURM_PROCID", "3", "Slurm says that this is rank 3 (SLURM_PROCID=3), but not of how many"},
    {"HOROVOD_RANK", "1", "horovodrun says that this is rank 1"},
    {"FLUX_TASK_RANK", "2", "Flux says that this is rank 2"},
    {"JOB_COMPLETION_INDEX", "7", "rank 7 (JOB_COMPLETION_INDEX=7), but not of how many"},
    {"LOCKSTEP_OPEN_TIMEOUT_MS", "1s", "LOCKSTEP_OPEN_TIMEOUT_MS='1s'"},
    {"LOCKSTEP_DATA_PORTS", "5-1", "'5-1'"},
    {"LOCKSTEP_DATA_PORTS", "0-70000", "'0-70000'"},
    {"LOCKSTEP_DATA_PORTS", "a-b", "'a-b'"},
    {"LOCKSTEP_ENGINE_CPUS", "3-2", "'3-2'"},
    {"LOCKSTEP_ENGINE_CPUS", "0,,1", "'0,,1'"},
    {"LOCKSTEP_ENGINE_CPUS", "0-1024", "'0-1024'"},
    {"LOCKSTEP_ENGINE_CPUS", "900-901", "none of the processors in LOCKSTEP_ENGINE_CPUS='900-901'"},
    {"LOCKSTEP_ENGINE_NICE", "20", "LOCKSTEP_ENGINE_NICE='20'"},
    {"LOCKSTEP_ENGINE_NICE", "low", "LOCKSTEP_ENGINE_NICE='low'"},
    {"LOCKSTEP_LOG", "loud", "LOCKSTEP_LOG='loud'"},
    {"LOCKSTEP_COORDINATOR", "nowhere", "host:port"},
    {"LOCKSTEP_COORDINATOR", "host:0", "host:port"},
    {"LOCKSTEP_COORDINATOR", "host:port", "host:port"},
    {"LOCKSTEP_COORDINATOR", ":1", "host:port"},
    {"LOCKSTEP_COORDINATOR", "10.0.0.1:1", "'10.0.0.1:1' is not a loopback address"},
    {"LOCKSTEP_COORDINATOR", "127.0.0.1:1,10.0.0.1:1", "'10.0.0.1:1' is not a loopback address"},
    {"LOCKSTEP_COORDINATOR", "127.0.0.1:1,nowhere", "'nowhere' of its list is not of the form"},
    {"LOCKSTEP_COORDINATOR", "[fe80::1]:1", "LOCKSTEP_INSECURE_PLAINTEXT=1 allows it"},
    {"LOCKSTEP_COORDINATOR", "host:1", "set LOCKSTEP_TLS_DIR"},
    {"LOCKSTEP_INSECURE_PLAINTEXT", "yes", "LOCKSTEP_INSECURE_PLAINTEXT='yes' is not 0 or 1"},
    {"LOCKSTEP_TLS_DIR", "\xff", "directory of certificates"},
    {"LOCKSTEP_JOB", long_name, "...' is too long: 299 characters, at most 63"},
    {"LOCKSTEP_JOB", "j\xff", "(LOCKSTEP_JOB, config.job) 'j?' is not valid UTF-8"},
    {"LOCKSTEP_JOB", "two words", "(LOCKSTEP_JOB, config.job) 'two words' is no job name"},
    {"LOCKSTEP_ADVERTISE", long_name, "...' is too long"},
    {"LOCKSTEP_TRACE_DIR", "\xff", "directory of traces"},
    {"LOCKSTEP_ORDER", "any", "LOCKSTEP_ORDER='any' is not error or zero_defer"},
    {"LOCKSTEP_UNPLANNED", "0", "LOCKSTEP_UNPLANNED='0' is not extend, fail or defer"},
    {"LOCKSTEP_DATA_ENCRYPTION", "on", "LOCKSTEP_DATA_ENCRYPTION='on' is not off or tls"},
    {"LOCKSTEP_HALT_TIMEOUT_MS", "1s", "LOCKSTEP_HALT_TIMEOUT_MS='1s'"},
    {"LOCKSTEP_ON_FAILURE", "1", "LOCKSTEP_ON_FAILURE='1' is not error or continue"},
};

// The error names the variable. The part has the value, or what is wrong with it.
static void expect_refusal(const char *name, const char *value, const char *part)
{
    lockstep_session *session;
    setenv(name, value, 1);
    const int status = lockstep_open(NULL, &session);
    unsetenv(name);
    const char *text = lockstep_error_text();
    if (status != LOCKSTEP_E_CONFIG || !strstr(text, name) || !strstr(text, part))
        fail_msg("%s=%s: %s, %s", name, value, lockstep_status_name(status), text);
}

static void variables_that_are_wrong(void **state)
{
    (void)state;
    memset(long_name, 'n', sizeof(long_name) - 1);
    for (size_t i = 0; i < sizeof(bad_variables) / sizeof(bad_variables[0]); i++) {
        const struct bad_variable *bad = &bad_variables[i];
        expect_refusal(bad->name, bad->value, bad->part);
    }
    expect_refusal("LOCKSTEP_WRLD_SIZE", "2", "is LOCKSTEP_WORLD_SIZE meant?");
    expect_refusal("LOCKSTEP_COORDINATR", "127.0.0.1:1", "is LOCKSTEP_COORDINATOR meant?");
}

// Words that are no value of any variable of a worker, except of those that take them.
static const char *const bad_words[] = {"x y", "-1", "99999999999999999999999", "1 "};
#define BAD_WORDS (sizeof(bad_words) / sizeof(bad_words[0]))

// Every variable of docs/environment.md that a worker reads and that does not name a file, and the
// ranks of launchers.
static const struct {
    const char *name;
    unsigned takes; // Bit n: bad_words[n] is a value.
} strict_variables[] = {
    {"LOCKSTEP_COORDINATOR", 0},
    {"LOCKSTEP_JOB", 1u << 1 | 1u << 2},
    {"LOCKSTEP_WORLD_SIZE", 0},
    {"LOCKSTEP_WORLD_MIN", 0},
    {"LOCKSTEP_WORLD_MAX", 0},
    {"LOCKSTEP_WORLD_WINDOW_MS", 0},
    {"LOCKSTEP_RANK_HINT", 0},
    {"LOCKSTEP_OPEN_TIMEOUT_MS", 0},
    {"LOCKSTEP_DEVICE", 0},
    {"LOCKSTEP_ADVERTISE", 0},
    {"LOCKSTEP_DATA_PORTS", 0},
    {"LOCKSTEP_DATA_ENCRYPTION", 0},
    {"LOCKSTEP_INSECURE_PLAINTEXT", 0},
    {"LOCKSTEP_ORDER", 0},
    {"LOCKSTEP_UNPLANNED", 0},
    {"LOCKSTEP_ON_FAILURE", 0},
    {"LOCKSTEP_AWAY_TIMEOUT_MS", 0},
    {"LOCKSTEP_HALT_TIMEOUT_MS", 0},
    {"LOCKSTEP_ABORT_MS", 0},
    {"LOCKSTEP_ENGINE_CPUS", 0},
    {"LOCKSTEP_ENGINE_NICE", 1u << 1},
    {"LOCKSTEP_LOG", 0},
    {"LOCKSTEP_ALGORITHM", 0},
    {"LOCKSTEP_SUM", 0},
    {"LOCKSTEP_VIRTUAL_RANKS", 0},
    {"LOCKSTEP_TRANSPORT", 0},
    {"LOCKSTEP_LINK", 0},
    {"LOCKSTEP_SLOTS", 0},
    {"HOROVOD_RANK", 0},
    {"OMPI_COMM_WORLD_RANK", 0},
    {"PMI_RANK", 0},
    {"PMIX_RANK", 0},
    {"FLUX_TASK_RANK", 0},
    {"SLURM_PROCID", 0},
    {"JOB_COMPLETION_INDEX", 0},
};

static void errors_name_the_variable_and_its_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(strict_variables) / sizeof(strict_variables[0]); i++) {
        for (size_t word = 0; word < BAD_WORDS; word++) {
            if ((strict_variables[i].takes >> word & 1) == 0)
                expect_refusal(strict_variables[i].name, bad_words[word], bad_words[word]);
        }
    }
}

static void variables_override_the_configuration(void **state)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    uint32_t world_size = 0;
    (void)state;
    config.coordinator = "127.0.0.1:1";
    config.world_size = 7;
    config.rank_hint = 5;
    setenv("LOCKSTEP_COORDINATOR", cluster_coordinator(), 1);
    setenv("LOCKSTEP_WORLD_SIZE", "1", 1);
    setenv("LOCKSTEP_RANK_HINT", "0", 1);
    setenv("LOCKSTEP_JOB", "from.the-environment", 1);
    setenv("LOCKSTEP_LOG", "", 1); // An empty variable counts as not set.
    OK(lockstep_open(&config, &session));
    OK(lockstep_world(session, NULL, &world_size));
    assert_int_equal(world_size, 1);
    OK(lockstep_close(session));
    unsetenv("LOCKSTEP_COORDINATOR");
    unsetenv("LOCKSTEP_WORLD_SIZE");
    unsetenv("LOCKSTEP_RANK_HINT");
    unsetenv("LOCKSTEP_JOB");
    unsetenv("LOCKSTEP_LOG");
}

static struct lockstep_config world_of(uint32_t world_size, char *job, size_t bytes)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    cluster_job_name(job, bytes);
    config.coordinator = cluster_coordinator();
    config.job = job;
    config.world_size = world_size;
    config.open_timeout_ms = OPEN_BOUND_MS;
    return config;
}

static void fields_that_are_wrong(void **state)
{
    char job[64];
    const struct lockstep_config good = world_of(1, job, sizeof(job));
    struct lockstep_config config = good;
    lockstep_session *session;
    (void)state;
    config.transport = (lockstep_transport_kind)9;
    CHECK(LOCKSTEP_E_CONFIG, "config.transport 9", lockstep_open(&config, &session));
    config = good;
    config.reserved = 7;
    CHECK(LOCKSTEP_E_CONFIG, "config.reserved is 7", lockstep_open(&config, &session));
    config.reserved = 0;
    config.on_failure = (lockstep_on_failure)9;
    CHECK(LOCKSTEP_E_CONFIG, "config.on_failure 9", lockstep_open(&config, &session));
    config = good;
    config.advertise = "not a numeric address";
    CHECK(LOCKSTEP_E_CONFIG, "not a numeric address", lockstep_open(&config, &session));
    config = good;
    config.world_size = 0;
    config.world_min = 3;
    config.world_max = 2;
    CHECK(LOCKSTEP_E_CONFIG, "config.world_min=3 is above config.world_max=2",
          lockstep_open(&config, &session));
    config = good;
    config.job = "two words";
    CHECK(LOCKSTEP_E_CONFIG, "'two words' is no job name", lockstep_open(&config, &session));
    config = good;
    config.world_size = 2;
    config.rank_hint = 2;
    CHECK(LOCKSTEP_E_CONFIG, "hint", lockstep_open(&config, &session));
    config = good;
    config.order = (lockstep_order)2;
    CHECK(LOCKSTEP_E_CONFIG, "config.order 2", lockstep_open(&config, &session));
    config = good;
    config.unplanned = (lockstep_unplanned)3;
    CHECK(LOCKSTEP_E_CONFIG, "config.unplanned 3", lockstep_open(&config, &session));
    config = good;
    config.trainer_threads = 17;
    CHECK(LOCKSTEP_E_CONFIG, "config.trainer_threads 17", lockstep_open(&config, &session));
    config = good;
    config.data_encryption = "yes";
    CHECK(LOCKSTEP_E_CONFIG, "config.data_encryption 'yes'", lockstep_open(&config, &session));
    config = good;
    config.wait_while_open = 2;
    CHECK(LOCKSTEP_E_CONFIG, "config.wait_while_open 2", lockstep_open(&config, &session));
    assert_null(session);
}

// ---- Worlds that do not form -------------------------------------------------------------------

static void an_absent_coordinator(void **state)
{
    char job[64];
    struct lockstep_config config = world_of(1, job, sizeof(job));
    const uint64_t began_ms = clock_now_ms();
    lockstep_session *session;
    (void)state;
    config.coordinator = "127.0.0.1:1";
    CHECK(LOCKSTEP_E_UNREACHABLE, "127.0.0.1:1", lockstep_open(&config, &session));
    assert_true(clock_now_ms() - began_ms < test_bound_ms(OPEN_BOUND_MS + 3000));
}

static void a_world_that_never_completes(void **state)
{
    char job[64];
    struct lockstep_config config = world_of(2, job, sizeof(job));
    const uint64_t began_ms = clock_now_ms();
    lockstep_session *session;
    (void)state;
    config.rank_hint = 0;
    CHECK(LOCKSTEP_E_TIMEOUT, "1 of 2 workers", lockstep_open(&config, &session));
    assert_non_null(strstr(lockstep_error_text(), "missing rank hints: 1"));
    assert_non_null(strstr(lockstep_error_text(), job));
    assert_true(clock_now_ms() - began_ms >= OPEN_BOUND_MS);
    assert_true(clock_now_ms() - began_ms < test_bound_ms(OPEN_BOUND_MS + 3000));
}

// Two workers with incompatible configurations. The second worker is refused; the first one times
// out alone.
struct pair {
    const char *refused; // Part of the error that the second worker reads.
    uint32_t worlds[2]; // The world size of each worker.
    int32_t hints[2]; // The rank hint of each worker.
    atomic_uint alone; // Number of workers that timed out.
    atomic_uint second; // Number of workers that were refused.
};

static void pair_body(struct rank *rank)
{
    struct pair *pair = rank->context;
    struct lockstep_config config = rank_config(rank);
    lockstep_session *session;
    int status;
    config.world_size = pair->worlds[rank->rank];
    config.rank_hint = pair->hints[rank->rank];
    config.open_timeout_ms = OPEN_BOUND_MS * test_slow();
    status = RANK_CALL(rank, lockstep_open(&config, &session));
    if (status == LOCKSTEP_E_TIMEOUT) {
        RANK_SAYS(rank, "1 of ");
        atomic_fetch_add(&pair->alone, 1);
        return;
    }
    RANK_EQUAL(rank, status, LOCKSTEP_E_CONFIG);
    RANK_SAYS(rank, pair->refused);
    atomic_fetch_add(&pair->second, 1);
}

static void refuse_second(struct pair *pair)
{
    static const struct setting setting = {
        .name = "tcp", .transport = LOCKSTEP_TRANSPORT_TCP, .world_size = 2};
    const struct cluster_test test = {
        .setting = &setting, .body = pair_body, .context = pair, .without_session = true};
    ranks_run_test(&test);
    assert_int_equal(atomic_load(&pair->alone), 1);
    assert_int_equal(atomic_load(&pair->second), 1);
}

static void a_hint_taken_twice(void **state)
{
    struct pair pair = {.refused = "rank hint 0 is taken", .worlds = {2, 2}, .hints = {0, 0}};
    (void)state;
    refuse_second(&pair);
}

static void another_world_size(void **state)
{
    struct pair pair = {
        .refused = "give every worker the same world size", .worlds = {2, 3}, .hints = {-1, -1}};
    (void)state;
    refuse_second(&pair);
}

// ---- The wrong thread --------------------------------------------------------------------------

// The engine's thread logs that the session has failed. A close by the sink would make this thread
// wait for its own end.
static void a_log_sink_may_not_call_on_the_engines_thread(void **state)
{
    char job[64];
    struct calls_back calls = {.event = "session_failed"};
    struct lockstep_config config = world_of(1, job, sizeof(job));
    uint32_t tries = 0;
    (void)state;
    config.open_timeout_ms = (uint32_t)test_bound_ms(CLUSTER_PATIENCE_MS);
    config.log = sink_that_calls_back;
    config.log_context = &calls;
    open_all(&config, calls.handles);
    OK(lockstep_abort(calls.handles[SESSION], "the loss is NaN"));
    while (atomic_load(&calls.rounds) == 0)
        thread_moment(&tries);
    assert_null(atomic_load(&calls.passed));
    OK(lockstep_close(calls.handles[SESSION]));
}

static lockstep_session *interrupted;
static atomic_uint passed; // Number of functions that did not refuse the handler's call.

static void call_from_handler(int number)
{
    (void)number;
    for (size_t i = 0; i < USES; i++) {
        if (uses[i].handle == SESSION &&
            (uses[i].use(interrupted) != LOCKSTEP_E_INVALID ||
             !strstr(lockstep_error_text(), "a signal handler called the library")))
            atomic_fetch_add(&passed, 1);
    }
}

// The signal handler runs while the thread holds the mutex of the session.
static void a_signal_handler_may_not_call_inside_a_call(void **state)
{
    const struct sigaction calls = {.sa_handler = call_from_handler};
    struct sigaction before;
    void *handles[HANDLES];
    (void)state;
    open_all(NULL, handles);
    interrupted = handles[SESSION];
    assert_int_equal(sigaction(SIGUSR1, &calls, &before), 0);
    mutex_lock(&interrupted->mutex);
    assert_int_equal(raise(SIGUSR1), 0);
    mutex_unlock(&interrupted->mutex);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
    assert_int_equal(atomic_load(&passed), 0);
    OK(lockstep_close(interrupted));
}

struct beside {
    atomic_bool refused; // True once the library has refused the close.
};

static void wait_beside(void *argument)
{
    struct rank *rank = argument;
    (void)lockstep_barrier(rank->session, "late", LOCKSTEP_WAIT_FOREVER);
}

static bool waits_beside(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    const bool waits = session->awaiting.blocked > 0;
    mutex_unlock(&session->mutex);
    return waits;
}

static void beside_body(struct rank *rank)
{
    struct beside *beside = rank->context;
    struct thread thread;
    uint32_t tries = 0;
    if (rank->rank != 0) {
        while (!atomic_load(&beside->refused))
            thread_moment(&tries);
        RANK_OK(rank, lockstep_barrier(rank->session, "late", LOCKSTEP_WAIT_FOREVER));
        return;
    }
    RANK_EQUAL(rank, thread_start(&thread, "beside", wait_beside, rank), 0);
    while (!waits_beside(rank->session))
        thread_moment(&tries);
    const int status = lockstep_close(rank->session);
    atomic_store(&beside->refused, true);
    thread_join(&thread);
    RANK_EQUAL(rank, status, LOCKSTEP_E_INVALID);
    RANK_SAYS(rank, "another thread waits inside a function of this session");
}

static void a_close_beside_a_wait(void **state)
{
    static const struct setting setting = {
        .name = "tcp", .transport = LOCKSTEP_TRANSPORT_TCP, .world_size = 2};
    struct beside beside = {false};
    (void)state;
    ranks_run(&setting, beside_body, &beside);
}

// ---- A forked child ----------------------------------------------------------------------------

static void expect_inert_child(void **handles)
{
    const pid_t child = fork();
    int status = 0;
    assert_true(child >= 0);
    if (child == 0) {
        lockstep_session *session;
        for (size_t i = 0; i < USES; i++) {
            if (uses[i].use(handles[uses[i].handle]) != LOCKSTEP_E_FORKED)
                _exit((int)(1 + i));
            if (!strstr(lockstep_error_text(), "forked"))
                _exit(101);
        }
        _exit(lockstep_open(NULL, &session) == LOCKSTEP_E_FORKED ? 0 : 100);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child's status is %x: function %s", (unsigned)status,
                 WIFEXITED(status) && WEXITSTATUS(status) <= (int)USES
                     ? uses[WEXITSTATUS(status) - 1].name
                     : "open");
}

static void a_forked_child_is_inert(lockstep_transport_kind transport)
{
    char job[64];
    struct lockstep_config config = world_of(1, job, sizeof(job));
    lockstep_session *session;
    void *handles[HANDLES];
    config.open_timeout_ms = (uint32_t)test_bound_ms(CLUSTER_PATIENCE_MS);
    config.transport = transport;
    open_all(&config, handles);
    session = handles[SESSION];
    expect_inert_child(handles);
    OK(lockstep_work_wait(handles[WORK], LOCKSTEP_WAIT_FOREVER)); // The parent goes on.
    OK(lockstep_grad_ready(handles[MODULE], NULL, 1, bias_gradient, NULL));
    OK(lockstep_grad_ready(handles[MODULE], NULL, 0, NULL, NULL));
    OK(lockstep_call_end(handles[CALL]));
    OK(lockstep_step_end(session, NULL));
    OK(lockstep_close(session));
}

static void a_forked_child_is_inert_over_tcp(void **state)
{
    (void)state;
    a_forked_child_is_inert(LOCKSTEP_TRANSPORT_TCP);
}

static void a_forked_child_is_inert_over_loopback(void **state)
{
    (void)state;
    a_forked_child_is_inert(LOCKSTEP_TRANSPORT_LOOPBACK);
}

// gRPC does not survive a fork, so only a world of one without a coordinator can be opened.
static void a_child_of_an_earlier_session(void **state)
{
    lockstep_session *session;
    char job[64];
    struct lockstep_config config = world_of(1, job, sizeof(job));
    int status = 0;
    (void)state;
    config.open_timeout_ms = (uint32_t)test_bound_ms(CLUSTER_PATIENCE_MS);
    OK(lockstep_open(&config, &session));
    OK(lockstep_close(session));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (lockstep_open(&config, &session) != LOCKSTEP_E_FORKED || session ||
            !strstr(lockstep_error_text(), "fork before the first lockstep_open"))
            _exit(1);
        _exit(lockstep_open(NULL, &session) == 0 && lockstep_close(session) == 0 ? 0 : 2);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    assert_int_equal(status, 0);
}

// ---- Alone -------------------------------------------------------------------------------------

static void solo_collectives(lockstep_session *session)
{
    lockstep_work *work;
    scratch[0] = 7;
    OK(lockstep_allreduce(session, "a", scratch, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 0));
    OK(lockstep_broadcast(session, "b", scratch, 1, LOCKSTEP_INT64, 0, 0));
    OK(lockstep_barrier(session, "c", 0));
    OK(lockstep_allreduce_async(session, "a", scratch, 1, LOCKSTEP_INT64, LOCKSTEP_MAX, &work));
    OK(lockstep_work_wait(work, 0));
    INVALID("already", lockstep_work_wait(work, 0));
    OK(lockstep_broadcast_async(session, "b", scratch, 1, LOCKSTEP_INT64, 0, &work));
    OK(lockstep_work_wait(work, 0));
    OK(lockstep_barrier_async(session, "c", &work));
    OK(lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER));
    assert_int_equal(scratch[0], 7);
}

static void solo_step(lockstep_session *session, lockstep_module *module, bool all)
{
    lockstep_call *call;
    gradients[0] = 3;
    OK(lockstep_call_begin(module, &call));
    OK(lockstep_grad_ready(module, call, 0, NULL, NULL));
    if (all)
        OK(lockstep_grad_ready(module, call, 1, bias_gradient, NULL));
    OK(lockstep_call_end(call));
    if (all)
        OK(lockstep_step_end(session, NULL));
    else
        CHECK(LOCKSTEP_E_UNUSED, "module 'net' parameter 'bias' on rank 0",
              lockstep_step_end(session, NULL));
    assert_true(gradients[0] >= 3 && gradients[0] <= 3);
}

static void alone_everything_runs(void **state)
{
    const struct lockstep_module_config description = describe("net");
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    lockstep_session *session;
    lockstep_module *module;
    uint64_t hash;
    int64_t total;
    (void)state;
    OK(lockstep_open(NULL, &session));
    solo_collectives(session);
    OK(lockstep_module_register(session, &description, &module));
    OK(lockstep_start(session));
    OK(lockstep_state_check(session));
    OK(lockstep_state_hash(session, &hash));
    for (uint64_t step = 1; step <= 4; step++) {
        OK(lockstep_step_begin(session, NULL, &view));
        assert_int_equal(view.step, step);
        assert_int_equal(view.generation, 0);
        assert_int_equal(view.world_size, 1);
        OK(lockstep_counter_add(session, "samples", 5));
        solo_step(session, module, step % 2 == 1);
        OK(lockstep_counter_read(session, "samples", &total));
        assert_int_equal(total, 5 * (int64_t)step);
        OK(lockstep_step_report(session, step, 0, &report));
        assert_int_equal(report.weight_total, 1);
        assert_true(report.first_ready_us <= report.last_ready_us &&
                    report.last_ready_us <= report.end_us && report.end_us <= report.done_us);
    }
    OK(lockstep_close(session));
}

// A session of a single rank also divides a sum by its weight.
static void alone_a_sum_becomes_a_mean(void **state)
{
    struct lockstep_module_config description = describe("net");
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    (void)state;
    description.parameter_count = 1;
    description.gradient_kind = LOCKSTEP_GRADIENT_SUM;
    options.weight = 4;
    OK(lockstep_open(NULL, &session));
    OK(lockstep_module_register(session, &description, &module));
    OK(lockstep_start(session));
    OK(lockstep_step_begin(session, &options, NULL));
    gradients[0] = 6;
    OK(lockstep_call_begin(module, &call));
    OK(lockstep_grad_ready(module, call, 0, NULL, NULL));
    OK(lockstep_call_end(call));
    OK(lockstep_step_end(session, NULL));
    assert_true(gradients[0] >= 1.5F && gradients[0] <= 1.5F);
    OK(lockstep_close(session));
}

// ---- Texts -------------------------------------------------------------------------------------

static void fresh_thread(void *argument)
{
    char *text = argument;
    snprintf(text, 64, "%s", lockstep_error_text());
    lockstep_close(NULL);
    snprintf(text + 64, 64, "%s", lockstep_error_text());
}

static void texts_belong_to_their_thread(void **state)
{
    struct thread thread;
    char texts[128] = "x";
    (void)state;
    INVALID("nowhere", lockstep_open(NULL, NULL));
    assert_int_equal(thread_start(&thread, "fresh", fresh_thread, texts), 0);
    thread_join(&thread);
    assert_string_equal(texts, "");
    assert_string_equal(texts + 64, "the session is NULL");
    assert_non_null(strstr(lockstep_error_text(), "nowhere"));
}

static void statuses_have_names(void **state)
{
    (void)state;
    assert_string_equal(lockstep_status_name(LOCKSTEP_OK), "LOCKSTEP_OK");
    for (int status = LOCKSTEP_E_CHANGED; status <= LOCKSTEP_FINISHED; status++)
        assert_memory_equal(lockstep_status_name(status), "LOCKSTEP_", 9);
    assert_string_equal(lockstep_status_name(LOCKSTEP_E_CHANGED - 1), "unknown status");
    assert_string_equal(lockstep_status_name(LOCKSTEP_FINISHED + 1), "unknown status");
    assert_string_equal(lockstep_version(), "0.1.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_function_refuses_null),
        cmocka_unit_test(every_function_refuses_foreign_memory),
        cmocka_unit_test(every_function_refuses_other_kinds),
        cmocka_unit_test(every_function_refuses_closed_handles),
        cmocka_unit_test(a_failed_session_says_why_each_time),
        cmocka_unit_test(a_log_sink_may_not_call_inside_a_call),
        cmocka_unit_test(what_is_not_supported_says_so),
        cmocka_unit_test(streams_without_a_device),
        cmocka_unit_test(devices_that_cannot_be_used),
        cmocka_unit_test(calls_in_the_wrong_order),
        cmocka_unit_test(calls_beyond_what_was_declared),
        cmocka_unit_test(calls_that_are_given_up),
        cmocka_unit_test(a_step_without_weight),
        cmocka_unit_test(windows_that_cannot_be),
        cmocka_unit_test(a_call_of_another_module),
        cmocka_unit_test(structures_of_another_size),
        cmocka_unit_test(modules_that_cannot_be),
        cmocka_unit_test(names_that_are_none),
        cmocka_unit_test(collectives_that_cannot_be),
        cmocka_unit_test(limits_are_told),
        cmocka_unit_test(too_many_blocks),
        cmocka_unit_test(too_many_parameters),
        cmocka_unit_test(variables_that_are_wrong),
        cmocka_unit_test(errors_name_the_variable_and_its_value),
        cmocka_unit_test(variables_override_the_configuration),
        cmocka_unit_test(fields_that_are_wrong),
        cmocka_unit_test(an_absent_coordinator),
        cmocka_unit_test(a_world_that_never_completes),
        cmocka_unit_test(a_hint_taken_twice),
        cmocka_unit_test(another_world_size),
        cmocka_unit_test(a_log_sink_may_not_call_on_the_engines_thread),
        cmocka_unit_test(a_signal_handler_may_not_call_inside_a_call),
        cmocka_unit_test(a_close_beside_a_wait),
        cmocka_unit_test(a_forked_child_is_inert_over_tcp),
        cmocka_unit_test(a_forked_child_is_inert_over_loopback),
        cmocka_unit_test(a_child_of_an_earlier_session),
        cmocka_unit_test(alone_everything_runs),
        cmocka_unit_test(alone_a_sum_becomes_a_mean),
        cmocka_unit_test(texts_belong_to_their_thread),
        cmocka_unit_test(statuses_have_names),
    };
    return cmocka_run_group_tests_name("misuse", tests, NULL, NULL);
}
