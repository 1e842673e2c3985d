// SPDX-License-Identifier: Apache-2.0
//
// Conformance: short steps do not read the processor time of the process, which is a system call.
// The test has a world of one, whose steps take microseconds, and replaces clock_gettime.

#include "lockstep/lockstep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define STEPS 1000

static atomic_uint reads; // Calls that asked for the time of the process.

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock == CLOCK_PROCESS_CPUTIME_ID)
        atomic_fetch_add(&reads, 1);
    return (int)syscall(SYS_clock_gettime, clock, time);
}

static void steps(lockstep_session *session, lockstep_module *module, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        lockstep_call *call;
        assert_int_equal(lockstep_step_begin(session, NULL, NULL), LOCKSTEP_OK);
        assert_int_equal(lockstep_call_begin(module, &call), LOCKSTEP_OK);
        assert_int_equal(lockstep_grad_ready(module, call, 0, NULL, NULL), LOCKSTEP_OK);
        assert_int_equal(lockstep_call_end(call), LOCKSTEP_OK);
        assert_int_equal(lockstep_step_end(session, NULL), LOCKSTEP_OK);
    }
}

static void short_steps_read_no_processor_time(void **state)
{
    lockstep_session *session;
    lockstep_module *module;
    float value = 0, gradient = 0;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    (void)state;
    parameter.name = "w";
    parameter.data = &value;
    parameter.gradient = &gradient;
    config.name = "short";
    config.parameters = &parameter;
    config.parameter_count = 1;
    assert_int_equal(lockstep_open(NULL, &session), LOCKSTEP_OK);
    assert_int_equal(lockstep_module_register(session, &config, &module), LOCKSTEP_OK);
    assert_int_equal(lockstep_start(session), LOCKSTEP_OK);
    steps(session, module, STEPS);
    // Other programs may make some steps long.
    assert_in_range(atomic_load(&reads), 0, STEPS / 2);
    atomic_store(&reads, 0);
    usleep(5000);
    steps(session, module, 1);
    assert_int_equal(atomic_load(&reads), 1);
    assert_int_equal(lockstep_close(session), LOCKSTEP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(short_steps_read_no_processor_time)};
    return cmocka_run_group_tests_name("short_steps", tests, NULL, NULL);
}
