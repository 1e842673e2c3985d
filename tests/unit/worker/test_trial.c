// SPDX-License-Identifier: Apache-2.0
//
// Duels: which tasks run in which way and when, what is measured, and the cost of measuring.

#include "worker/transport/host/trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#define BYTES 1000000
#define ROW (2 * TRIAL_TASKS)

// A machine on which the two ways take so long.
struct machine {
    struct trial trial;
    uint64_t now_ns;
    uint64_t took_ns[2];
    uint64_t spent_ns; // Ever.
    uint32_t tried; // Tasks of trials.
};

// Runs one task from begin to end. Returns its way.
static uint32_t run(struct machine *machine)
{
    uint32_t way = 2;
    const uint32_t task = trial_give(&machine->trial, machine->now_ns, &way);
    assert_true(way < 2);
    machine->now_ns += machine->took_ns[way];
    machine->spent_ns += machine->took_ns[way];
    machine->tried += task != TRIAL_NONE;
    if (task != TRIAL_NONE)
        trial_took(&machine->trial, task, machine->took_ns[way], BYTES, machine->now_ns);
    return way;
}

// Gives out the tasks of a trial, which take so long, in their order.
static void fight(struct trial *trial, const uint64_t took_ns[ROW], uint64_t bytes)
{
    uint32_t way;
    for (uint32_t i = 0; i < ROW; i++)
        assert_int_equal(trial_give(trial, trial->next_ns, &way), i + 1);
    for (uint32_t i = 0; i < ROW; i++)
        trial_took(trial, i + 1, took_ns[i], bytes, trial->next_ns);
}

static void begins_at_once(void **state)
{
    struct trial trial = {0};
    uint32_t way;
    (void)state;
    for (uint32_t i = 0; i < ROW; i++) {
        assert_int_equal(trial_give(&trial, 5, &way), i + 1);
        assert_int_equal(way, i < TRIAL_TASKS ? 0 : 1);
    }
    // Results before all ranks are heard do not count.
    assert_int_equal(trial_give(&trial, 5, &way), TRIAL_NONE);
    assert_int_equal(way, 0);
}

// A task that had nothing to do ends before those that were given earlier.
static void hears_in_any_order(void **state)
{
    static const uint32_t order[ROW] = {2, 1, 8, 3, 7, 5, 6, 4};
    struct trial trial = {0};
    uint32_t way;
    (void)state;
    for (uint32_t i = 0; i < ROW; i++)
        assert_int_equal(trial_give(&trial, 5, &way), i + 1);
    for (uint32_t i = 0; i < ROW; i++)
        trial_took(&trial, order[i], order[i] > TRIAL_TASKS ? 500 : 900, order[i] == 8 ? 0 : BYTES,
                   5);
    assert_int_equal(trial.chosen, 1);
    assert_int_equal(trial.given, 0);
}

static void faster_is_chosen(void **state)
{
    static const struct {
        uint64_t took_ns[ROW];
        uint64_t bytes;
        uint32_t chosen;
    } cases[] = {
        {{900, 900, 900, 900, 500, 500, 500, 500}, BYTES, 1},
        {{900, 900, 900, 900, 901, 901, 901, 901}, BYTES, 0},
        // Hardly faster is not faster.
        {{10000, 10000, 10000, 10000, 9600, 9600, 9600, 9600}, 10000, 0},
        {{10000, 10000, 10000, 10000, 9400, 9400, 9400, 9400}, 10000, 1},
        // The first of each row finds the caches of the other way.
        {{1000, 9000, 9000, 9000, 8000, 8000, 8000, 8000}, 1000, 1},
        {{9000, 9000, 9000, 9000, 1000, 9000, 9000, 9000}, 1000, 0},
        // A disturbance of one task in a row does not matter.
        {{9000, 90000, 9000, 9000, 5000, 70000, 5000, 80000}, 1000, 1},
        {{9000, 90000, 90000, 5000, 7000, 7000, 7000, 7000}, 1000, 0},
        // Nothing to do says nothing.
        {{900, 900, 900, 900, 0, 0, 0, 0}, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct trial trial = {0};
        fight(&trial, cases[i].took_ns, cases[i].bytes);
        assert_int_equal(trial.chosen, cases[i].chosen);
        assert_int_equal(trial.given, 0);
    }
}

// By the time for equally many bytes.
static void sizes_may_differ(void **state)
{
    struct trial trial = {0};
    uint32_t way;
    (void)state;
    for (uint32_t i = 0; i < ROW; i++)
        (void)trial_give(&trial, 0, &way);
    for (uint32_t i = 0; i < ROW; i++) {
        const bool other = i >= TRIAL_TASKS;
        trial_took(&trial, i + 1, other ? 1500 : 1000, other ? 2 * BYTES : BYTES, 0);
    }
    assert_int_equal(trial.chosen, 1);
}

static void rests_longer_and_longer(void **state)
{
    static const uint64_t equal[ROW] = {100, 100, 100, 100, 100, 100, 100, 100};
    static const uint64_t turned[ROW] = {100, 100, 100, 100, 10, 10, 10, 10};
    struct trial trial = {0};
    uint64_t pause_ns = TRIAL_PAUSE_NS;
    uint32_t way;
    (void)state;
    for (int i = 0; i < 10; i++) {
        const uint64_t before_ns = trial.next_ns;
        fight(&trial, equal, 1000);
        assert_int_equal(trial.next_ns - before_ns, pause_ns);
        assert_int_equal(trial_give(&trial, trial.next_ns - 1, &way), TRIAL_NONE);
        pause_ns = 2 * pause_ns < TRIAL_PAUSE_MOST_NS ? 2 * pause_ns : TRIAL_PAUSE_MOST_NS;
    }
    // A change may be the first of several.
    const uint64_t before_ns = trial.next_ns;
    fight(&trial, turned, 1000);
    assert_int_equal(trial.chosen, 1);
    assert_int_equal(trial.next_ns - before_ns, TRIAL_PAUSE_NS);
}

// Cores that are far from each other for a while: the better way is found soon, both times, and
// trying costs next to nothing.
static void follows_the_machine(void **state)
{
    static const struct {
        uint64_t took_ns[2];
        uint32_t better;
    } spells[] = {
        {{2000000, 3300000}, 0}, {{12000000, 2200000}, 1}, {{2000000, 3300000}, 0},
        {{60000, 85000}, 0},     {{470000, 75000}, 1},
    };
    struct machine machine = {.now_ns = 77};
    (void)state;
    for (size_t i = 0; i < sizeof(spells) / sizeof(spells[0]); i++) {
        const uint64_t begin_ns = machine.now_ns;
        const uint32_t better = spells[i].better;
        machine.took_ns[0] = spells[i].took_ns[0];
        machine.took_ns[1] = spells[i].took_ns[1];
        // The last pause may have been one that a dear trial asked for.
        while (machine.now_ns < begin_ns + 4000000000)
            (void)run(&machine);
        assert_int_equal(machine.trial.chosen, better);
        const uint64_t since_ns = machine.now_ns;
        uint64_t tasks = 0;
        for (machine.spent_ns = 0; machine.now_ns < since_ns + 20000000000; tasks++)
            (void)run(&machine);
        assert_int_equal(machine.trial.chosen, better);
        assert_true(machine.spent_ns < tasks * machine.took_ns[better] * 103 / 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(begins_at_once),          cmocka_unit_test(hears_in_any_order),
        cmocka_unit_test(faster_is_chosen),        cmocka_unit_test(sizes_may_differ),
        cmocka_unit_test(rests_longer_and_longer), cmocka_unit_test(follows_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
