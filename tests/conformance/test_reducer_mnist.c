// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the network of examples/mnist.c with real gradients. Ten optimizer steps, with a
// random sleep before each report of a gradient, end with the same bits on every rank, in every
// repetition, and over every transport. Belongs to case 27 of the list for reducers.
//
// The network learns on the first images of the demo (MNIST_DIR, else build/data/mnist) if they
// exist, else on generated images. The test downloads nothing.

#include "tests/support/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PIXELS 784
#define CLASSES 10
#define LAYERS 3
#define TENSORS (2 * LAYERS) // Weight and bias of each layer.
#define STEPS 10
#define BATCH_MAX 4 // Samples of one rank in a step.
#define SAMPLES (STEPS * CLUSTER_MAX_WORLD * BATCH_MAX)
// Number of samples that decide whether the network has learned; a fifth of them in slow runs.
#define JUDGED 50
#define REPETITIONS 3 // Two in slow runs.
#define SLEEP_US 2000

static const uint32_t widths[LAYERS + 1] = {PIXELS, 256, 128, CLASSES};

// ---- Data --------------------------------------------------------------------------------------

static uint8_t images[SAMPLES][PIXELS];
static uint8_t labels[SAMPLES];

static bool data_read(const char *name, long header_bytes, void *bytes, size_t size)
{
    const char *folder = getenv("MNIST_DIR");
    char path[4096];
    FILE *file;
    bool whole;
    snprintf(path, sizeof(path), "%s/%s", folder ? folder : "build/data/mnist", name);
    file = fopen(path, "rb");
    if (!file)
        return false;
    whole = fseek(file, header_bytes, SEEK_SET) == 0 && fread(bytes, size, 1, file) == 1;
    fclose(file);
    return whole;
}

// Generates images: each digit has a texture of its own, with noise.
static void data_generate(void)
{
    uint64_t state = 1;
    for (uint32_t s = 0; s < SAMPLES; s++) {
        labels[s] = (uint8_t)(trainer_random(&state) % CLASSES);
        for (uint32_t p = 0; p < PIXELS; p++)
            images[s][p] =
                (uint8_t)((p * (labels[s] + 3u) % 31 < 8 ? 150 : 0) + trainer_random(&state) % 100);
    }
}

static void data_load(void)
{
    if (!data_read("train-images-idx3-ubyte", 16, images, sizeof(images)) ||
        !data_read("train-labels-idx1-ubyte", 8, labels, sizeof(labels))) {
        print_message("no MNIST files: the images are generated\n");
        data_generate();
    }
}

// ---- The network: slow and obvious -------------------------------------------------------------

struct tensor {
    uint32_t count;
    float *value;
    float *gradient;
    float *velocity;
};

struct network {
    struct tensor tensors[TENSORS]; // [inputs][outputs] of layer l at 2 l, [outputs] at 2 l + 1.
    // Input of each layer, and output of the last.
    float activations[BATCH_MAX][LAYERS + 1][PIXELS];
    float slopes[BATCH_MAX][LAYERS + 1][PIXELS]; // Gradients of the loss for these activations.
};

static void network_init(struct network *net, bool randomize)
{
    uint64_t state = 7;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const uint32_t layer = t / 2;
        const bool is_weight = t % 2 == 0;
        const double bound = sqrt(6.0 / (double)(widths[layer] + widths[layer + 1]));
        struct tensor *tensor = &net->tensors[t];
        tensor->count = widths[layer + 1] * (is_weight ? widths[layer] : 1);
        tensor->value = calloc(tensor->count, sizeof(float));
        tensor->gradient = calloc(tensor->count, sizeof(float));
        tensor->velocity = calloc(tensor->count, sizeof(float));
        for (uint32_t i = 0; i < tensor->count && randomize && is_weight; i++)
            tensor->value[i] =
                (float)(bound * ((double)(trainer_random(&state) >> 11) * 0x1p-52 - 1.0));
    }
}

static void network_fini(struct network *net)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        free(net->tensors[t].value);
        free(net->tensors[t].gradient);
        free(net->tensors[t].velocity);
    }
}

