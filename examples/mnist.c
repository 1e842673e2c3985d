// SPDX-License-Identifier: Apache-2.0
// mnist: trains a small network on the 60,000 MNIST digits, alone or with any number of workers.
//
// Forward and backward are plain C; everything about the other workers is in the section "data
// parallel" and in train_step. Started by itself it is a world of one. Started by `lockstep run -n
// 4` it is four workers, each with a quarter of every batch, that do what one would have done:
//
//   - The samples of a step depend on the seed only. Rank r takes the r-th part of them, and says
//     by the step's weight how many these are, so the mean over all ranks is the mean over the
//     batch.
//   - Gradients are reported layer by layer, last layer first, while backward computes the next.
//   - All ranks get the same bits, apply the same update, and so keep the same parameters.
//   - With --virtual-ranks V the samples are dealt to V leaves, and a rank makes one step for each
//     of its leaves: then the parameters have the same bits on any number of workers.
//
// Nothing else is exchanged in a step: losses are summed once an epoch.
//
// With --survive the workers go on when one of them is killed (config.on_failure): samples are
// dealt again to those that are left. Losses are then metrics of the steps in place of a collective
// after each epoch, and each rank measures the accuracy and tells its hash by itself. So there is
// no collective that has to be called again after a death.
#include <lockstep/lockstep.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MARK_STEPS = 20,
    PIXELS = 28 * 28,
    CLASSES = 10,
    LAYERS = 3,
    EVALUATE_BATCH = 100, // Samples in one forward pass when the accuracy is measured.
};

// Neurons: what goes in, the two hidden layers, and one for each digit.
static const int widths[LAYERS + 1] = {PIXELS, 256, 128, CLASSES};

struct options {
    const char *data; // Directory of the four MNIST files.
    const char *log_losses; // CSV file of every step's loss, or NULL.
    int epochs;
    int batch; // Samples in a step, over all ranks.
    int steps; // Stop after so many; 0: when the epochs are over.
    double rate;
    double momentum;
    uint64_t seed;
    uint32_t virtual_ranks; // 0: a rank is one leaf.
    bool json;
    bool survive; // True if the others go on when a worker dies.
};

// ---- small tools -------------------------------------------------------------------------------

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("mnist: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

// The exit code tells the launcher, as sysexits.h has it, whether to start us again.
static int exit_code(int status)
{
    switch (status) {
    case LOCKSTEP_E_PEER_LOST:
        return 75; // EX_TEMPFAIL: another worker is gone, nothing is wrong here.
    case LOCKSTEP_E_CONFIG:
        return 78; // EX_CONFIG: it would end the same way.
    default:
        return 1;
    }
}

// Every call of the library goes through here.
static void check(int status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "mnist: %s: %s\n", lockstep_status_name(status), lockstep_error_text());
    exit(exit_code(status));
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (!memory)
        fail("out of memory");
    return memory;
}

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
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
static double random_signed(uint64_t *state)
{
    return (double)(random_next(state) >> 11) * 0x1p-52 - 1.0;
}

// ---- data --------------------------------------------------------------------------------------

struct dataset {
    const uint8_t *images; // [count][PIXELS], borrowed from the mapped file.
    const uint8_t *labels; // [count], each below CLASSES.
    int count;
};

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

// Maps an IDX file of bytes: a magic number that ends with the number of dimensions, the
// dimensions, the data. All ranks of a host share the pages. Returns the data, and the first
// dimension in *count.
static const uint8_t *idx_open(const char *directory, const char *name, int dims, int *count)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) >= sizeof(path))
        fail("the path of the data directory is too long");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) < 0)
        fail("%s: %s (tools/get-mnist fetches it; --data names its directory)", path,
             strerror(errno));
    size_t header_size = 4 + 4 * (size_t)dims;
    size_t size = (size_t)status.st_size;
    if (size < header_size)
        fail("%s: not an MNIST file: too short", path);
    const uint8_t *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED)
        fail("%s: %s", path, strerror(errno));
    close(file);

    uint64_t item_size = dims == 3 ? PIXELS : 1;
    uint32_t items = big_endian(bytes + 4);
    bool right_shape = dims == 1 || (big_endian(bytes + 8) == 28 && big_endian(bytes + 12) == 28);
    if (big_endian(bytes) != (0x800u | (uint32_t)dims) || !right_shape || items > 1000000 ||
        size != header_size + items * item_size)
        fail("%s: not the MNIST file of this name", path);
    *count = (int)items;
    return bytes + header_size;
}

