// SPDX-License-Identifier: Apache-2.0
//
// Names of certificates: what they allow, and names that only look like them.

#include "base/tls_names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void a_worker_is_of_its_job(void **state)
{
    static const struct {
        const char *name;
        const char *job;
        bool allowed;
    } cases[] = {
        {"lockstep://job/mnist/worker", "mnist", true},
        {"lockstep://job/mnist/worker", NULL, true},
        {"lockstep://job/*/worker", "mnist", true},
        {"lockstep://job/*/worker", NULL, true},
        {"lockstep://job/mnist/worker", "mnis", false},
        {"lockstep://job/mnist/worker", "mnist2", false},
        {"lockstep://job/mnist/worker", "MNIST", false},
        {"lockstep://job/mnist/worker", "*", false},
        {"lockstep://job/mnist*/worker", "mnist2", false},
        {"lockstep://job/*/worker", "", false},
        {"lockstep://job//worker", "", false},
        {"lockstep://job//worker", NULL, false},
        {"lockstep://job/mnist/worker/", "mnist", false},
        {"lockstep://job/mnist/workers", "mnist", false},
        {"lockstep://job/mnist/x/worker", "mnist", false},
        {"lockstep://job/mnist", "mnist", false},
        {"Lockstep://job/mnist/worker", "mnist", false},
        {" lockstep://job/mnist/worker", "mnist", false},
        {"https://job/mnist/worker", "mnist", false},
        {"lockstep://coordinator", "coordinator", false},
        {"lockstep://observer", NULL, false},
        {"", "mnist", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (tls_name_is_worker(cases[i].name, cases[i].job) != cases[i].allowed)
            fail_msg("'%s' for job '%s'", cases[i].name, cases[i].job ? cases[i].job : "(any)");
    }
}

static void a_coordinator_is_nothing_else(void **state)
{
    (void)state;
    assert_true(tls_name_is_coordinator("lockstep://coordinator"));
    assert_false(tls_name_is_coordinator("lockstep://coordinator/"));
    assert_false(tls_name_is_coordinator("lockstep://job/*/worker"));
    assert_false(tls_name_is_coordinator("lockstep://observer"));
    assert_false(tls_name_is_coordinator(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_is_of_its_job),
        cmocka_unit_test(a_coordinator_is_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
