// SPDX-License-Identifier: Apache-2.0
//
// The threads that have called a session, and the last of them: with threads that come and go, that
// call several sessions, and that take the memory of those that have ended.

#include "worker/session/session.h"
#include "worker/support/callers.h"

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct callers callers;

// Off the main thread, where cmocka's assertions cannot be used.
static void must(bool holds)
{
    if (!holds)
        abort();
}

// A thread that calls once and waits.
struct caller {
    pthread_t id;
    uint32_t tid;
    sem_t called, end;
    const char *name; // NULL: that of the program.
};

static void *caller_run(void *argument)
{
    struct caller *caller = argument;
    if (caller->name)
        pthread_setname_np(pthread_self(), caller->name);
    callers_note(&callers);
    caller->tid = (uint32_t)gettid();
    sem_post(&caller->called);
    while (sem_wait(&caller->end) != 0)
        ;
    return NULL;
}

static void caller_start_named(struct caller *caller, const char *name)
{
    memset(caller, 0, sizeof(*caller));
    caller->name = name;
    assert_int_equal(sem_init(&caller->called, 0, 0) | sem_init(&caller->end, 0, 0), 0);
    assert_int_equal(pthread_create(&caller->id, NULL, caller_run, caller), 0);
    while (sem_wait(&caller->called) != 0)
        ;
}

static void caller_start(struct caller *caller)
{
    caller_start_named(caller, NULL);
}

static void caller_end(struct caller *caller)
{
    sem_post(&caller->end);
    pthread_join(caller->id, NULL);
    sem_destroy(&caller->called);
    sem_destroy(&caller->end);
}

// A thread of the backend for torch.distributed calls after the trainer.
static void test_helper_is_not_last(void **state)
{
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    struct caller trainer, helper;
    (void)state;
    caller_start(&trainer);
    caller_start_named(&helper, "lockstep-c10d");
    assert_int_equal(callers_list(&callers, notes, LOCKSTEP_STACK_THREADS), 2);
    assert_int_equal(notes[0].tid, trainer.tid);
    assert_true(notes[0].last && !notes[1].last);
    caller_end(&helper);
    caller_end(&trainer);
}

static void test_last_caller_first(void **state)
{
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    struct caller waiting[3];
    (void)state;
    for (int i = 0; i < 3; i++)
        caller_start(&waiting[i]);
    assert_int_equal(callers_list(&callers, notes, LOCKSTEP_STACK_THREADS), 3);
    assert_int_equal(notes[0].tid, waiting[2].tid);
    assert_true(pthread_equal(notes[0].id, waiting[2].id));
    assert_true(notes[0].last);
    assert_false(notes[1].last || notes[2].last);
    assert_int_equal(callers_list(&callers, notes, 2), 2);
    for (int i = 2; i >= 0; i--)
        caller_end(&waiting[i]);
    assert_int_equal(callers_list(&callers, notes, LOCKSTEP_STACK_THREADS), 0);
}

static void *call_two_sessions(void *argument)
{
    static struct callers first, second;
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    (void)argument;
    callers_note(&first);
    must(callers_list(&first, notes, LOCKSTEP_STACK_THREADS) == 1 && notes[0].last);
    must(callers_list(&second, notes, LOCKSTEP_STACK_THREADS) == 0);
    callers_note(&second);
    for (int i = 0; i < 2; i++) {
        // The last caller of both, whichever it calls now.
        must(callers_list(&first, notes, LOCKSTEP_STACK_THREADS) == 1 && notes[0].last);
        must(callers_list(&second, notes, LOCKSTEP_STACK_THREADS) == 1 && notes[0].last);
        must(notes[0].tid == (uint32_t)gettid());
        callers_note(&first);
    }
    must(callers_list(NULL, notes, LOCKSTEP_STACK_THREADS) == 1 && !notes[0].last);
    return NULL;
}

static void test_two_sessions(void **state)
{
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    pthread_t id;
    (void)state;
    assert_int_equal(pthread_create(&id, NULL, call_two_sessions, NULL), 0);
    pthread_join(id, NULL);
    assert_int_equal(callers_list(NULL, notes, LOCKSTEP_STACK_THREADS), 0);
}

