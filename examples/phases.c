// SPDX-License-Identifier: Apache-2.0
// phases: two models trained in two phases, as in phasic policy gradient, and a hang on request.
//
// An iteration fills a replay buffer and makes six updates from it: four in the phase "policy", two
// in the phase "auxiliary", which trains both models. An update takes rows out of the buffer by
// index, on the CPU, with the help of a second thread. Nothing of this is synchronized; but a rank
// that does not come back from there never gives its gradients, and all others wait for them.
//
// So hung HorizonRobotics/alf (issue 1096): two ranks, one of them for ever in an indexing
// operation outside of what is synchronized. With --hang SEED this program does the same: the seed
// chooses the rank, the update and which of its indexing operations does not return, because what
// the second thread says is lost. `lockstep stalls` then names the rank and take_rows. The trainer
// does not help: it sets no mark.
#include <lockstep/lockstep.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    OBSERVATION = 16, // Numbers in an observation.
    ACTIONS = 4, // Numbers that the policy makes of it.
    REPLAY = 512, // Rows of the replay buffer.
    BATCH = 64, // Rows of an update, on each rank.
    POLICY_UPDATES = 4,
    UPDATES = 6, // The last two are auxiliary ones.
    HANG_ITERATION = 10, // The phases have been learned by then.
};

// The three indexing operations of an update.
enum place {
    PLACE_OBSERVATIONS, // Before the step.
    PLACE_TARGETS, // In the step, before the backward pass.
    PLACE_ERRORS, // After the step.
    PLACES,
};

struct options {
    int iterations;
    int collect_ms; // How long collecting experience takes, at least.
    bool hangs;
    uint64_t seed; // Seed of the hang.
};

// ---- small tools -------------------------------------------------------------------------------

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "phases: %s: %s\n", lockstep_status_name(status), lockstep_error_text());
        exit(1);
    }
}

static void check_system(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "phases: %s failed\n", what);
        exit(1);
    }
}

// splitmix64: the same numbers on every machine.
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Uniform in [-1, 1).
static float random_signed(uint64_t *state)
{
    return (float)(random_next(state) >> 40) * 0x1p-23f - 1.0f;
}

// ---- indexing ----------------------------------------------------------------------------------

// One indexing operation: rows[i] = table[indices[i]], each of `width` numbers.
struct indexing {
    const float *table;
    int width;
    const int *indices; // [BATCH]
    float *rows; // [BATCH][width]
};

// The second thread takes the upper half of the rows.
struct helper {
    pthread_t thread;
    sem_t asked;
    sem_t done;
    struct indexing work; // Belongs to the helper between asked and done.
    bool ends;
    bool loses; // For --hang: it does the work and forgets to say so.
};

static void take_some(const struct indexing *work, int first, int end)
{
    for (int i = first; i < end; i++)
        memcpy(work->rows + i * work->width, work->table + work->indices[i] * work->width,
               (size_t)work->width * sizeof(float));
}

static void *helper_run(void *argument)
{
    struct helper *helper = argument;
    for (;;) {
        while (sem_wait(&helper->asked) != 0)
            ;
        if (helper->ends)
            return NULL;
        take_some(&helper->work, BATCH / 2, BATCH);
        if (!helper->loses)
            sem_post(&helper->done);
    }
}

// A function of its own also for an optimizer, so that a stack names it.
__attribute__((noinline)) static void take_rows(struct helper *helper, const float *table,
                                                int width, const int *indices, float *rows)
{
    helper->work =
        (struct indexing){.table = table, .width = width, .indices = indices, .rows = rows};
    const struct indexing mine = helper->work;
    sem_post(&helper->asked);
    take_some(&mine, 0, BATCH / 2);
    while (sem_wait(&helper->done) != 0)
        ;
}

static void helper_start(struct helper *helper)
{
    check_system(sem_init(&helper->asked, 0, 0) != 0 || sem_init(&helper->done, 0, 0) != 0,
                 "sem_init");
    check_system(pthread_create(&helper->thread, NULL, helper_run, helper) != 0, "pthread_create");
}

static void helper_end(struct helper *helper)
{
    helper->ends = true;
    sem_post(&helper->asked);
    pthread_join(helper->thread, NULL);
    sem_destroy(&helper->asked);
    sem_destroy(&helper->done);
}

// ---- models ------------------------------------------------------------------------------------

