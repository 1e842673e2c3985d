// SPDX-License-Identifier: Apache-2.0
//
// Conformance: a world of one refuses what a larger one refuses. A table of wrong configurations
// and wrong calls runs in three worlds: one rank without a coordinator, one rank with a
// coordinator, and two ranks. Each line of the table must have the same status in all of them.

#include "tests/support/cluster.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SKIPPED -99 // The calls before the wrong one have failed: the line of the table is wrong.

// One session with one module of two parameters. Misuse of it is a line of `cases`.
struct rig {
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    float values[2], gradients[2];
};

static char long_name[400];
static _Thread_local int64_t numbers[4]; // Each rank is a thread.

static int add(struct rig *rig, const char *module, const char *first, const char *second)
{
    struct lockstep_module_config description = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[2];
    for (int i = 0; i < 2; i++) {
        const struct lockstep_parameter one = LOCKSTEP_PARAMETER_INIT;
        parameters[i] = one;
        parameters[i].name = i == 0 ? first : second;
        parameters[i].data = &rig->values[i];
        parameters[i].gradient = &rig->gradients[i];
    }
    description.name = module;
    description.parameters = parameters;
    description.parameter_count = 2;
    return lockstep_module_register(rig->session, &description, &rig->module);
}

// What is wrong with a module of one parameter, and for some changes one buffer.
enum change {
    WRONG_DTYPE,
    WRONG_DIMS,
    NO_SHAPE,
    NEGATIVE_SHAPE,
    HUGE_SHAPE,
    NO_DATA,
    WRONG_FLAGS,
    INTEGER_GRADIENT,
    NO_GRADIENT,
    WRONG_POLICY,
    INTEGER_MEAN,
    NO_BUFFER_NAME,
    TAKEN_NAME,
    NO_CALLS,
    MANY_CALLS,
    NO_PARAMETERS,
    WRONG_SIZE,
    WRONG_KIND,
    GRADIENT_IS_DATA,
};

static int add_as(struct rig *rig, enum change change)
{
    static _Thread_local float other;
    struct lockstep_module_config description = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_buffer buffer = LOCKSTEP_BUFFER_INIT;
    static const int64_t negative[] = {-1};
    static const int64_t huge[] = {INT64_MAX, 4};
    parameter.name = "w";
    parameter.data = &other;
    parameter.gradient = &rig->gradients[0];
    buffer.name = "b";
    buffer.data = numbers;
    buffer.dtype = LOCKSTEP_INT64;
    buffer.policy = LOCKSTEP_BUFFER_BROADCAST;
    description.name = "m";
    description.parameters = &parameter;
    description.parameter_count = 1;
    switch (change) {
    case WRONG_DTYPE:
        parameter.dtype = (lockstep_dtype)99;
        break;
    case WRONG_DIMS:
        parameter.dims = 9;
        break;
    case NO_SHAPE:
        parameter.dims = 1;
        break;
    case NEGATIVE_SHAPE:
        parameter.dims = 1;
        parameter.shape = negative;
        break;
    case HUGE_SHAPE:
        parameter.dims = 2;
        parameter.shape = huge;
        break;
    case NO_DATA:
        parameter.data = NULL;
        break;
    case WRONG_FLAGS:
        parameter.flags = 1u << 31;
        break;
    case INTEGER_GRADIENT:
        parameter.dtype = LOCKSTEP_INT64;
        break;
    case NO_GRADIENT:
        parameter.gradient = NULL;
        break;
    case WRONG_POLICY:
        buffer.policy = (lockstep_buffer_policy)99;
        break;
    case INTEGER_MEAN:
        buffer.policy = LOCKSTEP_BUFFER_MEAN;
        break;
    case NO_BUFFER_NAME:
        buffer.name = "";
        break;
    case TAKEN_NAME:
        buffer.name = "w";
        break;
    case NO_CALLS:
        description.calls_per_step = 0;
        break;
    case MANY_CALLS:
        description.calls_per_step = 100000;
        break;
    case NO_PARAMETERS:
        description.parameters = NULL;
        break;
    case WRONG_SIZE:
        description.struct_bytes = 1;
        break;
    case WRONG_KIND:
        description.gradient_kind = (lockstep_gradient_kind)9;
        break;
    case GRADIENT_IS_DATA:
        parameter.gradient = parameter.data;
        break;
    }
    if (change >= WRONG_POLICY && change <= TAKEN_NAME) {
        description.buffers = &buffer;
        description.buffer_count = 1;
    }
    const int status = lockstep_module_register(rig->session, &description, &rig->module);
    return status < 0 ? status : lockstep_start(rig->session);
}

