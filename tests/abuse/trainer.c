// SPDX-License-Identifier: Apache-2.0
//
// The trainer of the job that is abused: steps until somebody makes the file "enough" in the
// directory that its argument names, and compares every mean that it is given with the one that
// only right gradients of all ranks have. Rank 0 writes how many steps are done into the file
// "steps" there, so that a watcher needs no coordinator. Not a measurement: it sleeps between
// steps, so that what attacks it has a processor. One thread.

#include <lockstep/lockstep.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ELEMENTS 65536
#define PAUSE_NS 2000000
#define STEP_VALUES 1024 // Numbers that float32 adds without rounding.

static void check(int status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "%s\n", lockstep_error_text());
    exit(1);
}

// One step; rank r contributes r + what the step and the element say.
static void train_step(lockstep_session *session, lockstep_module *module, float *gradient,
                       uint32_t step, uint32_t rank)
{
    lockstep_call *call;
    check(lockstep_step_begin(session, NULL, NULL));
    check(lockstep_call_begin(module, &call));
    for (uint32_t i = 0; i < ELEMENTS; i++)
        gradient[i] = (float)(3 * rank + (step + i) % STEP_VALUES);
    check(lockstep_grad_ready(module, call, 0, NULL, NULL));
    check(lockstep_call_end(call));
    check(lockstep_step_end(session, NULL));
}

// The mean of 3 r over the ranks is 3 (n - 1) / 2.
static void compare(const float *gradient, uint32_t step, uint32_t world_size)
{
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        const float wanted = 1.5f * (float)(world_size - 1) + (float)((step + i) % STEP_VALUES);
        if (gradient[i] == wanted)
            continue;
        fprintf(stderr, "step %u: element %u is %g and not %g\n", (unsigned)step, (unsigned)i,
                (double)gradient[i], (double)wanted);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    static float value[ELEMENTS], gradient[ELEMENTS];
    static const int64_t elements = ELEMENTS;
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    lockstep_session *session;
    lockstep_module *module;
    uint32_t rank, world_size, step = 0;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    if (argc != 2 || chdir(argv[1]) < 0)
        return 2;
    parameter.name = "w";
    parameter.data = value;
    parameter.gradient = gradient;
    parameter.shape = &elements;
    parameter.dims = 1;
    config.name = "secret_module";
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &world_size));
    check(lockstep_module_register(session, &config, &module));
    check(lockstep_start(session));
    const int steps = rank == 0 ? open("steps", O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    for (int32_t enough = 0; !enough; step++) {
        train_step(session, module, gradient, step, rank);
        compare(gradient, step, world_size);
        enough = access("enough", F_OK) == 0;
        check(lockstep_allreduce(session, "enough", &enough, 1, LOCKSTEP_INT32, LOCKSTEP_MAX,
                                 LOCKSTEP_WAIT_FOREVER));
        if (rank == 0 && pwrite(steps, &step, sizeof(step), 0) < 0)
            return 2;
        nanosleep(&pause, NULL);
    }
    check(lockstep_close(session));
    printf("rank %u: %u steps\n", (unsigned)rank, (unsigned)step);
    return 0;
}
