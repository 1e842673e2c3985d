// SPDX-License-Identifier: Apache-2.0
//
// The text of a set of ranks.

#include "cli/run/run_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char *text_of(const uint32_t *ranks, uint32_t count)
{
    static char bytes[RUN_SET_BYTES];
    struct run_set set;
    run_set_clear(&set);
    for (uint32_t i = 0; i < count; i++)
        run_set_add(&set, ranks[i]);
    run_set_text(&set, bytes, sizeof(bytes));
    return bytes;
}

static void test_text(void **state)
{
    (void)state;
    const uint32_t one[] = {3, 3};
    const uint32_t all[] = {0, 1, 2, 3};
    const uint32_t some[] = {7, 0, 5, 2, 6};
    const uint32_t many[] = {0, 2, 4, 6, 8, 10, 12, 14, 1021, 1023};
    const uint32_t pair[] = {0, 1};
    const uint32_t pairs[] = {0, 1, 4, 5};
    assert_string_equal(text_of(one, 2), "rank 3");
    assert_string_equal(text_of(pair, 2), "ranks 0 and 1");
    assert_string_equal(text_of(pairs, 4), "ranks 0, 1, 4, 5");
    assert_string_equal(text_of(all, 4), "ranks 0 to 3");
    assert_string_equal(text_of(some, 5), "ranks 0, 2, 5 to 7");
    assert_string_equal(text_of(many, 10), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