static int ready(struct rig *rig)
{
    int status = add(rig, "m", "a", "b");
    return status < 0 ? status : lockstep_start(rig->session);
}

static int open_step(struct rig *rig)
{
    int status = ready(rig);
    return status < 0 ? status : lockstep_step_begin(rig->session, NULL, NULL);
}

static int open_call(struct rig *rig)
{
    int status = open_step(rig);
    return status < 0 ? status : lockstep_call_begin(rig->module, &rig->call);
}

static int whole_call(struct rig *rig)
{
    int status = open_call(rig);
    for (uint32_t i = 0; i < 2 && status == 0; i++)
        status = lockstep_grad_ready(rig->module, rig->call, i, NULL, NULL);
    return status < 0 ? status : lockstep_call_end(rig->call);
}

static int step_with(struct rig *rig, int change)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    int status = ready(rig);
    if (status < 0)
        return SKIPPED;
    switch (change) {
    case 0:
        options.phase = long_name;
        break;
    case 1:
        options.weight = UINT64_MAX;
        break;
    case 2:
        options.accumulate = 2;
        break;
    case 3:
        options.exhausted = 1;
        break;
    case 4:
        options.struct_bytes = 1;
        break;
    case 5:
        options.phase = "\xff";
        break;
    case 6:
        options.exhausted = 2;
        break;
    }
    return lockstep_step_begin(rig->session, &options, NULL);
}

static int many(struct rig *rig)
{
    lockstep_work *work;
    int status = 0;
    for (int i = 0; i < 5000 && status == 0; i++)
        status = lockstep_barrier_async(rig->session, "b", &work);
    return status;
}
static int many_names(struct rig *rig)
{
    char name[32];
    int status = 0;
    for (int i = 0; i < 70000 && status == 0; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        status = lockstep_barrier(rig->session, name, 10000);
    }
    return status;
}
static int overlap(struct rig *rig)
{
    lockstep_work *work;
    lockstep_allreduce_async(rig->session, "x", numbers, 2, LOCKSTEP_INT64, LOCKSTEP_SUM, &work);
    return lockstep_allreduce(rig->session, "y", numbers + 1, 2, LOCKSTEP_INT64, LOCKSTEP_SUM,
                              10000);
}
static int twice_waited(struct rig *rig)
{
    lockstep_work *work;
    lockstep_barrier_async(rig->session, "b", &work);
    lockstep_work_wait(work, 10000);
    return lockstep_work_wait(work, 10000);
}
static int reports(struct rig *rig, uint64_t step, size_t bytes)
{
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    report.struct_bytes = bytes ? bytes : report.struct_bytes;
    return whole_call(rig) < 0 || lockstep_step_end(rig->session, NULL) < 0
               ? SKIPPED
               : lockstep_step_report(rig->session, step, 0, &report);
}

#define S rig->session
#define M rig->module
// A line of a table: `wrong` is made if `before` was OK.
#define WRONG(before, wrong) \
    if (number-- == 0) { \
        *text = #wrong; \
        return (before) != 0 ? SKIPPED : (wrong); \
    }

