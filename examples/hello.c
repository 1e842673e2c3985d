// SPDX-License-Identifier: Apache-2.0
// Learns w = 2 from y = 2 x. Every worker has an x of its own; all end with the same w.
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(1);
    }
}

int main(void)
{
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    uint32_t rank, world_size;
    float w = 0, gradient = 0;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    parameter.name = "w";
    parameter.data = &w;
    parameter.gradient = &gradient;
    config.name = "line";
    config.parameters = &parameter;
    config.parameter_count = 1;

    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &world_size));
    check(lockstep_module_register(session, &config, &module));
    check(lockstep_start(session));
    for (int step = 0; step < 50; step++) {
        float x = (float)(rank + 1);
        check(lockstep_step_begin(session, NULL, NULL));
        check(lockstep_call_begin(module, &call));
        gradient = (w * x - 2 * x) * x;
        check(lockstep_grad_ready(module, call, 0, NULL, NULL));
        check(lockstep_call_end(call));
        check(lockstep_step_end(session, NULL)); // Now gradient is the mean over all workers.
        w -= gradient / (float)(world_size * world_size);
    }
    check(lockstep_close(session));
    printf("rank %u of %u: w = %.3f\n", (unsigned)rank, (unsigned)world_size, (double)w);
    return 0;
}