static struct dataset dataset_open(const char *directory, const char *images, const char *labels)
{
    struct dataset data;
    int label_count;
    data.images = idx_open(directory, images, 3, &data.count);
    data.labels = idx_open(directory, labels, 1, &label_count);
    if (label_count != data.count || data.count == 0)
        fail("%s/%s and %s do not belong together", directory, images, labels);
    for (int i = 0; i < data.count; i++)
        if (data.labels[i] >= CLASSES)
            fail("%s/%s: label %d is not a digit", directory, labels, i);
    return data;
}

// The order of an epoch's samples: the same on every rank, in every world.
static void shuffle(int *order, int count, uint64_t seed, int epoch)
{
    uint64_t state = seed * 1000003u + (uint64_t)epoch;
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int j = (int)(random_next(&state) % (uint64_t)(i + 1));
        int moved = order[i];
        order[i] = order[j];
        order[j] = moved;
    }
}

// ---- matrix product ----------------------------------------------------------------------------

// c[rows][columns] += a b, where b is [inner][columns] and a(m, k) is a[m * a_row + k * a_column],
// so that a can be read transposed. Tiles of c stay in registers while k runs. Elements that do not
// fill a tile are summed in the same order, so that a sample's result does not depend on who shares
// its batch.
enum {
    TILE_ROWS = 4,
    TILE_COLUMNS = 8
};

static void product_tile(float *c, size_t columns, const float *a, size_t a_row, size_t a_column,
                         const float *b, size_t inner)
{
    float sum[TILE_ROWS][TILE_COLUMNS] = {{0}};
    for (size_t k = 0; k < inner; k++, a += a_column, b += columns)
        for (size_t i = 0; i < TILE_ROWS; i++)
            for (size_t j = 0; j < TILE_COLUMNS; j++)
                sum[i][j] += a[i * a_row] * b[j];
    for (size_t i = 0; i < TILE_ROWS; i++)
        for (size_t j = 0; j < TILE_COLUMNS; j++)
            c[i * columns + j] += sum[i][j];
}

static void product_element(float *c, size_t columns, const float *a, size_t a_column,
                            const float *b, size_t inner)
{
    float sum = 0;
    for (size_t k = 0; k < inner; k++)
        sum += a[k * a_column] * b[k * columns];
    *c += sum;
}

static void product(float *c, size_t rows, size_t columns, const float *a, size_t a_row,
                    size_t a_column, const float *b, size_t inner)
{
    size_t tiled_rows = rows - rows % TILE_ROWS;
    size_t tiled_columns = columns - columns % TILE_COLUMNS;
    for (size_t n = 0; n < tiled_columns; n += TILE_COLUMNS)
        for (size_t m = 0; m < tiled_rows; m += TILE_ROWS)
            product_tile(c + m * columns + n, columns, a + m * a_row, a_row, a_column, b + n,
                         inner);
    for (size_t m = 0; m < rows; m++)
        for (size_t n = m < tiled_rows ? tiled_columns : 0; n < columns; n++)
            product_element(c + m * columns + n, columns, a + m * a_row, a_column, b + n, inner);
}

// ---- the network -------------------------------------------------------------------------------

// A trained tensor with its gradient and the optimizer's state, of the same shape.
struct tensor {
    size_t count;
    float *value;
    float *gradient; // Mean over this rank's samples; after the step over everyone's.
    float *velocity;
};

struct layer {
    size_t inputs, outputs;
    struct tensor weight; // [inputs][outputs]
    struct tensor bias; // [outputs]
    float *transposed; // [outputs][inputs], the weight, scratch of backward
    float *output; // [capacity][outputs], after tanh; of the last layer: logits
    float *output_gradient; // [capacity][outputs]
};

struct network {
    struct layer layers[LAYERS];
    float *input; // [capacity][PIXELS]
};

static void tensor_init(struct tensor *tensor, size_t count)
{
    tensor->count = count;
    tensor->value = allocate(count, sizeof(float));
    tensor->gradient = allocate(count, sizeof(float));
    tensor->velocity = allocate(count, sizeof(float));
}

static void tensor_fini(struct tensor *tensor)
{
    free(tensor->value);
    free(tensor->gradient);
    free(tensor->velocity);
}

// capacity: samples in one pass, at most.
static void network_init(struct network *net, size_t capacity)
{
    net->input = allocate(capacity * PIXELS, sizeof(float));
    for (int l = 0; l < LAYERS; l++) {
        struct layer *layer = &net->layers[l];
        layer->inputs = (size_t)widths[l];
        layer->outputs = (size_t)widths[l + 1];
        tensor_init(&layer->weight, layer->inputs * layer->outputs);
        tensor_init(&layer->bias, layer->outputs);
        layer->transposed = allocate(layer->weight.count, sizeof(float));
        layer->output = allocate(capacity * layer->outputs, sizeof(float));
        layer->output_gradient = allocate(capacity * layer->outputs, sizeof(float));
    }
}