static int wrong_modules(struct rig *rig, uint32_t number, const char **text)
{
    WRONG(0, add(rig, NULL, "a", "b"));
    WRONG(0, add(rig, "", "a", "b"));
    WRONG(0, add(rig, long_name, "a", "b"));
    WRONG(0, add(rig, "a\nb", "a", "b"));
    WRONG(0, add(rig, "\xff", "a", "b"));
    WRONG(0, add(rig, "m", NULL, "b"));
    WRONG(0, add(rig, "m", "a", ""));
    WRONG(0, add(rig, "m", long_name, "b"));
    WRONG(0, add(rig, "m", "a", "a"));
    WRONG(add(rig, "m", "a", "b"), add(rig, "m", "a", "b"));
    WRONG(add(rig, "m", "a", "b"), (add(rig, "n", "a", "b") || lockstep_start(S)));
    WRONG(0, add_as(rig, WRONG_DTYPE));
    WRONG(0, add_as(rig, WRONG_DIMS));
    WRONG(0, add_as(rig, NO_SHAPE));
    WRONG(0, add_as(rig, NEGATIVE_SHAPE));
    WRONG(0, add_as(rig, HUGE_SHAPE));
    WRONG(0, add_as(rig, NO_DATA));
    WRONG(0, add_as(rig, WRONG_FLAGS));
    WRONG(0, add_as(rig, INTEGER_GRADIENT));
    WRONG(0, add_as(rig, NO_GRADIENT));
    WRONG(0, add_as(rig, WRONG_POLICY));
    WRONG(0, add_as(rig, INTEGER_MEAN));
    WRONG(0, add_as(rig, NO_BUFFER_NAME));
    WRONG(0, add_as(rig, TAKEN_NAME));
    WRONG(0, add_as(rig, NO_CALLS));
    WRONG(0, add_as(rig, MANY_CALLS));
    WRONG(0, add_as(rig, NO_PARAMETERS));
    WRONG(0, add_as(rig, WRONG_SIZE));
    WRONG(0, add_as(rig, WRONG_KIND));
    WRONG(0, add_as(rig, GRADIENT_IS_DATA));
    WRONG(0, lockstep_start(S));
    WRONG(ready(rig), add(rig, "n", "a", "b"));
    *text = NULL;
    return 0;
}

static int wrong_steps(struct rig *rig, uint32_t number, const char **text)
{
    WRONG(ready(rig), lockstep_start(S));
    WRONG(open_step(rig), lockstep_module_close(M));
    WRONG(add(rig, "m", "a", "b"), lockstep_step_begin(S, NULL, NULL));
    WRONG(open_step(rig), lockstep_step_begin(S, NULL, NULL));
    WRONG(ready(rig), lockstep_step_end(S, NULL));
    WRONG(open_call(rig), lockstep_step_end(S, NULL));
    WRONG(ready(rig), lockstep_call_begin(M, &rig->call));
    WRONG(open_call(rig), lockstep_call_begin(M, &rig->call));
    WRONG(whole_call(rig), lockstep_call_begin(M, &rig->call));
    WRONG(open_call(rig), lockstep_grad_ready(M, rig->call, 7, NULL, NULL));
    WRONG(open_call(rig) || lockstep_grad_ready(M, rig->call, 0, NULL, NULL),
          lockstep_grad_ready(M, rig->call, 0, NULL, NULL));
    WRONG(whole_call(rig), lockstep_grad_ready(M, rig->call, 0, NULL, NULL));
    WRONG(open_call(rig), lockstep_grad_ready(M, rig->call, 0, rig->values, NULL));
    WRONG(open_call(rig) || lockstep_grad_ready(M, rig->call, 0, NULL, NULL),
          lockstep_grad_ready(M, rig->call, 1, &rig->gradients[0], NULL));
    WRONG(whole_call(rig), lockstep_call_end(rig->call));
    WRONG(open_call(rig), lockstep_call_wait(rig->call, 1000));
    WRONG(whole_call(rig) || lockstep_call_wait(rig->call, 10000),
          lockstep_call_wait(rig->call, 10000));
    WRONG(open_call(rig), lockstep_call_unused(rig->call, (uint32_t[]){9}, 1));
    WRONG(ready(rig), lockstep_phase_unused(M, "p", (uint32_t[]){9}, 1));
    WRONG(ready(rig), lockstep_parameter_move(M, 9, rig->values, NULL));
    WRONG(0, step_with(rig, 0));
    WRONG(0, step_with(rig, 1));
    WRONG(0, step_with(rig, 2));
    WRONG(0, step_with(rig, 3));
    WRONG(0, step_with(rig, 4));
    WRONG(0, step_with(rig, 5));
    WRONG(0, step_with(rig, 6));
    WRONG(open_step(rig), lockstep_state_hash(S, (uint64_t *)numbers));
    WRONG(open_step(rig), lockstep_state_check(S));
    WRONG(open_step(rig), lockstep_state_sync(S));
    WRONG(0, lockstep_state_check(S));
    WRONG(0, reports(rig, 99, 0));
    WRONG(0, reports(rig, 1, 1));
    WRONG(0, reports(rig, 0, 0));
    WRONG(0, reports(rig, 1, 0));
    WRONG(reports(rig, 1, 0), lockstep_module_usage(M, (uint32_t *)numbers, 1));
    WRONG(whole_call(rig), lockstep_call_next(rig->call, 0, NULL));
    *text = NULL;
    return 0;
}

