// SPDX-License-Identifier: Apache-2.0
//
// Names of functions when the file system that holds their files answers no more: the caller goes
// on without names, no second thread goes there, and a thread that comes back late does no harm.
// symbols_name is this test's own, and stands for the file system.

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "worker/stacks/namer.h"
#include "worker/stacks/symbols.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic(bool) dead; // True while files do not answer.
static _Atomic(unsigned) opened; // How often files were asked.
static sem_t answers; // Posted for each thread that may come back.
static sem_t came_back;

void symbols_name(struct stack_frame *frames, const uintptr_t *addresses, size_t count, bool files)
{
    if (files) {
        atomic_fetch_add(&opened, 1);
        if (atomic_load(&dead)) {
            while (sem_wait(&answers) != 0)
                ;
        }
    }
    for (size_t i = 0; i < count; i++) {
        frames[i].offset = addresses[i];
        strcpy(frames[i].object, "object");
        strcpy(frames[i].symbol, files ? "symbol" : "");
    }
    if (files)
        sem_post(&came_back);
}

static void name(struct namer *namer, const char *symbol)
{
    const uintptr_t addresses[2] = {7, 9};
    struct stack_frame frames[2];
    memset(frames, 0x55, sizeof(frames));
    namer_name(namer, frames, addresses, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(frames[i].offset, addresses[i]);
        assert_string_equal(frames[i].object, "object");
        assert_string_equal(frames[i].symbol, symbol);
    }
}

static int setup(void **state)
{
    (void)state;
    atomic_store(&dead, false);
    atomic_store(&opened, 0);
    return sem_init(&answers, 0, 0) | sem_init(&came_back, 0, 0);
}

static void answer(void)
{
    atomic_store(&dead, false);
    sem_post(&answers);
    while (sem_wait(&came_back) != 0)
        ;
}

static void test_names(void **state)
{
    struct namer *namer = namer_open();
    (void)state;
    assert_non_null(namer);
    name(namer, "symbol");
    name(namer, "symbol");
    assert_int_equal(atomic_load(&opened), 2);
    namer_close(namer);
    namer_close(NULL);
}

// Condition: files do not answer. Decision: the caller has objects and offsets after NAMER_MS. A
// second caller does not wait at all. When files answer again, there are names again.
static void test_dead_file_system(void **state)
{
    struct namer *namer = namer_open();
    (void)state;
    assert_non_null(namer);
    atomic_store(&dead, true);
    const uint64_t began_ms = clock_now_ms();
    name(namer, "");
    assert_in_range(clock_now_ms() - began_ms, NAMER_MS - 1, test_bound_ms(2 * NAMER_MS));
    const uint64_t again_ms = clock_now_ms();
    name(namer, "");
    assert_in_range(clock_now_ms() - again_ms, 0, test_bound_ms(NAMER_MS / 2));
    assert_int_equal(atomic_load(&opened), 1);
    answer();
    // The thread has what it wanted, and ends soon; until then there are no names.
    const uint64_t end_ms = clock_now_ms() + test_bound_ms(5000);
    while (atomic_load(&opened) == 1 && clock_now_ms() < end_ms) {
        const uintptr_t address = 7;
        struct stack_frame frame = {.offset = 0};
        namer_name(namer, &frame, &address, 1);
    }
    name(namer, "symbol");
    namer_close(namer);
}

// Condition: the session closes meanwhile. Decision: the close does not wait, and the thread frees
// what it works on when it comes back.
static void test_close_does_not_wait(void **state)
{
    struct namer *namer = namer_open();
    (void)state;
    assert_non_null(namer);
    atomic_store(&dead, true);
    name(namer, "");
    const uint64_t began_ms = clock_now_ms();
    namer_close(namer);
    assert_in_range(clock_now_ms() - began_ms, 0, test_bound_ms(500));
    answer();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_names, setup),
        cmocka_unit_test_setup(test_dead_file_system, setup),
        cmocka_unit_test_setup(test_close_does_not_wait, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