static void network_fini(struct network *net)
{
    free(net->input);
    for (int l = 0; l < LAYERS; l++) {
        struct layer *layer = &net->layers[l];
        tensor_fini(&layer->weight);
        tensor_fini(&layer->bias);
        free(layer->transposed);
        free(layer->output);
        free(layer->output_gradient);
    }
}

// Glorot's initialization with a uniform distribution; biases stay zero.
static void network_randomize(struct network *net, uint64_t seed)
{
    uint64_t state = seed;
    for (int l = 0; l < LAYERS; l++) {
        struct layer *layer = &net->layers[l];
        double bound = sqrt(6.0 / (double)(layer->inputs + layer->outputs));
        for (size_t i = 0; i < layer->weight.count; i++)
            layer->weight.value[i] = (float)(bound * random_signed(&state));
    }
}

// Fills the input with samples, scaled to mean 0 and deviation 1 over the training set.
static void network_load(struct network *net, const struct dataset *data, const int *samples,
                         int count)
{
    for (int s = 0; s < count; s++) {
        const uint8_t *image = data->images + (size_t)samples[s] * PIXELS;
        float *input = net->input + (size_t)s * PIXELS;
        for (int p = 0; p < PIXELS; p++)
            input[p] = ((float)image[p] / 255.0f - 0.1307f) / 0.3081f;
    }
}

static void layer_forward(struct layer *layer, const float *input, size_t count, bool hidden)
{
    size_t inputs = layer->inputs, outputs = layer->outputs;
    for (size_t s = 0; s < count; s++)
        memcpy(layer->output + s * outputs, layer->bias.value, outputs * sizeof(float));
    product(layer->output, count, outputs, input, inputs, 1, layer->weight.value, inputs);
    for (size_t i = 0; hidden && i < count * outputs; i++)
        layer->output[i] = tanhf(layer->output[i]);
}

static void network_forward(struct network *net, size_t count)
{
    const float *input = net->input;
    for (int l = 0; l < LAYERS; l++) {
        layer_forward(&net->layers[l], input, count, l < LAYERS - 1);
        input = net->layers[l].output;
    }
}

// Softmax and cross-entropy. Returns the sum of the losses; the logits' gradient is that of the
// mean over this rank's samples.
static double network_loss(struct network *net, const struct dataset *data, const int *samples,
                           int count)
{
    struct layer *last = &net->layers[LAYERS - 1];
    double loss = 0;
    for (int s = 0; s < count; s++) {
        const float *logits = last->output + s * CLASSES;
        float *gradient = last->output_gradient + s * CLASSES;
        int label = data->labels[samples[s]];
        float most = logits[0];
        for (int c = 1; c < CLASSES; c++)
            most = logits[c] > most ? logits[c] : most;
        double total = 0;
        for (int c = 0; c < CLASSES; c++)
            total += exp((double)(logits[c] - most));
        for (int c = 0; c < CLASSES; c++) {
            double probability = exp((double)(logits[c] - most)) / total;
            gradient[c] = (float)((probability - (c == label)) / count);
        }
        loss += log(total) - (double)(logits[label] - most);
    }
    return loss;
}

// The gradients of one layer's weight and bias, from its output's gradient.
static void layer_backward(struct layer *layer, const float *input, size_t count)
{
    size_t inputs = layer->inputs, outputs = layer->outputs;
    memset(layer->weight.gradient, 0, layer->weight.count * sizeof(float));
    product(layer->weight.gradient, inputs, outputs, input, 1, inputs, layer->output_gradient,
            count);
    memset(layer->bias.gradient, 0, layer->bias.count * sizeof(float));
    for (size_t s = 0; s < count; s++)
        for (size_t o = 0; o < outputs; o++)
            layer->bias.gradient[o] += layer->output_gradient[s * outputs + o];
}

// The gradient of a layer's input, which is the output of the layer below it.
static void layer_backward_input(struct layer *layer, struct layer *below, size_t count)
{
    size_t inputs = layer->inputs, outputs = layer->outputs;
    for (size_t i = 0; i < inputs; i++)
        for (size_t o = 0; o < outputs; o++)
            layer->transposed[o * inputs + i] = layer->weight.value[i * outputs + o];
    memset(below->output_gradient, 0, count * inputs * sizeof(float));
    product(below->output_gradient, count, inputs, layer->output_gradient, outputs, 1,
            layer->transposed, outputs);
    for (size_t i = 0; i < count * inputs; i++)
        below->output_gradient[i] *= 1 - below->output[i] * below->output[i];
}

