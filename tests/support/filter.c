// SPDX-License-Identifier: Apache-2.0
//
// LOCKSTEP_TEST_FILTER, for every program with cmocka: it runs the tests whose names match this
// pattern. A program in which none does exits with 1. The linker calls the function below in the
// place of cmocka's (TEST_LIBS in mk/checks.mk).

#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

static size_t matching; // Tests of all groups so far.

static void none_is_an_error(void)
{
    if (matching > 0)
        return;
    fflush(NULL);
    fprintf(stderr, "no test matches LOCKSTEP_TEST_FILTER=%s\n", getenv("LOCKSTEP_TEST_FILTER"));
    _exit(1);
}

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const char *pattern = getenv("LOCKSTEP_TEST_FILTER");
    if (pattern && matching == 0)
        atexit(none_is_an_error);
    for (size_t i = 0; pattern && i < count; i++)
        matching += fnmatch(pattern, tests[i].name, 0) == 0;
    cmocka_set_test_filter(pattern);
    return __real__cmocka_run_group_tests(group, tests, count, setup, teardown);
}