static int wrong_collectives(struct rig *rig, uint32_t number, const char **text)
{
    WRONG(0, lockstep_allreduce(S, NULL, numbers, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 9000));
    WRONG(0, lockstep_allreduce(S, "", numbers, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 9000));
    WRONG(0, lockstep_allreduce(S, long_name, numbers, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 9000));
    WRONG(0, lockstep_allreduce(S, "\xff", numbers, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 9000));
    WRONG(0, lockstep_barrier(S, "lockstep/x", 9000));
    WRONG(0, lockstep_allreduce(S, "r", numbers, 1, (lockstep_dtype)99, LOCKSTEP_SUM, 9000));
    WRONG(0, lockstep_allreduce(S, "r", numbers, 1, LOCKSTEP_INT64, (lockstep_op)99, 9000));
    WRONG(0, lockstep_allreduce(S, "r", numbers, 1, LOCKSTEP_INT64, LOCKSTEP_MEAN, 9000));
    WRONG(0, lockstep_allreduce(S, "r", NULL, 1, LOCKSTEP_INT64, LOCKSTEP_SUM, 9000));
    WRONG(0, lockstep_allreduce(S, "r", NULL, 0, LOCKSTEP_INT64, LOCKSTEP_SUM, 9000));
    WRONG(0,
          lockstep_allreduce(S, "r", numbers, UINT64_MAX / 2, LOCKSTEP_INT64, LOCKSTEP_SUM, 9000));
    WRONG(0, lockstep_broadcast(S, "r", numbers, 1, LOCKSTEP_INT64, 9, 9000));
    WRONG(0, lockstep_barrier_async(S, "b", NULL));
    WRONG(0, many(rig));
    WRONG(0, many_names(rig));
    WRONG(0, overlap(rig));
    WRONG(0, twice_waited(rig));
    *text = NULL;
    return 0;
}

static int wrong_others(struct rig *rig, uint32_t number, const char **text)
{
    WRONG(ready(rig), lockstep_module_freeze(M, (uint32_t[]){9}, 1, 1));
    WRONG(open_step(rig), lockstep_module_freeze(M, (uint32_t[]){0}, 1, 1));
    WRONG(ready(rig), lockstep_module_freeze(M, (uint32_t[]){0}, 1, 2));
    WRONG(0, lockstep_counter_add(S, NULL, 1));
    WRONG(0, lockstep_counter_add(S, "", 1));
    WRONG(0, lockstep_counter_add(S, long_name, 1));
    WRONG(open_step(rig) || lockstep_counter_add(S, "c", INT64_C(1) << 52),
          lockstep_counter_add(S, "c", 1));
    WRONG(0, lockstep_counter_read(S, "c", NULL));
    WRONG(0, lockstep_metric_add(S, NULL, LOCKSTEP_METRIC_SUM, 1));
    WRONG(0, lockstep_metric_add(S, "two words", LOCKSTEP_METRIC_SUM, 1));
    WRONG(0, lockstep_metric_add(S, "m", (lockstep_metric_kind)9, 1));
    WRONG(open_step(rig) || lockstep_metric_add(S, "m", LOCKSTEP_METRIC_SUM, 1),
          lockstep_metric_add(S, "m", LOCKSTEP_METRIC_MEAN, 1));
    WRONG(0, lockstep_metric_read(S, "m", NULL, NULL));
    WRONG(0, lockstep_mark(S, NULL));
    WRONG(0, lockstep_resume(S));
    WRONG(lockstep_pause(S, "p", 1), lockstep_pause(S, "p", 1));
    WRONG(ready(rig), lockstep_session_save(S, "/no/such/file"));
    WRONG(ready(rig), lockstep_session_save(S, NULL));
    WRONG(open_step(rig), lockstep_session_save(S, "/tmp/lockstep-never"));
    WRONG(0, lockstep_layout_save(S, "/tmp/lockstep-never"));
    WRONG(add(rig, "m", "a", "b"), lockstep_session_load(S, "/no/such/file"));
    WRONG(ready(rig), lockstep_session_load(S, "/no/such/file"));
    WRONG(0, lockstep_alloc(S, SIZE_MAX, (void **)numbers));
    WRONG(0, lockstep_alloc(S, 1, NULL));
    WRONG(0, lockstep_free(S, numbers));
    WRONG(add(rig, "m", "a", "b"), lockstep_module_gradients(M, (void *[1]){0}, 1));
    *text = NULL;
    return 0;
}