static void tensor_update(struct tensor *tensor, float rate, float momentum)
{
    for (size_t i = 0; i < tensor->count; i++) {
        tensor->velocity[i] = momentum * tensor->velocity[i] + tensor->gradient[i];
        tensor->value[i] -= rate * tensor->velocity[i];
    }
}

static void network_update(struct network *net, float rate, float momentum)
{
    for (int l = 0; l < LAYERS; l++) {
        tensor_update(&net->layers[l].weight, rate, momentum);
        tensor_update(&net->layers[l].bias, rate, momentum);
    }
}

static int network_correct(const struct network *net, const struct dataset *data,
                           const int *samples, int count)
{
    int correct = 0;
    for (int s = 0; s < count; s++) {
        const float *logits = net->layers[LAYERS - 1].output + s * CLASSES;
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            best = logits[c] > logits[best] ? c : best;
        correct += best == data->labels[samples[s]];
    }
    return correct;
}

// ---- data parallel -----------------------------------------------------------------------------

struct trainer {
    struct options options;
    struct dataset training;
    struct dataset test;
    struct network net;
    lockstep_session *session;
    lockstep_module *module;
    uint32_t rank;
    uint32_t world_size;
    uint32_t first_leaf; // This rank's leaves: `leaves` from this one, of all_leaves.
    uint32_t leaves;
    uint32_t all_leaves;
    int *order; // [training.count], the samples of this epoch in their order
    int *test_order; // [test.count], the numbers 0, 1, 2 and so on.
    double *losses; // [steps_per_epoch], sums over the samples of each step
    double accuracy; // On the test images, after the last epoch.
    double last_loss; // Mean over this rank's samples of the last step: only for the progress bar.
    int steps_per_epoch;
    int steps_done;
    double all_loss; // With --survive: the sum over the samples of the epoch, of all ranks.
    double all_samples; // Their number.
    double started_s;
    double bar_s; // When the progress was last shown.
    FILE *log;
};

// Part p of count items is [part(p), part(p + 1)): contiguous, and equal up to one.
static int part(int count, uint32_t p, uint32_t parts)
{
    return (int)((uint64_t)count * p / parts);
}

static struct lockstep_parameter describe(const char *name, const struct tensor *tensor,
                                          uint32_t dims, const int64_t *shape)
{
    return (struct lockstep_parameter){.name = name,
                                       .dtype = LOCKSTEP_FLOAT32,
                                       .dims = dims,
                                       .shape = shape,
                                       .data = tensor->value,
                                       .gradient = tensor->gradient};
}

// Parameter 2 l is the weight of layer l, 2 l + 1 its bias.
static void register_network(struct trainer *trainer)
{
    static const char *const names[2 * LAYERS] = {"hidden1.weight", "hidden1.bias",
                                                  "hidden2.weight", "hidden2.bias",
                                                  "digits.weight",  "digits.bias"};
    struct lockstep_parameter parameters[2 * LAYERS];
    int64_t shapes[LAYERS][2]; // [inputs, outputs] of each layer
    for (int l = 0; l < LAYERS; l++) {
        const struct layer *layer = &trainer->net.layers[l];
        shapes[l][0] = widths[l];
        shapes[l][1] = widths[l + 1];
        parameters[2 * l] = describe(names[2 * l], &layer->weight, 2, &shapes[l][0]);
        parameters[2 * l + 1] = describe(names[2 * l + 1], &layer->bias, 1, &shapes[l][1]);
    }
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    config.name = "network";
    config.parameters = parameters;
    config.parameter_count = 2 * LAYERS;
    check(lockstep_module_register(trainer->session, &config, &trainer->module));
}

static void trainer_open(struct trainer *trainer)
{
    // The default buckets are for models of hundreds of megabytes. This one has less than one: with
    // a smaller first bucket the upper layers travel while backward is still in the lowest.
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.bucket_first_bytes = 128 << 10;
    config.virtual_ranks = trainer->options.virtual_ranks;
    if (trainer->options.survive)
        config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    check(lockstep_open(&config, &trainer->session));
    check(lockstep_world(trainer->session, &trainer->rank, &trainer->world_size));
    check(lockstep_leaves(trainer->session, &trainer->first_leaf, &trainer->leaves,
                          &trainer->all_leaves));

    // The last survivor has the whole batch.
    int parts = trainer->options.survive ? 1 : (int)trainer->all_leaves;
    int capacity = trainer->options.batch / parts + 1;
    network_init(&trainer->net, (size_t)(capacity > EVALUATE_BATCH ? capacity : EVALUATE_BATCH));
    // The other ranks begin with zeros, and get rank 0's values from lockstep_start.
    if (trainer->rank == 0)
        network_randomize(&trainer->net, trainer->options.seed);
    register_network(trainer);
    check(lockstep_start(trainer->session));
}

