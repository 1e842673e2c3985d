// SPDX-License-Identifier: Apache-2.0
//
// How a slot is repeated after a death (coordinator/redo.c): the rows of drawn reports against the
// rules, element by element, and reports that are refused.

#include "coordinator/redo.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum {
    MEMBERS = 9,
    ELEMENTS = 61,
    RUNS = 12,
    ROWS = ELEMENTS * MEMBERS
};

struct reports {
    struct redo_run runs[MEMBERS][RUNS];
    struct redo_report all[MEMBERS];
};

// A number below `bound`.
static uint64_t draw(uint64_t *state, uint64_t bound)
{
    return choice_random(state) % bound;
}

// Draws ascending runs that do not touch each other. About one member in four has none.
static void draw_report(uint64_t *random, struct redo_run *runs, struct redo_report *report,
                        uint64_t elements)
{
    uint64_t at = draw(random, 4) == 0 ? elements : draw(random, 8);
    *report = (struct redo_report){.contributed = true, .runs = runs};
    while (at < elements && report->run_count < RUNS) {
        const uint64_t end = at + 1 + draw(random, 20);
        runs[report->run_count].first = at;
        runs[report->run_count++].end = end < elements ? end : elements;
        at = end + 1 + draw(random, 6);
    }
}

static bool holds(const struct redo_report *report, uint64_t element)
{
    for (uint32_t i = 0; i < report->run_count; i++) {
        if (report->runs[i].first <= element && element < report->runs[i].end)
            return true;
    }
    return false;
}

// The rules of one element: everybody, nobody, or some have it.
static void check_element(const struct reports *reports, uint32_t members, uint64_t element,
                          const struct redo_row *row)
{
    uint32_t holders = 0;
    for (uint32_t i = 0; i < members; i++)
        holders += holds(&reports->all[i], element);
    if (holders == members) {
        assert_null(row);
        return;
    }
    assert_non_null(row);
    assert_true(row->owner < members);
    assert_int_equal(row->kind, holders == 0 ? REDO_REDUCE : REDO_HAVE);
    if (holders == 0)
        return;
    assert_true(holds(&reports->all[row->owner], element));
    assert_false(holds(&reports->all[(row->owner + 1) % members], element));
}

static void check_rows(const struct reports *reports, uint32_t members, uint64_t elements,
                       const struct redo_row *rows, uint32_t count)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(rows[i].first < rows[i].end && rows[i].end <= elements);
        assert_true(i == 0 || rows[i - 1].end <= rows[i].first);
    }
    for (uint64_t element = 0; element < elements; element++) {
        while (at < count && rows[at].end <= element)
            at++;
        const bool covered = at < count && rows[at].first <= element;
        check_element(reports, members, element, covered ? &rows[at] : NULL);
    }
}

static void test_drawn(void **state)
{
    uint64_t random = 20;
    uint32_t repeated = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        static struct reports reports;
        static struct redo_row rows[ROWS];
        const uint32_t members = 1 + (uint32_t)draw(&random, MEMBERS);
        const uint64_t elements = 1 + draw(&random, ELEMENTS);
        uint32_t runs = 0;
        uint32_t count;
        for (uint32_t i = 0; i < members; i++) {
            draw_report(&random, reports.runs[i], &reports.all[i], elements);
            runs += reports.all[i].run_count;
        }
        const enum redo_status status =
            redo_decide(reports.all, members, elements, rows, ROWS, &count);
        assert_int_equal(status, runs == 0 ? REDO_AGAIN : REDO_ROWS);
        if (status == REDO_ROWS)
            check_rows(&reports, members, elements, rows, count);
        repeated += status == REDO_ROWS;
    }
    assert_true(repeated > 10000);
}

static void test_shares_are_level(void **state)
{
    const struct redo_run end = {.first = 10, .end = 11};
    const struct redo_report reports[3] = {
        {true, 1, &end},
        {true, 1, &end},
        {true, 1, &end},
    };
    struct redo_row rows[4];
    uint32_t count;
    (void)state;
    assert_int_equal(redo_decide(reports, 3, 11, rows, 4, &count), REDO_ROWS);
    assert_int_equal(count, 3);
    assert_int_equal(rows[0].end - rows[0].first, 4);
    assert_int_equal(rows[1].end - rows[1].first, 3);
    assert_int_equal(rows[2].end - rows[2].first, 3);
    assert_int_equal(rows[2].end, 10);
    assert_int_equal(redo_decide(reports, 3, 11, rows, 2, &count), REDO_NO_ROOM);
    assert_int_equal(count, 0);
}

// The example of docs/internals/recovery.md: half of chunk a goes from A, b from B, and c is summed
// again.
static void test_example(void **state)
{
    const struct redo_run of_a[] = {{0, 100}};
    const struct redo_run of_b[] = {{0, 50}, {100, 200}};
    const struct redo_report reports[2] = {{true, 1, of_a}, {true, 2, of_b}};
    const struct redo_row expected[] = {
        {50, 100, 0, REDO_HAVE},
        {100, 200, 1, REDO_HAVE},
        {200, 250, 0, REDO_REDUCE},
        {250, 300, 1, REDO_REDUCE},
    };
    struct redo_row rows[8];
    uint32_t count;
    (void)state;
    assert_int_equal(redo_decide(reports, 2, 300, rows, 8, &count), REDO_ROWS);
    assert_int_equal(count, 4);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(rows[i].first, expected[i].first);
        assert_int_equal(rows[i].end, expected[i].end);
        assert_int_equal(rows[i].owner, expected[i].owner);
        assert_int_equal(rows[i].kind, expected[i].kind);
    }
}

// A slot without elements is final on one member and in flight on the other.
static void test_no_elements(void **state)
{
    const struct redo_run whole[] = {{0, 0}};
    const struct redo_report reports[2] = {{true, 1, whole}, {true, 0, NULL}};
    const struct redo_report nowhere[2] = {{true, 0, NULL}, {true, 0, NULL}};
    struct redo_row rows[8];
    uint32_t count = 1;
    (void)state;
    assert_int_equal(redo_decide(reports, 2, 0, rows, 8, &count), REDO_ROWS);
    assert_int_equal(count, 0);
    assert_int_equal(redo_decide(nowhere, 2, 0, rows, 8, &count), REDO_AGAIN);
}

static void check_refused(struct redo_report first, struct redo_report second)
{
    const struct redo_report reports[2] = {first, second};
    struct redo_row rows[8];
    uint32_t count;
    assert_int_equal(redo_decide(reports, 2, 100, rows, 8, &count), REDO_IMPOSSIBLE);
    assert_int_equal(count, 0);
}

static void test_refused(void **state)
{
    const struct redo_run good[] = {{0, 10}, {20, 30}};
    const struct redo_run empty[] = {{5, 5}};
    const struct redo_run beyond[] = {{90, 101}};
    const struct redo_run touching[] = {{0, 10}, {10, 30}};
    const struct redo_run descending[] = {{20, 30}, {0, 10}};
    const struct redo_report none = {.contributed = true};
    (void)state;
    check_refused((struct redo_report){true, 1, empty}, none);
    check_refused(none, (struct redo_report){true, 1, beyond});
    check_refused(none, (struct redo_report){true, 2, touching});
    check_refused((struct redo_report){true, 2, descending}, none);
    // Something is final on the first member, so the second one must have contributed.
    check_refused((struct redo_report){true, 2, good}, (struct redo_report){.contributed = false});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drawn),   cmocka_unit_test(test_shares_are_level),
        cmocka_unit_test(test_example), cmocka_unit_test(test_no_elements),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
