// SPDX-License-Identifier: Apache-2.0
// Threads, owners, locks and deadlines. Nothing here sleeps to synchronize.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"

struct shared {
    struct mutex mutex;
    struct cond changed;
    struct thread_id_check owner;
    unsigned turns;
    bool passed_as_stranger;
    char name[THREAD_NAME_BYTES];
    sigset_t mask;
};

static void shared_init(struct shared *shared)
{
    memset(shared, 0, sizeof(*shared));
    mutex_init(&shared->mutex);
    cond_init(&shared->changed);
}

static void shared_fini(struct shared *shared)
{
    cond_fini(&shared->changed);
    mutex_fini(&shared->mutex);
}

static void describe_itself(void *argument)
{
    struct shared *shared = argument;
    pthread_getname_np(pthread_self(), shared->name, sizeof(shared->name));
    pthread_sigmask(SIG_SETMASK, NULL, &shared->mask);
    shared->passed_as_stranger = thread_owned(&shared->owner);
}

static void test_thread_has_a_name_and_takes_no_signals(void **state)
{
    (void)state;
    struct shared shared;
    struct thread thread;
    sigset_t before;
    shared_init(&shared);
    thread_own(&shared.owner);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(thread_start(&thread, "lockstep-engine-1", describe_itself, &shared), 0);
    thread_join(&thread);
    assert_string_equal(shared.name, "lockstep-engine");
    assert_true(sigismember(&shared.mask, SIGTERM));
    assert_true(sigismember(&shared.mask, SIGUSR1));
    assert_false(sigismember(&shared.mask, SIGSEGV));
    pthread_sigmask(SIG_SETMASK, NULL, &shared.mask);
    assert_int_equal(sigismember(&shared.mask, SIGTERM), sigismember(&before, SIGTERM));
    assert_false(shared.passed_as_stranger);
    shared_fini(&shared);
}

static void test_owner(void **state)
{
    (void)state;
    struct thread_id_check check = {0};
    assert_true(thread_owned(&check));
    thread_own(&check);
    thread_assert(&check);
    thread_disown(&check);
    assert_true(thread_owned(&check));
}

#define TURNS 1000

// Waits until the count is odd or even, as the thread's side is, and advances it.
static void take_turns(struct shared *shared, unsigned side)
{
    mutex_lock(&shared->mutex);
    while (shared->turns < 2 * TURNS) {
        if (shared->turns % 2 == side) {
            shared->turns++;
            cond_broadcast(&shared->changed);
        } else {
            cond_wait(&shared->changed, &shared->mutex);
        }
        mutex_assert_held(&shared->mutex);
    }
    mutex_unlock(&shared->mutex);
}

static void take_odd_turns(void *argument)
{
    take_turns(argument, 1);
}

static void test_turns(void **state)
{
    (void)state;
    struct shared shared;
    struct thread thread;
    shared_init(&shared);
    assert_false(mutex_held(&shared.mutex));
    assert_int_equal(thread_start(&thread, "odd", take_odd_turns, &shared), 0);
    take_turns(&shared, 0);
    thread_join(&thread);
    assert_int_equal(shared.turns, 2 * TURNS);
    assert_false(mutex_held(&shared.mutex));
    shared_fini(&shared);
}

static void test_deadline(void **state)
{
    (void)state;
    struct shared shared;
    shared_init(&shared);
    mutex_lock(&shared.mutex);
    // Passed already, and a little ahead; a wake-up without a cause may come first.
    assert_false(cond_wait_until(&shared.changed, &shared.mutex, 0));
    uint64_t deadline_ms = clock_now_ms() + 30;
    while (cond_wait_until(&shared.changed, &shared.mutex, deadline_ms))
        continue;
    assert_true(clock_now_ms() >= deadline_ms);
    assert_true(mutex_held(&shared.mutex));
    mutex_unlock(&shared.mutex);
    shared_fini(&shared);
}

static void test_clock(void **state)
{
    (void)state;
    uint64_t before_ms = clock_now_ms();
    uint64_t now_us = clock_now_us();
    uint64_t after_ms = clock_now_ms();
    assert_true(now_us / 1000 >= before_ms && now_us / 1000 <= after_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_has_a_name_and_takes_no_signals),
        cmocka_unit_test(test_owner),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