// Backward from the last layer to the first. A reported gradient belongs to the library until the
// end of the step. It may already be on its way to the other ranks while the next layer is
// computed.
static void train_backward(struct trainer *trainer, lockstep_call *call, size_t count)
{
    struct network *net = &trainer->net;
    for (uint32_t l = LAYERS; l-- > 0;) {
        layer_backward(&net->layers[l], l > 0 ? net->layers[l - 1].output : net->input, count);
        check(lockstep_grad_ready(trainer->module, call, 2 * l, NULL, NULL));
        check(lockstep_grad_ready(trainer->module, call, 2 * l + 1, NULL, NULL));
        if (l > 0)
            layer_backward_input(&net->layers[l], &net->layers[l - 1], count);
    }
}

// The weight of a step is needed before its view, so the world is asked before the step begins. If
// a rank dies just then, no rank trains on its samples of this step.
static void deal_again(struct trainer *trainer)
{
    if (!trainer->options.survive)
        return;
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    check(lockstep_world_change(trainer->session, &change));
    if (change.changes == 0)
        return;
    trainer->rank = trainer->first_leaf = change.rank;
    trainer->world_size = trainer->all_leaves = change.world_size;
}

static void tell_change(const struct trainer *trainer)
{
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    check(lockstep_world_change(trainer->session, &change));
    if (trainer->options.json)
        printf("{\"event\": \"change\", \"step\": %" PRIu64 ", \"rank\": %" PRIu32
               ", \"rank_before\": %" PRIu32 ", \"world_size\": %" PRIu32 "}\n",
               change.step, change.rank, change.rank_before, change.world_size);
    else
        printf("step %" PRIu64 ": rank %" PRIu32 " goes on as rank %" PRIu32 " of %" PRIu32
               ": %s\n",
               change.step, change.rank_before, change.rank, change.world_size, change.text);
}

// Adds up the losses of the step that has ended, over all ranks.
static void survive_losses(struct trainer *trainer)
{
    double value;
    check(lockstep_metric_read(trainer->session, "loss_sum", &value, NULL));
    trainer->all_loss += value;
    check(lockstep_metric_read(trainer->session, "images", &value, NULL));
    trainer->all_samples += value;
}

// Forward and backward on one leaf's part of samples[batch]. Returns the sum of its losses. Without
// --virtual-ranks a rank has one leaf.
static double train_leaf(struct trainer *trainer, const int *samples, int batch, uint32_t leaf)
{
    int first = part(batch, leaf, trainer->all_leaves);
    int count = part(batch, leaf + 1, trainer->all_leaves) - first;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = (uint64_t)count;
    options.accumulate = leaf + 1 < trainer->first_leaf + trainer->leaves;
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    check(lockstep_step_begin(trainer->session, &options, &view));
    if (view.changed)
        tell_change(trainer);

    network_load(&trainer->net, &trainer->training, samples + first, count);
    network_forward(&trainer->net, (size_t)count);
    double loss = network_loss(&trainer->net, &trainer->training, samples + first, count);

    lockstep_call *call;
    check(lockstep_call_begin(trainer->module, &call));
    train_backward(trainer, call, (size_t)count);
    check(lockstep_call_end(call));
    check(lockstep_counter_add(trainer->session, "samples", count));
    if (trainer->options.survive) {
        check(lockstep_metric_add(trainer->session, "loss_sum", LOCKSTEP_METRIC_SUM, loss));
        check(lockstep_metric_add(trainer->session, "images", LOCKSTEP_METRIC_SUM, count));
    }
    check(lockstep_step_end(trainer->session, NULL));
    if (trainer->options.survive)
        survive_losses(trainer);
    if (count > 0)
        trainer->last_loss = loss / count;
    return loss;
}

// One optimizer step on this rank's part of samples[batch]. Returns the sum of its losses.
static double train_step(struct trainer *trainer, const int *samples, int batch, double rate)
{
    double loss = 0;
    deal_again(trainer);
    for (uint32_t i = 0; i < trainer->leaves; i++)
        loss += train_leaf(trainer, samples, batch, trainer->first_leaf + i);
    network_update(&trainer->net, (float)rate, (float)trainer->options.momentum);
    return loss;
}

