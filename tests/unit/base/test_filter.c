// SPDX-License-Identifier: Apache-2.0
//
// LOCKSTEP_TEST_FILTER (tests/support/filter.c). With an argument this program is two groups of one
// test each.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char said[4096];

static void run_groups(const char *pattern, int expected)
{
    char command[128];
    snprintf(command, sizeof(command), "LOCKSTEP_TEST_FILTER='%s' /proc/%d/exe groups 2>&1",
             pattern, (int)getpid());
    FILE *output = popen(command, "r");
    assert_non_null(output);
    said[fread(said, 1, sizeof(said) - 1, output)] = '\0';
    const int status = pclose(output);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), expected);
}

static void test_one_of_two(void **state)
{
    (void)state;
    run_groups("*sec?nd", 0);
    assert_null(strstr(said, "the_first"));
    assert_non_null(strstr(said, "OK ] the_second"));
    run_groups("the_f*", 0);
    assert_non_null(strstr(said, "OK ] the_first"));
    assert_null(strstr(said, "the_second"));
}

static void test_none_is_an_error(void **state)
{
    (void)state;
    run_groups("first", 1);
    assert_non_null(strstr(said, "no test matches LOCKSTEP_TEST_FILTER=first\n"));
}

static void the_first(void **state)
{
    (void)state;
}

static void the_second(void **state)
{
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(the_first)};
    const struct CMUnitTest second[] = {cmocka_unit_test(the_second)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_of_two),
        cmocka_unit_test(test_none_is_an_error),
    };
    (void)argv;
    if (argc > 1)
        return cmocka_run_group_tests(first, NULL, NULL) +
               cmocka_run_group_tests(second, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
