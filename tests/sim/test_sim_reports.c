// SPDX-License-Identifier: Apache-2.0
//
// Reports of gradients against the end of their call, in every order (interleave.h). The code is
// the library's: the files below are compiled here with atomic operations that are points. The
// world is one rank without a coordinator; its session goes through lockstep_step_end and into the
// next step. Two rules hold in every order. A report that returned OK is in the result of exactly
// the step whose call it met. A report that was refused is in none.

#include "tests/sim/interleave_atomics.h"

#include "worker/session/module/claims.h"

// The outcome of a report is judged by the call that it finds open.
static struct opened note_opened(const struct lockstep_module *module);
#define opened_read note_opened

#include "worker/api/call.c"
#include "worker/api/step.c"
#include "worker/session/module/calls.c"
#include "worker/session/module/claims.c"
#include "worker/session/module/contribution.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define COUNT 2 // Parameters: the first is always reported, the last one is the question.
#define ASKED 1
#define STEPS 2
#define WEIGHT 2
#define GRADIENT 8.0f // Gradients of kind sum: the result is half of it.

// The subject of one exploration.
struct question {
    const char *what;
    uint32_t reporters; // Threads that report the last parameter once.
    uint64_t ready_count;
    uint64_t calls_per_step;
    uint64_t replicas;
    bool aborts; // True if the trainer aborts the call instead of ending it.
    bool declares; // True if the trainer declares the parameter unused before it ends the call.
    uint32_t steps; // Number of steps after which a late report must be refused; at most STEPS.
};

struct answers {
    const struct question *question;
    lockstep_session *session;
    lockstep_module *module;
    float data[2 * COUNT];
    float gradients[2 * COUNT];
    int status[INTERLEAVE_THREADS]; // Statuses that the reports returned.
    uint64_t met[INTERLEAVE_THREADS]; // Serial of the call that a report found open; 0: none.
    uint64_t serials[STEPS]; // The last call of each step.
    uint64_t earliest[STEPS]; // The first call of each step.
    bool used[STEPS]; // True if the result of the step has the last parameter as used.
    int ended[STEPS]; // Statuses that lockstep_step_end returned.
};

static struct answers answers;

static void check(int status)
{
    if (status < 0)
        fprintf(stderr, "%s\n", lockstep_error_text());
    assert_true(status >= 0);
}

// ---- The threads -------------------------------------------------------------------------------

static _Thread_local uint32_t reporter; // 0: this thread reports nothing that is asked about.

#undef opened_read
static struct opened note_opened(const struct lockstep_module *module)
{
    const struct opened open = opened_read(module);
    if (reporter > 0)
        answers.met[reporter] = open.serial;
    return open;
}

static void report(uint32_t thread)
{
    const uint32_t replica = answers.question->replicas > 1 ? thread - 1 : 0;
    reporter = thread;
    answers.status[thread] =
        lockstep_replica_ready(answers.module, NULL, replica, ASKED, NULL, NULL);
}

static void first_report(void *context)
{
    (void)context;
    report(1);
}

static void second_report(void *context)
{
    (void)context;
    report(2);
}

// Reports parameter 0, with all its replicas.
static void report_rest(void)
{
    for (uint32_t r = 0; r < answers.question->replicas; r++)
        (void)lockstep_replica_ready(answers.module, NULL, r, 0, NULL, NULL);
}

static void end_call(lockstep_call *call)
{
    const uint32_t asked = ASKED;
    if (answers.question->declares)
        (void)lockstep_call_unused(call, &asked, 1);
    (void)(answers.question->aborts ? lockstep_call_abort(call) : lockstep_call_end(call));
}

static void end_step(uint32_t step)
{
    answers.ended[step] = lockstep_step_end(answers.session, NULL);
    answers.used[step] = answers.module->contributions[0].used_anywhere[ASKED];
}

// The first call of the first step is open as this begins.
static void trainer(void *context)
{
    const struct lockstep_step_options options = {.struct_bytes = sizeof(options),
                                                  .weight = WEIGHT};
    (void)context;
    for (uint32_t step = 0; step < answers.question->steps; step++) {
        lockstep_call *call = answers.module->calls;
        if (step > 0)
            (void)lockstep_step_begin(answers.session, &options, NULL);
        for (uint64_t i = 0; i < answers.question->calls_per_step; i++, call++) {
            if (step + i > 0)
                (void)lockstep_call_begin(answers.module, &call);
            report_rest();
            answers.serials[step] = call->serial;
            answers.earliest[step] = i == 0 ? call->serial : answers.earliest[step];
            end_call(call);
            if (answers.question->aborts)
                break;
        }
        end_step(step);
    }
}

// ---- Executions --------------------------------------------------------------------------------