// The share of test images that are recognized: each rank tries its part of them. With --survive
// each rank tries all.
static double measure_accuracy(struct trainer *trainer)
{
    check(lockstep_mark(trainer->session, "measuring the accuracy"));
    const bool alone = trainer->options.survive;
    const uint32_t own = alone ? 0 : trainer->rank;
    const uint32_t parts = alone ? 1 : trainer->world_size;
    int end = part(trainer->test.count, own + 1, parts);
    int64_t correct = 0;
    for (int first = part(trainer->test.count, own, parts); first < end;) {
        int count = end - first < EVALUATE_BATCH ? end - first : EVALUATE_BATCH;
        network_load(&trainer->net, &trainer->test, trainer->test_order + first, count);
        network_forward(&trainer->net, (size_t)count);
        correct +=
            network_correct(&trainer->net, &trainer->test, trainer->test_order + first, count);
        first += count;
    }
    if (!alone)
        check(lockstep_allreduce(trainer->session, "correct", &correct, 1, LOCKSTEP_INT64,
                                 LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    return (double)correct / trainer->test.count;
}

// Collects every rank's hash of its parameters, in rank order. Returns how many equal rank 0's.
static uint32_t hashes_equal(struct trainer *trainer, uint64_t *hash)
{
    int64_t *hashes = allocate(trainer->world_size, sizeof(int64_t));
    uint64_t own;
    check(lockstep_state_hash(trainer->session, &own));
    memcpy(&hashes[trainer->rank], &own, sizeof(own));
    check(lockstep_allreduce(trainer->session, "hashes", hashes, trainer->world_size,
                             LOCKSTEP_INT64, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    uint32_t equal = 0;
    for (uint32_t r = 0; r < trainer->world_size; r++)
        equal += hashes[r] == hashes[0];
    memcpy(hash, &hashes[0], sizeof(*hash));
    free(hashes);
    return equal;
}

// ---- what is told, by rank 0 -------------------------------------------------------------------

// `lockstep run` reads our output through a pipe, but knows a line that begins with a carriage
// return: it draws it on a terminal and drops it elsewhere.
static bool bar_wanted(const struct trainer *trainer)
{
    bool launched = getenv("LOCKSTEP_DASHBOARD") != NULL;
    return !trainer->options.json && (launched || isatty(STDOUT_FILENO));
}

static void bar_clear(const struct trainer *trainer)
{
    if (bar_wanted(trainer))
        fputs(isatty(STDOUT_FILENO) ? "\r\033[K" : "\r", stdout);
}

// Ten times a second: a bar on a terminal, an object with --json, nothing elsewhere.
static void tell_progress(struct trainer *trainer, int epoch, int step)
{
    static const char full[] = "##############################";
    const int width = (int)sizeof(full) - 1;
    double now = now_s();
    if (trainer->rank != 0 || now - trainer->bar_s < 0.1)
        return;
    trainer->bar_s = now;
    if (trainer->options.json) {
        printf("{\"event\": \"progress\", \"epoch\": %d, \"step\": %d, \"steps\": %d}\n", epoch,
               step, trainer->steps_per_epoch);
    } else if (bar_wanted(trainer)) {
        int filled = step * width / trainer->steps_per_epoch;
        printf("\repoch %d/%d [%-*.*s] %4d/%d  own loss %.4f", epoch, trainer->options.epochs,
               width, filled, full, step, trainer->steps_per_epoch, trainer->last_loss);
        fflush(stdout);
    }
}

static void tell_epoch(const struct trainer *trainer, int epoch, double loss)
{
    if (trainer->rank != 0)
        return;
    bar_clear(trainer);
    double seconds = now_s() - trainer->started_s;
    if (trainer->options.json)
        printf("{\"event\": \"epoch\", \"epoch\": %d, \"loss\": %.9g, \"accuracy\": %.6g, "
               "\"seconds\": %.3f}\n",
               epoch, loss, trainer->accuracy, seconds);
    else
        printf("epoch %d/%d  loss %.4f  accuracy %.2f %%  %.1f s\n", epoch, trainer->options.epochs,
               loss, 100 * trainer->accuracy, seconds);
}

static void tell_end(const struct trainer *trainer, uint64_t hash, uint32_t equal)
{
    if (trainer->rank != 0 && !trainer->options.survive)
        return;
    double seconds = now_s() - trainer->started_s;
    int64_t samples;
    check(lockstep_counter_read(trainer->session, "samples", &samples));
    if (trainer->options.json)
        printf("{\"event\": \"end\", \"accuracy\": %.6g, \"seconds\": %.3f, \"steps\": %d, "
               "\"samples\": %" PRId64 ", \"hash\": \"0x%016" PRIx64 "\", \"equal\": %" PRIu32
               ", \"world_size\": %" PRIu32 "}\n",
               trainer->accuracy, seconds, trainer->steps_done, samples, hash, equal,
               trainer->world_size);
    else if (trainer->options.survive)
        printf("rank %" PRIu32 " of %" PRIu32 ": test accuracy %.2f %%, %d steps, %" PRId64
               " samples, %.1f s, parameters: hash 0x%016" PRIx64 "\n",
               trainer->rank, trainer->world_size, 100 * trainer->accuracy, trainer->steps_done,
               samples, seconds, hash);
    else
        printf("test accuracy %.2f %%, %d steps, %" PRId64 " samples, %.1f s\n"
               "parameters: hash 0x%016" PRIx64 " equal on %" PRIu32 " of %" PRIu32 " ranks\n",
               100 * trainer->accuracy, trainer->steps_done, samples, seconds, hash, equal,
               trainer->world_size);
}

// ---- training ----------------------------------------------------------------------------------

static bool finished(const struct trainer *trainer)
{
    return trainer->options.steps > 0 && trainer->steps_done == trainer->options.steps;
}

// Falls in a straight line from the given rate to zero over all epochs.
static double learning_rate(const struct trainer *trainer)
{
    double all = (double)trainer->options.epochs * trainer->steps_per_epoch;
    return trainer->options.rate * (1.0 - trainer->steps_done / all);
}

static int batch_of(const struct trainer *trainer, int step)
{
    int left = trainer->training.count - step * trainer->options.batch;
    return left < trainer->options.batch ? left : trainer->options.batch;
}

// Sums the losses of the epoch's steps over all ranks, which took no time in the steps, and logs
// them. Returns the mean loss over all samples.
static double collect_losses(struct trainer *trainer, int steps)
{
    if (trainer->options.survive) {
        double mean = trainer->all_loss / trainer->all_samples;
        trainer->all_loss = trainer->all_samples = 0;
        return mean;
    }
    check(lockstep_allreduce(trainer->session, "losses", trainer->losses, (uint64_t)steps,
                             LOCKSTEP_FLOAT64, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    double loss = 0;
    int samples = 0;
    for (int step = 0; step < steps; step++) {
        loss += trainer->losses[step];
        samples += batch_of(trainer, step);
        if (trainer->log)
            fprintf(trainer->log, "%d,%.9g\n", trainer->steps_done - steps + step + 1,
                    trainer->losses[step] / batch_of(trainer, step));
    }
    if (trainer->log && fflush(trainer->log) != 0)
        fail("%s: %s", trainer->options.log_losses, strerror(errno));
    return loss / samples;
}

static void train_epoch(struct trainer *trainer, int epoch)
{
    char mark[48];
    snprintf(mark, sizeof(mark), "epoch %d", epoch);
    check(lockstep_mark(trainer->session, mark));
    shuffle(trainer->order, trainer->training.count, trainer->options.seed, epoch);
    int step = 0;
    while (step < trainer->steps_per_epoch && !finished(trainer)) {
        const int *samples = trainer->order + step * trainer->options.batch;
        trainer->losses[step] =
            train_step(trainer, samples, batch_of(trainer, step), learning_rate(trainer));
        trainer->steps_done++;
        if (step % MARK_STEPS == 0) { // The page draws the number over time.
            snprintf(mark, sizeof(mark), "epoch %d loss=%.4f", epoch, trainer->last_loss);
            check(lockstep_mark(trainer->session, mark));
        }
        step++;
        tell_progress(trainer, epoch, step);
    }
    double loss = collect_losses(trainer, step);
    trainer->accuracy = measure_accuracy(trainer);
    tell_epoch(trainer, epoch, loss);
}

static void train(struct trainer *trainer)
{
    if (trainer->rank == 0 && !trainer->options.json)
        printf("workers: %" PRIu32 ", batch: %d of %d images, epochs: %d\n", trainer->world_size,
               trainer->options.batch, trainer->training.count, trainer->options.epochs);
    trainer->started_s = now_s();
    for (int epoch = 1; epoch <= trainer->options.epochs && !finished(trainer); epoch++)
        train_epoch(trainer, epoch);

    uint64_t hash;
    if (trainer->options.survive) { // The output of each rank has its own hash.
        check(lockstep_state_hash(trainer->session, &hash));
        tell_end(trainer, hash, 1);
        return;
    }
    uint32_t equal = hashes_equal(trainer, &hash);
    tell_end(trainer, hash, equal);
    check(lockstep_state_check(trainer->session));
}

// ---- options and main --------------------------------------------------------------------------

static void print_help(void)
{
    puts("usage: mnist [options]\n"
         "Trains a small network on MNIST: alone, or as one worker of a job.\n"
         "\n"
         "  --data DIR         the four MNIST files (MNIST_DIR, else build/data/mnist)\n"
         "  --epochs N         passes over the training images (6)\n"
         "  --batch N          images in a step, over all workers (128)\n"
         "  --lr X             learning rate at the beginning; falls to zero (0.05)\n"
         "  --momentum X       (0.9)\n"
         "  --seed N           of the first weights and of the order of images (1)\n"
         "  --steps N          stop after N steps\n"
         "  --virtual-ranks N  the same bits on 1 to N workers: N parts of a batch (0: off)\n"
         "  --survive          the others go on when a worker is killed\n"
         "  --log-losses FILE  write step,loss for every step\n"
         "  --json             one JSON object a line instead of text\n"
         "  --help             this text\n"
         "\n"
         "Four workers on this machine: lockstep run -n 4 -- mnist --data DIR");
}

static double parse_number(const char *name, const char *text, double least, double most,
                           bool whole)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= most) ||
        (whole && value != floor(value)))
        fail("%s %s: not a %snumber from %.10g to %.10g", name, text, whole ? "whole " : "", least,
             most);
    return value;
}

// Takes a flag with its value. Returns whether there is such a flag.
static bool parse_option(struct options *options, const char *name, const char *value)
{
    if (strcmp(name, "--data") == 0)
        options->data = value;
    else if (strcmp(name, "--log-losses") == 0)
        options->log_losses = value;
    else if (strcmp(name, "--epochs") == 0)
        options->epochs = (int)parse_number(name, value, 1, 10000, true);
    else if (strcmp(name, "--batch") == 0)
        options->batch = (int)parse_number(name, value, 1, 1 << 20, true);
    else if (strcmp(name, "--steps") == 0)
        options->steps = (int)parse_number(name, value, 1, INT32_MAX, true);
    else if (strcmp(name, "--seed") == 0)
        options->seed = (uint64_t)parse_number(name, value, 0, INT32_MAX, true);
    else if (strcmp(name, "--virtual-ranks") == 0)
        options->virtual_ranks = (uint32_t)parse_number(name, value, 0, 64, true);
    else if (strcmp(name, "--lr") == 0)
        options->rate = parse_number(name, value, 0, 1000, false);
    else if (strcmp(name, "--momentum") == 0)
        options->momentum = parse_number(name, value, 0, 1, false);
    else
        return false;
    return true;
}

static struct options parse_options(int argc, char **argv)
{
    const char *directory = getenv("MNIST_DIR");
    struct options options = {.data = directory ? directory : "build/data/mnist",
                              .epochs = 6,
                              .batch = 128,
                              .rate = 0.05,
                              .momentum = 0.9,
                              .seed = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            print_help();
            exit(0);
        } else if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
        } else if (strcmp(argv[i], "--survive") == 0) {
            options.survive = true;
        } else if (i + 1 == argc || !parse_option(&options, argv[i], argv[i + 1])) {
            fail("%s: not an option, or its value is missing; try --help", argv[i]);
        } else {
            i++;
        }
    }
    if (options.survive && options.log_losses)
        fail("--log-losses does not go together with --survive");
    return options;
}

static void trainer_load(struct trainer *trainer)
{
    const char *directory = trainer->options.data;
    trainer->training =
        dataset_open(directory, "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    trainer->test = dataset_open(directory, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");
    if (trainer->options.batch > trainer->training.count)
        fail("--batch %d: there are %d images", trainer->options.batch, trainer->training.count);
    trainer->steps_per_epoch =
        (trainer->training.count + trainer->options.batch - 1) / trainer->options.batch;
    trainer->losses = allocate((size_t)trainer->steps_per_epoch, sizeof(double));
    trainer->order = allocate((size_t)trainer->training.count, sizeof(int));
    trainer->test_order = allocate((size_t)trainer->test.count, sizeof(int));
    for (int i = 0; i < trainer->test.count; i++)
        trainer->test_order[i] = i;
}

static void log_open(struct trainer *trainer)
{
    if (!trainer->options.log_losses || trainer->rank != 0)
        return;
    trainer->log = fopen(trainer->options.log_losses, "w");
    if (!trainer->log)
        fail("%s: %s", trainer->options.log_losses, strerror(errno));
    fputs("step,loss\n", trainer->log);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct trainer trainer = {.options = parse_options(argc, argv)};
    trainer_load(&trainer);
    trainer_open(&trainer);
    log_open(&trainer);
    train(&trainer);

    // The library borrowed the parameters until here.
    check(lockstep_close(trainer.session));
    if (trainer.log && fclose(trainer.log) != 0)
        fail("%s: %s", trainer.options.log_losses, strerror(errno));
    network_fini(&trainer.net);
    free(trainer.losses);
    free(trainer.order);
    free(trainer.test_order);
    return 0;
}