// y = W x, and its module.
struct model {
    lockstep_module *module;
    int outputs; // Outputs of the module, at most ACTIONS.
    float weights[ACTIONS * OBSERVATION]; // [outputs][OBSERVATION], row by row
    float gradient[ACTIONS * OBSERVATION];
};

struct replay {
    float observations[REPLAY * OBSERVATION];
    float actions[REPLAY * ACTIONS]; // The actions that the policy should have chosen.
    float returns[REPLAY]; // The returns that the auxiliary model should have found.
    float errors[REPLAY]; // Squared, of the last update that took this row.
};

struct batch {
    int indices[BATCH];
    float observations[BATCH * OBSERVATION];
    float targets[BATCH * ACTIONS];
    float errors[BATCH];
};

struct trainer {
    struct options options;
    lockstep_session *session;
    uint32_t rank;
    uint32_t world_size;
    struct model policy;
    struct model auxiliary;
    // The weights that both modules have to find; the same on all ranks.
    float truth[(ACTIONS + 1) * OBSERVATION];
    struct replay replay;
    struct batch batch;
    struct helper helper;
    uint64_t random; // Different on each rank: its own share of the data.
    int iteration;
    int update;
    double loss; // Loss of the last update, on this rank.
};

static void model_register(struct trainer *trainer, struct model *model, const char *name,
                           int outputs)
{
    const int64_t shape[] = {outputs, OBSERVATION};
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    model->outputs = outputs;
    parameter.name = "weights";
    parameter.dims = 2;
    parameter.shape = shape;
    parameter.data = model->weights;
    parameter.gradient = model->gradient;
    config.name = name;
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_module_register(trainer->session, &config, &model->module));
}

// Forward and backward of the squared error, and then the gradient is everybody's.
static void model_backward(struct model *model, struct batch *batch)
{
    lockstep_call *call;
    check(lockstep_call_begin(model->module, &call));
    memset(model->gradient, 0, sizeof(model->gradient));
    for (int i = 0; i < BATCH; i++) {
        const float *x = batch->observations + i * OBSERVATION;
        for (int o = 0; o < model->outputs; o++) {
            float error = -batch->targets[i * model->outputs + o];
            for (int k = 0; k < OBSERVATION; k++)
                error += model->weights[o * OBSERVATION + k] * x[k];
            for (int k = 0; k < OBSERVATION; k++)
                model->gradient[o * OBSERVATION + k] += 2 * error * x[k];
            batch->errors[i] += error * error;
        }
    }
    check(lockstep_grad_ready(model->module, call, 0, NULL, NULL));
    check(lockstep_call_end(call));
}

// The gradients are sums over the rows of a rank, so the mean is that over all rows.
static void model_optimize(struct model *model)
{
    for (int i = 0; i < model->outputs * OBSERVATION; i++)
        model->weights[i] -= 0.1f * model->gradient[i] / (float)BATCH;
}

// ---- training ----------------------------------------------------------------------------------

static float expected(const struct trainer *trainer, int output, const float *x)
{
    float y = 0;
    for (int k = 0; k < OBSERVATION; k++)
        y += trainer->truth[output * OBSERVATION + k] * x[k];
    return y;
}

// Experience: in a program that is no example, this is where environments run.
static void collect(struct trainer *trainer)
{
    struct replay *replay = &trainer->replay;
    const struct timespec took = {.tv_sec = trainer->options.collect_ms / 1000,
                                  .tv_nsec = trainer->options.collect_ms % 1000 * 1000000L};
    nanosleep(&took, NULL);
    for (int row = 0; row < REPLAY; row++) {
        float *x = replay->observations + row * OBSERVATION;
        for (int k = 0; k < OBSERVATION; k++)
            x[k] = random_signed(&trainer->random);
        for (int o = 0; o < ACTIONS; o++)
            replay->actions[row * ACTIONS + o] = expected(trainer, o, x);
        replay->returns[row] = expected(trainer, ACTIONS, x);
        replay->errors[row] = 0;
    }
}

// Whether --hang strikes here. All ranks draw the same numbers.
static bool hangs(const struct trainer *trainer, enum place place)
{
    uint64_t state = trainer->options.seed;
    const uint64_t rank = random_next(&state) % trainer->world_size;
    const uint64_t update = random_next(&state) % UPDATES;
    const uint64_t where = random_next(&state) % PLACES;
    return trainer->options.hangs && trainer->iteration == HANG_ITERATION &&
           rank == trainer->rank && update == (uint64_t)trainer->update && where == (uint64_t)place;
}