// The wrong calls, by theme. Each function makes the call with a number, and sets *text to the
// call, or to NULL if there is none.
static int (*const themes[])(struct rig *rig, uint32_t number, const char **text) = {
    wrong_modules, wrong_steps, wrong_collectives, wrong_others};

struct config_case {
    const char *name, *variable, *value;
    int change;
};
static const struct config_case configs[] = {
    {"job empty", NULL, NULL, 1},
    {"job blank", NULL, NULL, 2},
    {"job slash", NULL, NULL, 3},
    {"job umlaut", NULL, NULL, 4},
    {"job long", NULL, NULL, 5},
    {"rank hint", "LOCKSTEP_RANK_HINT", "7", 0},
    {"root", NULL, NULL, 6},
    {"transport", NULL, NULL, 7},
    {"continue", NULL, NULL, 8},
    {"on_failure", NULL, NULL, 9},
    {"uneven", NULL, NULL, 10},
    {"order", NULL, NULL, 11},
    {"unplanned", NULL, NULL, 12},
    {"threads", NULL, NULL, 13},
    {"wait_while_open", NULL, NULL, 14},
    {"struct", NULL, NULL, 15},
    {"reserved", NULL, NULL, 16},
    {"nice", NULL, NULL, 17},
    {"host_id long", NULL, NULL, 18},
    {"host_id empty", NULL, NULL, 19},
    {"cpus", "LOCKSTEP_ENGINE_CPUS", "x", 0},
    {"cpus absent", "LOCKSTEP_ENGINE_CPUS", "900-901", 0},
    {"nice env", "LOCKSTEP_ENGINE_NICE", "99", 0},
    {"ports", "LOCKSTEP_DATA_PORTS", "x", 0},
    {"device", "LOCKSTEP_DEVICE", "gpu", 0},
    {"trace", "LOCKSTEP_TRACE_DIR", "/no/such/dir", 0},
    {"encryption", "LOCKSTEP_DATA_ENCRYPTION", "x", 0},
    {"log", "LOCKSTEP_LOG", "x", 0},
    {"slots", "LOCKSTEP_SLOTS", "x", 0},
    {"unknown", "LOCKSTEP_FROBNICATE", "x", 0},
    {"timeout", "LOCKSTEP_OPEN_TIMEOUT_MS", "x", 0},
    {"transport env", "LOCKSTEP_TRANSPORT", "x", 0},
    {"halt", "LOCKSTEP_HALT_TIMEOUT_MS", "x", 0},
    {"abort", "LOCKSTEP_ABORT_MS", "-1", 0},
    {"insecure", "LOCKSTEP_INSECURE_PLAINTEXT", "x", 0},
    {"order env", "LOCKSTEP_ORDER", "x", 0},
    {"unplanned env", "LOCKSTEP_UNPLANNED", "x", 0},
    {"on_failure env", "LOCKSTEP_ON_FAILURE", "x", 0},
    {"advertise", "LOCKSTEP_ADVERTISE", "nothing-such", 0},
    {"world", "LOCKSTEP_WORLD_SIZE", "x", 0},
    {"rank hint text", "LOCKSTEP_RANK_HINT", "x", 0},
    {"window", "LOCKSTEP_WORLD_WINDOW_MS", "x", 0},
};