static void *call_once(void *argument)
{
    uint32_t *tid = argument;
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    callers_note(&callers);
    const uint32_t count = callers_list(&callers, notes, LOCKSTEP_STACK_THREADS);
    *tid = count == 1 && notes[0].last ? notes[0].tid : 0;
    must(*tid == (uint32_t)gettid());
    return NULL;
}

// A thread that has the memory of one that has ended is another one.
static void test_threads_in_turn(void **state)
{
    uint32_t tids[100];
    unsigned same = 0;
    pthread_t ids[100];
    (void)state;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(pthread_create(&ids[i], NULL, call_once, &tids[i]), 0);
        pthread_join(ids[i], NULL);
        same += i > 0 && pthread_equal(ids[i], ids[i - 1]);
    }
    assert_true(same > 0);
}

struct hook {
    lockstep_session *session;
    lockstep_module *module;
    uint32_t tid;
};

static void *report_gradient(void *argument)
{
    struct hook *hook = argument;
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    must(lockstep_grad_ready(hook->module, NULL, 0, NULL, NULL) == 0);
    const uint32_t count =
        callers_list(&hook->session->gate.callers, notes, LOCKSTEP_STACK_THREADS);
    must(count == 2 && notes[0].last && notes[0].tid == (uint32_t)gettid());
    hook->tid = notes[1].tid;
    return NULL;
}

// Public functions note who calls them, also a hook's thread that only ever reports gradients.
static void *train_a_step(void *argument)
{
    float value = 1, gradient = 0;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    struct hook hook;
    lockstep_call *call;
    pthread_t id;
    (void)argument;
    parameter.name = "w";
    parameter.data = &value;
    parameter.gradient = &gradient;
    config.name = "line";
    config.parameters = &parameter;
    config.parameter_count = 1;
    must(lockstep_open(NULL, &hook.session) == 0);
    must(lockstep_module_register(hook.session, &config, &hook.module) == 0);
    must(lockstep_start(hook.session) == 0);
    must(lockstep_step_begin(hook.session, NULL, NULL) == 0);
    must(lockstep_call_begin(hook.module, &call) == 0);
    must(pthread_create(&id, NULL, report_gradient, &hook) == 0);
    pthread_join(id, NULL);
    must(hook.tid == (uint32_t)gettid());
    must(lockstep_call_end(call) == 0);
    must(callers_list(&hook.session->gate.callers, notes, LOCKSTEP_STACK_THREADS) == 1);
    must(notes[0].last && notes[0].tid == (uint32_t)gettid());
    must(lockstep_step_end(hook.session, NULL) == 0);
    must(lockstep_close(hook.session) == 0);
    return NULL;
}

static void test_public_functions(void **state)
{
    pthread_t id;
    (void)state;
    assert_int_equal(pthread_create(&id, NULL, train_a_step, NULL), 0);
    pthread_join(id, NULL);
}

// More threads than places, twice: those that ended have made room.
static void test_places_are_given_back(void **state)
{
    static struct caller waiting[LOCKSTEP_STACK_THREADS + 8];
    struct thread_note notes[LOCKSTEP_STACK_THREADS + 8];
    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < LOCKSTEP_STACK_THREADS + 8; i++)
            caller_start(&waiting[i]);
        assert_int_equal(callers_list(&callers, notes, LOCKSTEP_STACK_THREADS + 8),
                         LOCKSTEP_STACK_THREADS);
        assert_false(notes[0].last); // The last caller has no place.
        for (int i = 0; i < LOCKSTEP_STACK_THREADS + 8; i++)
            caller_end(&waiting[i]);
        assert_int_equal(callers_list(&callers, notes, LOCKSTEP_STACK_THREADS + 8), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_helper_is_not_last), cmocka_unit_test(test_last_caller_first),
        cmocka_unit_test(test_two_sessions),       cmocka_unit_test(test_threads_in_turn),
        cmocka_unit_test(test_public_functions),   cmocka_unit_test(test_places_are_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
