// SPDX-License-Identifier: Apache-2.0
//
// The cases of the list for reducers that wait for what the library cannot do yet. Each says what
// it waits for and counts as skipped, so that the list and the tests stay complete.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct later {
    const char *name;
    const char *reason;
};

static struct later later[] = {
    {"case 38", "lockstep_call_wait is not supported yet"},
};

#define LATER (sizeof(later) / sizeof(later[0]))

static void not_yet(void **state)
{
    const struct later *one = *state;
    print_message("%s: not yet: %s\n", one->name, one->reason);
    skip();
}

int main(void)
{
    struct CMUnitTest tests[LATER];
    for (size_t i = 0; i < LATER; i++)
        tests[i] = (struct CMUnitTest){
            .name = later[i].name, .test_func = not_yet, .initial_state = &later[i]};
    return cmocka_run_group_tests_name("reducer: later", tests, NULL, NULL);
}