static void change_config(struct lockstep_config *config, int change)
{
    switch (change) {
    case 1:
        config->job = "";
        break;
    case 2:
        config->job = "a b";
        break;
    case 3:
        config->job = "a/b";
        break;
    case 4:
        config->job = "\xc3\xbc";
        break;
    case 5:
        config->job = long_name;
        break;
    case 6:
        config->root = 7;
        break;
    case 7:
        config->transport = (lockstep_transport_kind)9;
        break;
    case 8:
        config->on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
        break;
    case 9:
        config->on_failure = (lockstep_on_failure)9;
        break;
    case 10:
        config->uneven = (lockstep_uneven)9;
        break;
    case 11:
        config->order = (lockstep_order)9;
        break;
    case 12:
        config->unplanned = (lockstep_unplanned)9;
        break;
    case 13:
        config->trainer_threads = 1000000;
        break;
    case 14:
        config->wait_while_open = 2;
        break;
    case 15:
        config->struct_bytes = 3;
        break;
    case 16:
        config->reserved = 1;
        break;
    case 17:
        config->engine_nice = 99;
        break;
    case 18:
        config->host_id = long_name;
        break;
    case 19:
        config->host_id = "";
        break;
    }
}

// ---- Worlds ------------------------------------------------------------------------------------

// The line of a table that a world runs: a wrong configuration, or a wrong call.
struct line {
    const struct config_case *config; // NULL: a wrong call.
    uint32_t theme;
    uint32_t number;
    const char *text[2]; // By rank.
    int status[2]; // By rank.
};

// Opens a session, makes the wrong call, and closes the session when all ranks have done so.
static int run_line(struct line *line, struct lockstep_config *config, struct rank *rank)
{
    struct rig rig = {0};
    const char **text = &line->text[rank ? rank->rank : 0];
    change_config(config, line->config ? line->config->change : 0);
    int status = lockstep_open(config, &rig.session);
    if (line->config)
        *text = line->config->name;
    else if (status == 0)
        status = themes[line->theme](&rig, line->number, text);
    if (rank)
        rank_meet(rank);
    if (rig.session)
        lockstep_close(rig.session);
    return status;
}

static void body(struct rank *rank)
{
    struct line *line = rank->context;
    struct lockstep_config config = rank_config(rank);
    line->status[rank->rank] = run_line(line, &config, rank);
}

static int in_world(struct line *line, uint32_t size)
{
    struct setting setting = setting_named("shared");
    setting.world_size = size;
    const struct cluster_test test = {
        .setting = &setting, .body = body, .context = line, .without_session = true};
    ranks_run_test(&test);
    if (size == 2 && line->status[0] != line->status[1])
        fail_msg("%s: %s on rank 0, %s on rank 1", line->text[0],
                 lockstep_status_name(line->status[0]), lockstep_status_name(line->status[1]));
    return line->status[0];
}

static int alone(struct line *line)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    return run_line(line, &config, NULL);
}

// Returns false if there is no such line.
static bool compare(struct line *line)
{
    const char *variable = line->config ? line->config->variable : NULL;
    if (variable)
        setenv(variable, line->config->value, 1);
    const int solo = alone(line);
    const int two = line->text[0] ? in_world(line, 2) : 0;
    const int one = line->text[0] ? in_world(line, 1) : 0;
    if (variable)
        unsetenv(variable);
    if (!line->text[0])
        return false;
    if (two == SKIPPED || one != two || solo != two)
        fail_msg("%s: %s alone, %s in a world of one, %s in a world of two", line->text[0],
                 lockstep_status_name(solo), lockstep_status_name(one), lockstep_status_name(two));
    return true;
}

static void test_configurations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++)
        compare(&(struct line){.config = &configs[i]});
}

static void test_calls(void **state)
{
    uint32_t lines = 0;
    (void)state;
    for (uint32_t theme = 0; theme < sizeof(themes) / sizeof(themes[0]); theme++) {
        for (uint32_t i = 0; compare(&(struct line){.theme = theme, .number = i}); i++)
            lines++;
    }
    assert_true(lines > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_configurations),
                                       cmocka_unit_test(test_calls)};
    memset(long_name, 'x', sizeof(long_name) - 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
