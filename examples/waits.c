// SPDX-License-Identifier: Apache-2.0
// waits: two models that are stepped one after the other, each as soon as its gradients are
// averaged (lockstep_call_wait). With --swap odd ranks begin with the other one: then every rank
// waits for what another one has not called, and all of them are told so, at once. docs/waits.md
// shows it.
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    lockstep_module *module;
    float weight, gradient;
};

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(1);
    }
}

static void make(lockstep_session *session, const char *name, struct model *model)
{
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    parameter.name = "weight";
    parameter.data = &model->weight;
    parameter.gradient = &model->gradient;
    config.name = name;
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_module_register(session, &config, &model->module));
}

// A backward pass towards weight = 1, and at once the optimizer.
static void update(struct model *model)
{
    lockstep_call *call;
    check(lockstep_call_begin(model->module, &call));
    model->gradient = model->weight - 1;
    check(lockstep_grad_ready(model->module, call, 0, NULL, NULL));
    check(lockstep_call_end(call));
    check(lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
    model->weight -= 0.5f * model->gradient;
}

int main(int argc, char **argv)
{
    const int swaps = argc > 1 && strcmp(argv[1], "--swap") == 0;
    struct model models[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    lockstep_session *session;
    uint32_t rank, world_size;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &world_size));
    make(session, "actor", &models[0]);
    make(session, "critic", &models[1]);
    check(lockstep_start(session));
    for (int step = 1; step <= 20; step++) {
        const uint32_t first = swaps && step > 10 ? rank % 2 : 0;
        check(lockstep_step_begin(session, NULL, NULL));
        update(&models[first]);
        update(&models[1 - first]);
        check(lockstep_step_end(session, NULL));
    }
    check(lockstep_close(session));
    printf("rank %u of %u: actor %.3f, critic %.3f\n", (unsigned)rank, (unsigned)world_size,
           (double)models[0].weight, (double)models[1].weight);
    return 0;
}