static void layer_forward(struct network *net, uint32_t layer, uint32_t s)
{
    const float *weight = net->tensors[2 * layer].value;
    const float *in = net->activations[s][layer];
    float *out = net->activations[s][layer + 1];
    const uint32_t outputs = widths[layer + 1];
    memcpy(out, net->tensors[2 * layer + 1].value, outputs * sizeof(float));
    for (uint32_t i = 0; i < widths[layer]; i++) {
        for (uint32_t o = 0; o < outputs; o++)
            out[o] += in[i] * weight[i * outputs + o];
    }
    for (uint32_t o = 0; o < outputs && layer + 1 < LAYERS; o++)
        out[o] = tanhf(out[o]);
}

// Softmax and cross-entropy of one sample. `share` is the sample's part of the mean. Returns the
// loss.
static double network_loss(struct network *net, uint32_t sample, uint32_t s, float share)
{
    const float *logits = net->activations[s][LAYERS];
    const uint32_t label = labels[sample];
    double total = 0;
    for (uint32_t c = 0; c < CLASSES; c++)
        total += exp((double)logits[c]);
    for (uint32_t c = 0; c < CLASSES; c++)
        net->slopes[s][LAYERS][c] =
            share * (float)(exp((double)logits[c]) / total - (c == label ? 1 : 0));
    return log(total) - (double)logits[label];
}

static double network_forward(struct network *net, uint32_t sample, uint32_t s, float share)
{
    for (uint32_t p = 0; p < PIXELS; p++)
        net->activations[s][0][p] = ((float)images[sample][p] / 255.0f - 0.1307f) / 0.3081f;
    for (uint32_t l = 0; l < LAYERS; l++)
        layer_forward(net, l, s);
    return network_loss(net, sample, s, share);
}

// Adds one sample to the gradients of a layer, and computes the slopes of the layer's input.
static void layer_backward(struct network *net, uint32_t layer, uint32_t s)
{
    const float *weight = net->tensors[2 * layer].value;
    const float *in = net->activations[s][layer];
    const float *out = net->slopes[s][layer + 1];
    const uint32_t outputs = widths[layer + 1];
    for (uint32_t o = 0; o < outputs; o++)
        net->tensors[2 * layer + 1].gradient[o] += out[o];
    for (uint32_t i = 0; i < widths[layer]; i++) {
        float slope = 0;
        for (uint32_t o = 0; o < outputs; o++) {
            net->tensors[2 * layer].gradient[i * outputs + o] += in[i] * out[o];
            slope += weight[i * outputs + o] * out[o];
        }
        net->slopes[s][layer][i] = slope * (1 - in[i] * in[i]);
    }
}

static void network_update(struct network *net)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct tensor *tensor = &net->tensors[t];
        for (uint32_t i = 0; i < tensor->count; i++) {
            tensor->velocity[i] = 0.9f * tensor->velocity[i] + tensor->gradient[i];
            tensor->value[i] -= 0.05f * tensor->velocity[i];
        }
    }
}

static double network_judge(struct network *net)
{
    double loss = 0;
    const uint32_t judged = test_slow() > 1 ? JUDGED / 5 : JUDGED;
    for (uint32_t sample = 0; sample < judged; sample++)
        loss += network_forward(net, sample, 0, 0);
    return loss;
}

// ---- Training ----------------------------------------------------------------------------------

static lockstep_module *train_register(struct rank *rank, struct network *net)
{
    static const char *const names[TENSORS] = {"hidden1.weight", "hidden1.bias",  "hidden2.weight",
                                               "hidden2.bias",   "digits.weight", "digits.bias"};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[TENSORS];
    int64_t shapes[TENSORS];
    lockstep_module *module;
    for (uint32_t t = 0; t < TENSORS; t++) {
        shapes[t] = net->tensors[t].count;
        parameters[t] = (struct lockstep_parameter){.name = names[t],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &shapes[t],
                                                    .data = net->tensors[t].value,
                                                    .gradient = net->tensors[t].gradient};
    }
    config.name = "network";
    config.parameters = parameters;
    config.parameter_count = TENSORS;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    return module;
}

