// SPDX-License-Identifier: Apache-2.0
//
// Changes of the world that the trainer has not seen apart count as one.

#include "worker/session/change.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void seen_changes_are_told_apart(void **state)
{
    static const uint64_t third[LOCKSTEP_RANK_WORDS] = {1 << 2};
    static const uint64_t first[LOCKSTEP_RANK_WORDS] = {1 << 0};
    struct world_change change = {0};
    (void)state;
    change_add(&change, 3, 4, third);
    assert_int_equal(change.number, 1);
    assert_int_equal(change.rank_before, 3);
    assert_int_equal(change.size_before, 4);
    assert_int_equal(change.removed[0], 1 << 2);
    change.seen = 1;
    change_add(&change, 2, 3, first);
    assert_int_equal(change.number, 2);
    assert_int_equal(change.rank_before, 2);
    assert_int_equal(change.size_before, 3);
    assert_int_equal(change.removed[0], 1 << 0);
}

// Of the ranks 0 to 69 the ranks 1 and 66 are lost first, then those that were 0, 3 and 68, and are
// 0, 2 and 66 by then.
static void unseen_changes_count_as_one(void **state)
{
    static const uint64_t before[LOCKSTEP_RANK_WORDS] = {1 << 1, 1 << 2};
    static const uint64_t after[LOCKSTEP_RANK_WORDS] = {1 << 0 | 1 << 2, 1 << 2};
    struct world_change change = {0};
    (void)state;
    change_add(&change, 69, 70, before);
    change_add(&change, 67, 68, after);
    assert_int_equal(change.number, 2);
    assert_int_equal(change.rank_before, 69);
    assert_int_equal(change.size_before, 70);
    assert_int_equal(change.removed[0], 1 << 0 | 1 << 1 | 1 << 3);
    assert_int_equal(change.removed[1], 1 << (66 - 64) | 1 << (68 - 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seen_changes_are_told_apart),
        cmocka_unit_test(unseen_changes_count_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
