// SPDX-License-Identifier: Apache-2.0
//
// The registry of live handles: what is live, of which kind, when it is full, that it does not wear
// out, and eight threads at once.

#include "protos/limits.h"
#include "tests/support/bounds.h"
#include "worker/support/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// Addresses to register: never read.
static uint64_t memory[3 * LOCKSTEP_MAX_HANDLES];

static void test_live_and_stale(void **state)
{
    (void)state;
    assert_int_equal(handle_add(HANDLE_MODULE, &memory[0]), 0);
    assert_true(handle_is(HANDLE_MODULE, &memory[0]));
    assert_false(handle_is(HANDLE_SESSION, &memory[0]));
    assert_false(handle_is(HANDLE_MODULE, &memory[1]));
    handle_remove(&memory[0]);
    assert_false(handle_is(HANDLE_MODULE, &memory[0]));
    handle_remove(&memory[0]);
    assert_int_equal(handle_add(HANDLE_SESSION, &memory[0]), 0);
    assert_true(handle_is(HANDLE_SESSION, &memory[0]));
    assert_false(handle_is(HANDLE_MODULE, &memory[0]));
    handle_remove(&memory[0]);
}

static void test_any_pointer_will_do(void **state)
{
    const void *inside = (const char *)&memory[0] + 3;
    (void)state;
    assert_int_equal(handle_add(HANDLE_CALL, &memory[0]), 0);
    for (int kind = 0; kind < 8; kind++) {
        assert_false(handle_is((enum handle_kind)kind, NULL));
        assert_false(handle_is((enum handle_kind)kind, inside));
        assert_false(handle_is((enum handle_kind)kind, (const void *)(uintptr_t)7));
        assert_false(handle_is((enum handle_kind)kind, (const void *)UINTPTR_MAX));
        assert_false(handle_is((enum handle_kind)kind, (const void *)(UINTPTR_MAX - 7)));
        assert_int_equal(handle_is((enum handle_kind)kind, &memory[0]), kind == HANDLE_CALL);
    }
    handle_remove(NULL);
    handle_remove(inside);
    assert_true(handle_is(HANDLE_CALL, &memory[0]));
    handle_remove(&memory[0]);
}

static void test_full(void **state)
{
    (void)state;
    for (unsigned i = 0; i < LOCKSTEP_MAX_HANDLES; i++)
        assert_int_equal(handle_add(HANDLE_WORK, &memory[i]), 0);
    assert_int_equal(handle_add(HANDLE_WORK, &memory[LOCKSTEP_MAX_HANDLES]), -1);
    assert_false(handle_is(HANDLE_WORK, &memory[LOCKSTEP_MAX_HANDLES]));
    handle_remove(&memory[77]);
    assert_int_equal(handle_add(HANDLE_WORK, &memory[LOCKSTEP_MAX_HANDLES]), 0);
    for (unsigned i = 0; i <= LOCKSTEP_MAX_HANDLES; i++) {
        assert_int_equal(handle_is(HANDLE_WORK, &memory[i]), i != 77);
        handle_remove(&memory[i]);
    }
}

// Against a plain array of flags, in random order, much longer than the table.
static void test_does_not_wear_out(void **state)
{
    static bool live[3 * LOCKSTEP_MAX_HANDLES];
    uint64_t random = 88172645463325252u;
    unsigned count = 0;
    (void)state;
    const int rounds = test_slow() > 1 ? 50000 : 400000;
    for (int round = 0; round < rounds; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned i = (unsigned)((random >> 33) % (3 * LOCKSTEP_MAX_HANDLES));
        assert_int_equal(handle_is(HANDLE_CALL, &memory[i]), live[i]);
        if (live[i]) {
            handle_remove(&memory[i]);
            count--;
        } else {
            assert_int_equal(handle_add(HANDLE_CALL, &memory[i]),
                             count < LOCKSTEP_MAX_HANDLES ? 0 : -1);
            if (count == LOCKSTEP_MAX_HANDLES)
                continue;
            count++;
        }
        live[i] = !live[i];
    }
    for (unsigned i = 0; i < 3 * LOCKSTEP_MAX_HANDLES; i++)
        handle_remove(&memory[i]);
}

// ---- Threads ---------------------------------------------------------------------------------

enum {
    THREADS = 8,
    OWN = 64,
    ROUNDS = 2000,
    COMMON = 16
};

static atomic_uint wrong;

// Adds and removes handles of its own between those of the others, and always sees the common ones.
static void *thread_run(void *argument)
{
    unsigned self = *(const unsigned *)argument;
    for (unsigned round = 0; round < ROUNDS; round++) {
        const void *own = &memory[COMMON + (round % OWN) * THREADS + self];
        wrong += handle_is(HANDLE_WORK, own);
        wrong += handle_add(HANDLE_WORK, own) != 0;
        wrong += !handle_is(HANDLE_WORK, own);
        for (unsigned i = 0; i < COMMON; i++)
            wrong += !handle_is(HANDLE_MODULE, &memory[i]);
        handle_remove(own);
        wrong += handle_is(HANDLE_WORK, own);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[THREADS];
    unsigned numbers[THREADS];
    (void)state;
    for (unsigned i = 0; i < COMMON; i++)
        assert_int_equal(handle_add(HANDLE_MODULE, &memory[i]), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, thread_run, &numbers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
    for (unsigned i = 0; i < COMMON; i++)
        handle_remove(&memory[i]);
}

// Prints what a lookup costs; asserts nothing on time.
static void test_cost_of_a_lookup(void **state)
{
    enum {
        LOOKUPS = 2000000
    };
    static const unsigned loads[] = {8, 1000, LOCKSTEP_MAX_HANDLES};
    (void)state;
    for (unsigned l = 0, added = 0; l < 3; l++) {
        struct timespec begin, end;
        unsigned found = 0;
        for (; added < loads[l]; added++)
            assert_int_equal(handle_add(HANDLE_CALL, &memory[added]), 0);
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (unsigned i = 0, at = 0; i < LOOKUPS; i++, at = (at + 5) % added)
            found += handle_is(HANDLE_CALL, &memory[at]);
        clock_gettime(CLOCK_MONOTONIC, &end);
        assert_int_equal(found, LOOKUPS);
        print_message(
            "%u live: %.1f ns a lookup\n", added,
            ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) /
                (double)LOOKUPS);
    }
    for (unsigned i = 0; i < LOCKSTEP_MAX_HANDLES; i++)
        handle_remove(&memory[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live_and_stale), cmocka_unit_test(test_any_pointer_will_do),
        cmocka_unit_test(test_full),           cmocka_unit_test(test_does_not_wear_out),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_cost_of_a_lookup),
    };
    return cmocka_run_group_tests_name("handle", tests, NULL, NULL);
}