static void train_ready(struct rank *rank, lockstep_module *module, lockstep_call *call,
                        uint32_t tensor, uint64_t *sleeps)
{
    usleep((useconds_t)(trainer_random(sleeps) % SLEEP_US));
    RANK_OK(rank, lockstep_grad_ready(module, call, tensor, NULL, NULL));
}

static void train_backward(struct rank *rank, lockstep_module *module, struct network *net,
                           uint32_t batch, uint64_t *sleeps)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module, &call));
    for (uint32_t l = LAYERS; l-- > 0;) {
        for (uint32_t t = 2 * l; t <= 2 * l + 1; t++)
            memset(net->tensors[t].gradient, 0, net->tensors[t].count * sizeof(float));
        for (uint32_t s = 0; s < batch; s++)
            layer_backward(net, l, s);
        train_ready(rank, module, call, 2 * l, sleeps);
        train_ready(rank, module, call, 2 * l + 1, sleeps);
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// Runs a step. Ranks have different numbers of samples; a rank's number is its weight.
static void train_step(struct rank *rank, lockstep_module *module, struct network *net,
                       uint32_t step, uint64_t *sleeps)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const uint32_t batch = BATCH_MAX - rank->rank % 2;
    const uint32_t first = (step * CLUSTER_MAX_WORLD + rank->rank) * BATCH_MAX;
    options.weight = batch;
    trainer_begin(rank, &options);
    for (uint32_t s = 0; s < batch; s++)
        network_forward(net, first + s, s, 1 / (float)batch);
    train_backward(rank, module, net, batch, sleeps);
    trainer_end(rank);
    network_update(net);
}

// context: the seed of the sleeps.
static void train_body(struct rank *rank)
{
    const uint64_t *seed = rank->context;
    uint64_t sleeps = *seed * 1000 + rank->rank;
    struct network *net = calloc(1, sizeof(*net));
    uint64_t hash;
    double before;
    RANK_TRUE(rank, net != NULL);
    network_init(net, rank->rank == 0); // Other ranks get the values of rank 0 at start.
    lockstep_module *module = train_register(rank, net);
    RANK_OK(rank, lockstep_start(rank->session));
    before = network_judge(net);
    for (uint32_t step = 0; step < STEPS; step++)
        train_step(rank, module, net, step, &sleeps);
    RANK_TRUE(rank, network_judge(net) < before * 0.8);
    RANK_OK(rank, lockstep_state_hash(rank->session, &hash));
    rank_digest(rank, &hash, sizeof(hash));
    for (uint32_t t = 0; t < TENSORS; t++)
        rank_digest(rank, net->tensors[t].value, net->tensors[t].count * sizeof(float));
    network_fini(net);
    free(net);
}

// The cap of the demo: the upper layers travel while the backward pass is in the lowest layer.
static void train_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = 128 << 10;
}

static void case_27_mnist_bits_are_those_of_any_timing(const struct setting *setting)
{
    static uint64_t digests[CLUSTER_MAX_WORLD + 1]; // By world size; 0: not known yet.
    uint64_t own = 0; // The digest of this setting, if NCCL sums in an order of its own.
    uint64_t *expected = setting->devices > 1 ? &own : &digests[setting->world_size];
    const struct setting ring = setting_on_ring(setting);
    const uint64_t repetitions = test_slow() > 1 ? 2 : REPETITIONS;
    for (uint64_t seed = 1; seed <= repetitions; seed++) {
        const struct cluster_test test = {
            .setting = &ring, .configure = train_configure, .body = train_body, .context = &seed};
        const uint64_t digest = ranks_run_test(&test);
        if (*expected == 0)
            *expected = digest;
        assert_true(digest == *expected);
    }
}

int main(void)
{
    static const uint32_t all_worlds[] = {2, 3, 5, 7, 0};
    static const uint32_t slow_worlds[] = {3, 0}; // The network takes minutes under a sanitizer.
    const struct stamp stamps[] = {
        {"case_27_mnist_bits_are_those_of_any_timing", case_27_mnist_bits_are_those_of_any_timing,
         test_slow() > 1 ? slow_worlds : all_worlds},
    };
    data_load();
    return stamp_run_whole("reducer: MNIST", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
