// SPDX-License-Identifier: Apache-2.0
//
// The names under which heartbeats carry counters.

#include "worker/session/counters.h"

#include "base/hash64.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static struct counter noted(const char *name)
{
    struct counter counter = {.hash = hash64(name, strlen(name))};
    counter_note_name(&counter, name);
    return counter;
}

static void long_names_stay_apart(void **state)
{
    (void)state;
    assert_string_equal(noted("exactly_twenty_three_23").name, "exactly_twenty_three_23");
    const struct counter train = noted("samples_processed_total_train");
    const struct counter valid = noted("samples_processed_total_valid");
    assert_memory_equal(train.name, "samples_processed_~", 19);
    assert_memory_equal(valid.name, "samples_processed_~", 19);
    assert_int_equal(strlen(train.name), 23);
    assert_string_not_equal(train.name, valid.name);
}

static void characters_stay_whole(void **state)
{
    (void)state;
    // The beginning has at most 18 bytes: "a", and eight umlauts of two bytes each.
    const struct counter umlauts = noted("aäääääääääääää");
    assert_memory_equal(umlauts.name, "aääääääää~", 18);
    assert_int_equal(strlen(umlauts.name), 22);
    assert_string_equal(noted("\xff").name, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_names_stay_apart),
        cmocka_unit_test(characters_stay_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
