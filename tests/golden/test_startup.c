// SPDX-License-Identifier: Apache-2.0
//
// From `lockstep run -n 4` to the end of the first step in under a second: a private coordinator,
// four workers, open, register, start, one step. This program is also the trainer that it starts.

#include "base/clock.h"
#include "tests/support/bounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <inttypes.h>
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 4
#define BOUND_MS 1000

// ---- The trainer --------------------------------------------------------------------------------

static float values[10000];
static float gradients[10000];

static void check(int status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "%s\n", lockstep_error_text());
    exit(1);
}

static lockstep_module *declare(lockstep_session *session)
{
    const int64_t shape[] = {10000};
    const struct lockstep_parameter parameter = {.name = "w",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = shape,
                                                 .data = values,
                                                 .gradient = gradients};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = "model";
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_module_register(session, &config, &module));
    return module;
}

static void step(lockstep_session *session, lockstep_module *module)
{
    lockstep_call *call;
    check(lockstep_step_begin(session, NULL, NULL));
    check(lockstep_call_begin(module, &call));
    check(lockstep_grad_ready(module, call, 0, NULL, NULL));
    check(lockstep_call_end(call));
    check(lockstep_step_end(session, NULL));
}

// Says when it began and when its first step was over, in clock_now_us, one clock for all.
static int train(void)
{
    const uint64_t began_us = clock_now_us();
    lockstep_session *session;
    check(lockstep_open(NULL, &session));
    lockstep_module *module = declare(session);
    check(lockstep_start(session));
    step(session, module);
    printf("began %" PRIu64 " done %" PRIu64 "\n", began_us, clock_now_us());
    check(lockstep_close(session));
    return 0;
}

// ---- The test -----------------------------------------------------------------------------------

static FILE *launch(void)
{
    char self[4096] = "";
    char command[8192 + 128];
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    snprintf(command, sizeof(command), "'%s/lockstep' run -n %d --no-prefix -- '%s' --train",
             folder ? folder : "build/bin", WORKERS, self);
    return popen(command, "r");
}

// Condition: four local workers. Decision: all have done their first step within a second.
static void the_first_step_comes_soon(void **state)
{
    (void)state;
    const uint64_t launched_us = clock_now_us();
    uint64_t began_us;
    uint64_t done_us;
    uint64_t last_us = 0;
    uint64_t longest_us = 0;
    int workers = 0;
    FILE *output = launch();
    assert_non_null(output);
    while (fscanf(output, "began %" SCNu64 " done %" SCNu64 "\n", &began_us, &done_us) == 2) {
        workers++;
        last_us = done_us > last_us ? done_us : last_us;
        longest_us = done_us - began_us > longest_us ? done_us - began_us : longest_us;
    }
    assert_int_equal(pclose(output), 0);
    assert_int_equal(workers, WORKERS);
    printf("first step of %d workers: %.1f ms after the launch, %.1f ms after a worker's main\n",
           WORKERS, (double)(last_us - launched_us) / 1000, (double)longest_us / 1000);
    assert_true(last_us - launched_us < test_bound_ms(BOUND_MS) * 1000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_step_comes_soon)};
    if (argc == 2 && strcmp(argv[1], "--train") == 0)
        return train();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