static void begin(void *context)
{
    const struct lockstep_step_options options = {.struct_bytes = sizeof(options),
                                                  .weight = WEIGHT};
    lockstep_call *call;
    (void)context;
    for (uint32_t i = 0; i < 2 * COUNT; i++)
        answers.gradients[i] = GRADIENT;
    memset(answers.used, 0, sizeof(answers.used));
    check(lockstep_step_begin(answers.session, &options, NULL));
    check(lockstep_call_begin(answers.module, &call));
}

// The step whose call a report met; STEPS: none.
static uint32_t step_of(uint64_t serial)
{
    for (uint32_t step = 0; step < answers.question->steps; step++) {
        if (serial >= answers.earliest[step] && serial <= answers.serials[step])
            return step;
    }
    return STEPS;
}

static bool say(const char *what, uint32_t step)
{
    fprintf(stderr, "%s: %s (step %" PRIu32 ")\n", answers.question->what, what, step + 1);
    return false;
}

// Checks that a used gradient was reported, and that every accepted report is in a result.
static bool check_reports(void *context)
{
    bool expected[STEPS] = {false};
    float gradient = GRADIENT;
    (void)context;
    for (uint32_t i = 1; i <= answers.question->reporters; i++) {
        const uint32_t step = step_of(answers.met[i]);
        if (answers.status[i] == 0 && step == STEPS)
            return say("a report outside a call returned OK", 0);
        if (answers.status[i] == 0)
            expected[step] = true;
    }
    for (uint32_t step = 0; step < answers.question->steps; step++) {
        if (answers.ended[step] < 0)
            return say(lockstep_error_text(), step);
        if (answers.used[step] && !expected[step])
            return say("counts what no report of this step brought", step);
        if (!answers.used[step] && expected[step])
            return say("a report that returned OK is not in the result", step);
        gradient = answers.used[step] ? gradient / WEIGHT : gradient;
    }
    if (answers.question->replicas == 1 && answers.gradients[ASKED] != gradient)
        return say("another value than the reports make", answers.question->steps - 1);
    return true;
}

// True if the word is a time or a count, on which no decision depends.
static bool is_statistics(const volatile void *word, void *context)
{
    const volatile char *at = word;
    const char *progress = (const char *)answers.session->progress;
    const char *times = (const char *)&answers.session->step.times;
    (void)context;
    return (at >= progress && at < progress + sizeof(*answers.session->progress)) ||
           (at >= times && at < times + sizeof(answers.session->step.times));
}

static void open_session(const struct question *question)
{
    struct lockstep_parameter parameters[2 * COUNT];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    memset(&answers, 0, sizeof(answers));
    answers.question = question;
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        parameters[i] = (struct lockstep_parameter)LOCKSTEP_PARAMETER_INIT;
        parameters[i].name = i % COUNT == ASKED ? "asked" : "other";
        parameters[i].data = &answers.data[i];
        parameters[i].gradient = &answers.gradients[i];
        parameters[i].ready_count = i % COUNT == ASKED ? question->ready_count : 1;
    }
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = COUNT;
    config.gradient_kind = LOCKSTEP_GRADIENT_SUM;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    config.on_abort = LOCKSTEP_ABORT_ACCEPT;
    config.calls_per_step = question->calls_per_step;
    config.replicas = question->replicas;
    check(lockstep_open(NULL, &answers.session));
    check(lockstep_module_register(answers.session, &config, &answers.module));
    check(lockstep_start(answers.session));
}

static void explore(const struct question *question)
{
    const struct interleave_program program = {.threads = 1 + question->reporters,
                                               .run = {trainer, first_report, second_report},
                                               .begin = begin,
                                               .check = check_reports,
                                               .ignores = is_statistics};
    struct interleave_result result;
    open_session(question);
    interleave_explore(&program, &result);
    assert_false(result.failed);
    check(lockstep_close(answers.session));
    print_message("%s: %" PRIu64 " orders, %" PRIu64 " given up, at most %" PRIu64 " points\n",
                  question->what, result.executions, result.redundant, result.longest);
}

static void every_order(void **state)
{
    explore(*state);
}

int main(void)
{
    static const struct question questions[] = {
        {"ended", 1, 1, 1, 1, false, false, 2},
        {"given_up", 1, 1, 1, 1, true, false, 2},
        {"declared_unused", 1, 1, 1, 1, false, true, 2},
        {"two_calls", 1, 1, 2, 1, false, false, 2},
        {"reported_twice", 2, 2, 1, 1, false, false, 1},
        {"two_replicas", 2, 1, 1, 2, false, false, 1},
    };
    struct CMUnitTest tests[sizeof(questions) / sizeof(questions[0])];
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        tests[i] = (struct CMUnitTest){.name = questions[i].what,
                                       .test_func = every_order,
                                       .initial_state = (void *)(uintptr_t)&questions[i]};
    unsetenv("LOCKSTEP_COORDINATOR");
    return cmocka_run_group_tests_name("reports in every order", tests, NULL, NULL);
}
