// SPDX-License-Identifier: Apache-2.0
//
// The pool of records of a ballot: coordinator/records.c.

#include "coordinator/records.h"
#include "tests/support/bounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#define EACH (LOCKSTEP_BALLOT_WORDS / (LOCKSTEP_RECORD_HEAD + 1) / LOCKSTEP_MAX_WORLD)

static uint64_t words[LOCKSTEP_BALLOT_WORDS];
static struct records records = {.words = words};

static const char *add(uint32_t rank, uint32_t position, uint32_t first, uint32_t total)
{
    struct record_part part = {.kind = RECORD_COMMIT, .position = position, .first = first};
    part.total = total;
    part.count = 1;
    part.words[0] = (uint64_t)rank << 32 | position << 8 | first;
    return records_add(&records, rank, &part);
}

static void parts_of_ranks_come_in_turn(void **state)
{
    struct record record;
    uint32_t at = 0;
    uint32_t count = 0;
    (void)state;
    records_reset(&records);
    for (uint32_t first = 0; first < 3; first++) {
        for (uint32_t rank = 0; rank < 4; rank++)
            assert_null(add(rank, 7, first, 3));
        assert_int_equal(records_whole(&records, 2), first == 2);
    }
    assert_non_null(add(1, 7, 0, 3)); // A second record of this place.
    assert_non_null(add(1, 8, 1, 3)); // It has no beginning.
    assert_null(add(1, 8, 0, 3));
    assert_false(records_whole(&records, 1));
    records_drop(&records, 1);
    assert_true(records_whole(&records, 1));
    assert_null(add(1, 7, 0, 1));
    while (records_next(&records, &at, &record)) {
        if (record.kind == RECORD_NONE)
            continue;
        count++;
        assert_true(record.whole && record.position == 7);
        assert_int_equal(record.total, record.rank == 1 ? 1 : 3);
        for (uint32_t i = 0; i < record.total; i++)
            assert_int_equal(record.words[i], (uint64_t)record.rank << 32 | 7 << 8 | i);
    }
    assert_int_equal(count, 4);
}

// Condition: all ranks of the largest world fill the pool with the smallest records. Decision: a
// part costs no more than a look at its own rank's records. A look at all would take seconds.
static void many_records_cost_little(void **state)
{
    const clock_t begun = clock();
    (void)state;
    records_reset(&records);
    for (uint32_t i = 0; i < EACH; i++)
        for (uint32_t rank = 0; rank < LOCKSTEP_MAX_WORLD; rank++)
            assert_null(add(rank, i, 0, 1));
    assert_string_equal(add(0, EACH, 0, LOCKSTEP_BALLOT_WORDS), records_full);
    const uint64_t took_ms = (uint64_t)(clock() - begun) * 1000 / CLOCKS_PER_SEC;
    print_message("%u records: %u ms\n", EACH * LOCKSTEP_MAX_WORLD, (unsigned)took_ms);
    assert_true(took_ms < test_bound_ms(1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_ranks_come_in_turn),
        cmocka_unit_test(many_records_cost_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