// An indexing operation of the present update.
static void take(struct trainer *trainer, enum place place, const float *table, int width,
                 float *rows)
{
    static const char *const names[PLACES] = {"before the step", "in the step", "after the step"};
    if (hangs(trainer, place)) {
        printf("rank %u hangs in update %d of iteration %d, %s\n", trainer->rank,
               trainer->update + 1, trainer->iteration, names[place]);
        fflush(stdout);
        trainer->helper.loses = true;
    }
    take_rows(&trainer->helper, table, width, trainer->batch.indices, rows);
}

// Trains one model on the rows of the present update, in an open step.
static void train_model(struct trainer *trainer, struct model *model, const float *targets)
{
    take(trainer, PLACE_TARGETS, targets, model->outputs, trainer->batch.targets);
    model_backward(model, &trainer->batch);
}

static void update(struct trainer *trainer)
{
    struct replay *replay = &trainer->replay;
    struct batch *batch = &trainer->batch;
    const bool auxiliary = trainer->update >= POLICY_UPDATES;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.phase = auxiliary ? "auxiliary" : "policy";
    for (int i = 0; i < BATCH; i++)
        batch->indices[i] = (int)(random_next(&trainer->random) % REPLAY);
    take(trainer, PLACE_OBSERVATIONS, replay->observations, OBSERVATION, batch->observations);

    memset(batch->errors, 0, sizeof(batch->errors));
    check(lockstep_step_begin(trainer->session, &options, NULL));
    train_model(trainer, &trainer->policy, replay->actions);
    if (auxiliary)
        train_model(trainer, &trainer->auxiliary, replay->returns);
    check(lockstep_step_end(trainer->session, NULL));
    model_optimize(&trainer->policy);
    if (auxiliary)
        model_optimize(&trainer->auxiliary);

    for (int i = 0; i < BATCH; i++)
        replay->errors[batch->indices[i]] = batch->errors[i];
    take(trainer, PLACE_ERRORS, replay->errors, 1, batch->errors);
    trainer->loss = 0;
    for (int i = 0; i < BATCH; i++)
        trainer->loss += (double)batch->errors[i] / (double)BATCH;
}

static void train(struct trainer *trainer)
{
    for (trainer->iteration = 1; trainer->iteration <= trainer->options.iterations;
         trainer->iteration++) {
        collect(trainer);
        for (trainer->update = 0; trainer->update < UPDATES; trainer->update++)
            update(trainer);
        if (trainer->rank == 0 && trainer->iteration % 10 == 0)
            printf("iteration %d: loss %.6f\n", trainer->iteration, trainer->loss);
    }
}

// ---- the program -------------------------------------------------------------------------------

static int usage(void)
{
    fputs("usage: phases [--iterations N] [--collect-ms MS] [--hang SEED]\n", stderr);
    return 2;
}

static bool read_options(struct options *options, int argc, char **argv)
{
    *options = (struct options){.iterations = 30};
    for (int i = 1; i < argc; i += 2) {
        char *end = NULL;
        const unsigned long long value = i + 1 < argc ? strtoull(argv[i + 1], &end, 10) : 0;
        if (!end || end == argv[i + 1] || *end != '\0')
            return false;
        options->hangs = options->hangs || strcmp(argv[i], "--hang") == 0;
        if (strcmp(argv[i], "--hang") == 0)
            options->seed = value;
        else if (strcmp(argv[i], "--iterations") == 0 && value > 0 && value <= INT32_MAX)
            options->iterations = (int)value;
        else if (strcmp(argv[i], "--collect-ms") == 0 && value <= INT32_MAX)
            options->collect_ms = (int)value;
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct trainer trainer;
    uint64_t shared = 1;
    if (!read_options(&trainer.options, argc, argv))
        return usage();
    check(lockstep_open(NULL, &trainer.session));
    check(lockstep_world(trainer.session, &trainer.rank, &trainer.world_size));
    trainer.random = trainer.rank + 2;
    for (int i = 0; i < (ACTIONS + 1) * OBSERVATION; i++)
        trainer.truth[i] = random_signed(&shared);
    model_register(&trainer, &trainer.policy, "policy", ACTIONS);
    model_register(&trainer, &trainer.auxiliary, "auxiliary", 1);
    check(lockstep_start(trainer.session));
    helper_start(&trainer.helper);
    train(&trainer);
    helper_end(&trainer.helper);
    check(lockstep_close(trainer.session));
    printf("rank %u of %u: loss %.6f\n", trainer.rank, trainer.world_size, trainer.loss);
    return 0;
}
