// SPDX-License-Identifier: Apache-2.0
// mnist_cuda: the trainer of ../mnist.c on a GPU. Network, samples, first weights and optimizer are
// the same, and so are its calls of the library, so it takes part in a job with any number of
// those:
//
//   lockstep run -n 4 -- sh -c 'if [ $LOCKSTEP_RANK_HINT = 0 ]; then exec mnist_cuda; fi; exec
//   mnist'
//
// The difference is where tensors are: parameters and gradients are registered by their addresses
// on the device, a gradient is reported with the stream that computes it, and the end of the step
// with the stream that uses the result. The host waits for the device once an epoch. The kernels
// are plain, one thread for each number, because they are not what this shows.
//
// One process, one GPU: the first one, or that of CUDA_VISIBLE_DEVICES.
#include <lockstep/lockstep.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PIXELS = 28 * 28,
    CLASSES = 10,
    LAYERS = 3,
    EVALUATE_BATCH = 100,
    THREADS = 256,
};

static const int widths[LAYERS + 1] = {PIXELS, 256, 128, CLASSES};

struct options {
    const char *data = "build/data/mnist";
    int epochs = 6;
    int batch = 128;
    int steps = 0; // Stop after so many; 0: when the epochs are over.
    double rate = 0.05;
    double momentum = 0.9;
    uint64_t seed = 1;
};

// ---- small tools --------------------------------------------------------------------------------

[[noreturn]] static void fail(const char *what, const char *why)
{
    fprintf(stderr, "mnist_cuda: %s: %s\n", what, why);
    exit(1);
}

// Every call of the library goes through this function.
static void check(int status)
{
    if (status < 0)
        fail(lockstep_status_name(status), lockstep_error_text());
}

// Every call of CUDA goes through this function.
static void check(cudaError_t result)
{
    if (result != cudaSuccess)
        fail(cudaGetErrorName(result), cudaGetErrorString(result));
}

template <class T> static T *device_array(size_t count)
{
    T *memory = NULL;
    check(cudaMalloc((void **)&memory, (count > 0 ? count : 1) * sizeof(T)));
    check(cudaMemset(memory, 0, count * sizeof(T)));
    return memory;
}

// As in mnist.c: the same numbers on every machine.
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double random_signed(uint64_t *state)
{
    return (double)(random_next(state) >> 11) * 0x1p-52 - 1.0;
}

// ---- data ---------------------------------------------------------------------------------------

struct dataset {
    uint8_t *images; // [count][PIXELS], on the device.
    uint8_t *labels; // [count], on the device.
    int count;
};

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

// Copies an IDX file of bytes to the device: items of `size` bytes behind a header.
static uint8_t *idx_load(const char *directory, const char *name, size_t header, size_t size,
                         int *count)
{
    char path[4096];
    struct stat status;
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) < 0)
        fail(path, strerror(errno));
    const size_t bytes = (size_t)status.st_size;
    const uint8_t *memory =
        bytes > header ? (const uint8_t *)mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : NULL;
    if (memory == NULL || memory == MAP_FAILED || big_endian(memory + 4) > 1000000 ||
        bytes != header + big_endian(memory + 4) * size)
        fail(path, "not the MNIST file of this name");
    *count = (int)big_endian(memory + 4);
    uint8_t *there = device_array<uint8_t>(bytes - header);
    check(cudaMemcpy(there, memory + header, bytes - header, cudaMemcpyHostToDevice));
    munmap((void *)memory, bytes);
    close(file);
    return there;
}

static dataset dataset_load(const char *directory, const char *images, const char *labels)
{
    dataset data;
    int label_count;
    data.images = idx_load(directory, images, 16, PIXELS, &data.count);
    data.labels = idx_load(directory, labels, 8, 1, &label_count);
    if (label_count != data.count)
        fail(directory, "images and labels do not belong together");
    return data;
}

static void shuffle(int *order, int count, uint64_t seed, int epoch)
{
    uint64_t state = seed * 1000003u + (uint64_t)epoch;
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        const int j = (int)(random_next(&state) % (uint64_t)(i + 1));
        const int moved = order[i];
        order[i] = order[j];
        order[j] = moved;
    }
}

// ---- kernels: one thread for each number of the result ------------------------------------------

__device__ static int thread_number()
{
    return (int)(blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void load_samples(const uint8_t *images, const int *samples, int count, float *input)
{
    const int i = thread_number();
    if (i < count * PIXELS)
        input[i] =
            ((float)images[(size_t)samples[i / PIXELS] * PIXELS + i % PIXELS] / 255.0f - 0.1307f) /
            0.3081f;
}

__global__ void layer_forward(const float *input, const float *weight, const float *bias,
                              float *output, int count, int inputs, int outputs, bool hidden)
{
    const int i = thread_number();
    if (i >= count * outputs)
        return;
    const float *sample = input + (size_t)(i / outputs) * inputs;
    float sum = 0;
    for (int k = 0; k < inputs; k++)
        sum += sample[k] * weight[(size_t)k * outputs + i % outputs];
    sum += bias[i % outputs];
    output[i] = hidden ? tanhf(sum) : sum;
}

// A thread for each sample. losses[s]: its cross-entropy; gradient: that of the mean over count.
__global__ void loss_backward(const float *logits, const uint8_t *labels, const int *samples,
                              int count, float *gradient, double *losses)
{
    const int s = thread_number();
    if (s >= count)
        return;
    const float *own = logits + s * CLASSES;
    const int label = labels[samples[s]];
    float most = own[0];
    double total = 0;
    for (int c = 1; c < CLASSES; c++)
        most = own[c] > most ? own[c] : most;
    for (int c = 0; c < CLASSES; c++)
        total += exp((double)(own[c] - most));
    for (int c = 0; c < CLASSES; c++)
        gradient[s * CLASSES + c] =
            (float)((exp((double)(own[c] - most)) / total - (c == label)) / count);
    losses[s] = log(total) - (double)(own[label] - most);
}

__global__ void weight_backward(const float *input, const float *output_gradient, float *gradient,
                                int count, int inputs, int outputs)
{
    const int i = thread_number();
    if (i >= inputs * outputs)
        return;
    float sum = 0;
    for (int s = 0; s < count; s++)
        sum += input[(size_t)s * inputs + i / outputs] *
               output_gradient[(size_t)s * outputs + i % outputs];
    gradient[i] = sum;
}

__global__ void bias_backward(const float *output_gradient, float *gradient, int count, int outputs)
{
    const int o = thread_number();
    if (o >= outputs)
        return;
    float sum = 0;
    for (int s = 0; s < count; s++)
        sum += output_gradient[(size_t)s * outputs + o];
    gradient[o] = sum;
}

// Through the weights, and through the tanh of the layer below.
__global__ void input_backward(const float *output_gradient, const float *weight,
                               const float *below, float *below_gradient, int count, int inputs,
                               int outputs)
{
    const int i = thread_number();
    if (i >= count * inputs)
        return;
    float sum = 0;
    for (int o = 0; o < outputs; o++)
        sum += output_gradient[(size_t)(i / inputs) * outputs + o] *
               weight[(size_t)(i % inputs) * outputs + o];
    below_gradient[i] = sum * (1 - below[i] * below[i]);
}

// Not fused (--fmad=false), as on a CPU: parameters stay equal on ranks of both kinds.
__global__ void update(float *value, float *velocity, const float *gradient, int count, float rate,
                       float momentum)
{
    const int i = thread_number();
    if (i >= count)
        return;
    velocity[i] = momentum * velocity[i] + gradient[i];
    value[i] -= rate * velocity[i];
}

__global__ void count_correct(const float *logits, const uint8_t *labels, const int *samples,
                              int count, unsigned long long *correct)
{
    const int s = thread_number();
    if (s >= count)
        return;
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
        best = logits[s * CLASSES + c] > logits[s * CLASSES + best] ? c : best;
    if (best == labels[samples[s]])
        atomicAdd(correct, 1ull);
}

// ---- the network --------------------------------------------------------------------------------

// All on the device.
struct tensor {
    size_t count;
    float *value;
    float *gradient; // Mean over this rank's samples; after the step over everyone's.
    float *velocity;
};

struct layer {
    int inputs, outputs;
    tensor weight; // [inputs][outputs]
    tensor bias; // [outputs]
    float *output; // [capacity][outputs]
    float *output_gradient; // [capacity][outputs]
};

struct network {
    layer layers[LAYERS];
    float *input; // [capacity][PIXELS]
    cudaStream_t stream; // All that is computed.
};

static unsigned blocks(size_t threads)
{
    return (unsigned)((threads + THREADS - 1) / THREADS);
}

static tensor tensor_make(size_t count)
{
    return tensor{count, device_array<float>(count), device_array<float>(count),
                  device_array<float>(count)};
}

static void network_init(network *net, size_t capacity)
{
    check(cudaStreamCreateWithFlags(&net->stream, cudaStreamNonBlocking));
    net->input = device_array<float>(capacity * PIXELS);
    for (int l = 0; l < LAYERS; l++) {
        layer *layer = &net->layers[l];
        layer->inputs = widths[l];
        layer->outputs = widths[l + 1];
        layer->weight = tensor_make((size_t)layer->inputs * layer->outputs);
        layer->bias = tensor_make((size_t)layer->outputs);
        layer->output = device_array<float>(capacity * layer->outputs);
        layer->output_gradient = device_array<float>(capacity * layer->outputs);
    }
}

static void network_randomize(network *net, uint64_t seed)
{
    uint64_t state = seed;
    for (int l = 0; l < LAYERS; l++) {
        layer *layer = &net->layers[l];
        const double bound = sqrt(6.0 / (double)(layer->inputs + layer->outputs));
        float *values = (float *)malloc(layer->weight.count * sizeof(float));
        if (values == NULL)
            fail("malloc", "out of memory");
        for (size_t i = 0; i < layer->weight.count; i++)
            values[i] = (float)(bound * random_signed(&state));
        check(cudaMemcpy(layer->weight.value, values, layer->weight.count * sizeof(float),
                         cudaMemcpyHostToDevice));
        free(values);
    }
}

// samples: numbers on the device.
static void network_forward(network *net, const dataset *data, const int *samples, int count)
{
    if (count == 0)
        return;
    load_samples<<<blocks((size_t)count * PIXELS), THREADS, 0, net->stream>>>(data->images, samples,
                                                                              count, net->input);
    const float *input = net->input;
    for (int l = 0; l < LAYERS; l++) {
        layer *layer = &net->layers[l];
        layer_forward<<<blocks((size_t)count * layer->outputs), THREADS, 0, net->stream>>>(
            input, layer->weight.value, layer->bias.value, layer->output, count, layer->inputs,
            layer->outputs, l < LAYERS - 1);
        input = layer->output;
    }
    check(cudaGetLastError());
}

// With no samples the sums are zero.
static void layer_backward(network *net, int l, int count)
{
    layer *layer = &net->layers[l];
    const float *input = l > 0 ? net->layers[l - 1].output : net->input;
    weight_backward<<<blocks(layer->weight.count), THREADS, 0, net->stream>>>(
        input, layer->output_gradient, layer->weight.gradient, count, layer->inputs,
        layer->outputs);
    bias_backward<<<blocks(layer->bias.count), THREADS, 0, net->stream>>>(
        layer->output_gradient, layer->bias.gradient, count, layer->outputs);
    check(cudaGetLastError());
}

static void layer_backward_input(network *net, int l, int count)
{
    layer *layer = &net->layers[l];
    if (count > 0)
        input_backward<<<blocks((size_t)count * layer->inputs), THREADS, 0, net->stream>>>(
            layer->output_gradient, layer->weight.value, net->layers[l - 1].output,
            net->layers[l - 1].output_gradient, count, layer->inputs, layer->outputs);
    check(cudaGetLastError());
}

static void tensor_update(network *net, tensor *tensor, double rate, double momentum)
{
    update<<<blocks(tensor->count), THREADS, 0, net->stream>>>(tensor->value, tensor->velocity,
                                                               tensor->gradient, (int)tensor->count,
                                                               (float)rate, (float)momentum);
}

static void network_update(network *net, double rate, double momentum)
{
    for (int l = 0; l < LAYERS; l++) {
        tensor_update(net, &net->layers[l].weight, rate, momentum);
        tensor_update(net, &net->layers[l].bias, rate, momentum);
    }
    check(cudaGetLastError());
}

// ---- data parallel ------------------------------------------------------------------------------

struct trainer {
    options given;
    dataset training;
    dataset test;
    network net;
    lockstep_session *session;
    lockstep_module *module;
    uint32_t rank;
    uint32_t world_size;
    int *order; // [training.count], the order of this epoch, on the host.
    int *order_there; // The same order on the device.
    int *test_order; // [test.count], 0, 1, 2, ...; on the device.
    double *sample_losses; // [training.count] in the order of the epoch; on the device.
    double *host_losses; // The same on the host.
    double *losses; // [steps_per_epoch], sums over the samples of each step.
    unsigned long long *correct; // On the device.
    int steps_per_epoch;
    int steps_done;
};

static int part(const trainer *trainer, int count, uint32_t rank)
{
    return (int)((uint64_t)count * rank / trainer->world_size);
}

// The addresses of tensors on the device, where mnist.c has some of the host: nothing else.
static lockstep_parameter describe(const char *name, const tensor *tensor, uint32_t dims,
                                   const int64_t *shape)
{
    lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    parameter.name = name;
    parameter.dims = dims;
    parameter.shape = shape;
    parameter.data = tensor->value;
    parameter.gradient = tensor->gradient;
    return parameter;
}

static void register_network(trainer *trainer)
{
    static const char *const names[2 * LAYERS] = {"hidden1.weight", "hidden1.bias",
                                                  "hidden2.weight", "hidden2.bias",
                                                  "digits.weight",  "digits.bias"};
    lockstep_parameter parameters[2 * LAYERS];
    int64_t shapes[LAYERS][2];
    for (int l = 0; l < LAYERS; l++) {
        const layer *layer = &trainer->net.layers[l];
        shapes[l][0] = widths[l];
        shapes[l][1] = widths[l + 1];
        parameters[2 * l] = describe(names[2 * l], &layer->weight, 2, &shapes[l][0]);
        parameters[2 * l + 1] = describe(names[2 * l + 1], &layer->bias, 1, &shapes[l][1]);
    }
    lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    config.name = "network";
    config.parameters = parameters;
    config.parameter_count = 2 * LAYERS;
    check(lockstep_module_register(trainer->session, &config, &trainer->module));
}

// The session takes the device of the context that is current here: that of cudaSetDevice.
static void trainer_open(trainer *trainer)
{
    lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.bucket_first_bytes = 128 << 10;
    check(lockstep_open(&config, &trainer->session));
    check(lockstep_world(trainer->session, &trainer->rank, &trainer->world_size));
    const int capacity = trainer->given.batch / (int)trainer->world_size + 1;
    network_init(&trainer->net, (size_t)(capacity > EVALUATE_BATCH ? capacity : EVALUATE_BATCH));
    if (trainer->rank == 0)
        network_randomize(&trainer->net, trainer->given.seed);
    register_network(trainer);
    check(cudaDeviceSynchronize()); // lockstep_start reads the parameters.
    check(lockstep_start(trainer->session));
}

// Nothing here waits: each report says on which stream its gradient will be ready.
static void train_backward(trainer *trainer, lockstep_call *call, int count)
{
    void *stream = trainer->net.stream;
    for (int l = LAYERS - 1; l >= 0; l--) {
        layer_backward(&trainer->net, l, count);
        check(lockstep_grad_ready(trainer->module, call, (uint32_t)(2 * l), NULL, stream));
        check(lockstep_grad_ready(trainer->module, call, (uint32_t)(2 * l + 1), NULL, stream));
        if (l > 0)
            layer_backward_input(&trainer->net, l, count);
    }
}

static int batch_of(const trainer *trainer, int step)
{
    const int left = trainer->training.count - step * trainer->given.batch;
    return left < trainer->given.batch ? left : trainer->given.batch;
}

// One optimizer step on this rank's part of the batch.
static void train_step(trainer *trainer, int step, double rate)
{
    const int batch = batch_of(trainer, step);
    const int first = step * trainer->given.batch + part(trainer, batch, trainer->rank);
    const int count = part(trainer, batch, trainer->rank + 1) - part(trainer, batch, trainer->rank);
    network *net = &trainer->net;
    lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = (uint64_t)count;
    check(lockstep_step_begin(trainer->session, &options, NULL));
    network_forward(net, &trainer->training, trainer->order_there + first, count);
    if (count > 0)
        loss_backward<<<blocks((size_t)count), THREADS, 0, net->stream>>>(
            net->layers[LAYERS - 1].output, trainer->training.labels, trainer->order_there + first,
            count, net->layers[LAYERS - 1].output_gradient, trainer->sample_losses + first);
    lockstep_call *call;
    check(lockstep_call_begin(trainer->module, &call));
    train_backward(trainer, call, count);
    check(lockstep_call_end(call));
    check(lockstep_counter_add(trainer->session, "samples", count));
    check(lockstep_step_end(trainer->session, net->stream)); // The update waits on the device.
    network_update(net, rate, trainer->given.momentum);
}

static double measure_accuracy(trainer *trainer)
{
    network *net = &trainer->net;
    check(lockstep_mark(trainer->session, "measuring the accuracy"));
    const int end = part(trainer, trainer->test.count, trainer->rank + 1);
    check(cudaMemsetAsync(trainer->correct, 0, sizeof(*trainer->correct), net->stream));
    for (int first = part(trainer, trainer->test.count, trainer->rank); first < end;) {
        const int count = end - first < EVALUATE_BATCH ? end - first : EVALUATE_BATCH;
        network_forward(net, &trainer->test, trainer->test_order + first, count);
        count_correct<<<blocks((size_t)count), THREADS, 0, net->stream>>>(
            net->layers[LAYERS - 1].output, trainer->test.labels, trainer->test_order + first,
            count, trainer->correct);
        first += count;
    }
    unsigned long long own;
    check(
        cudaMemcpyAsync(&own, trainer->correct, sizeof(own), cudaMemcpyDeviceToHost, net->stream));
    check(cudaStreamSynchronize(net->stream));
    int64_t correct = (int64_t)own;
    check(lockstep_allreduce(trainer->session, "correct", &correct, 1, LOCKSTEP_INT64, LOCKSTEP_SUM,
                             LOCKSTEP_WAIT_FOREVER));
    return (double)correct / trainer->test.count;
}

// The mean over all samples of the epoch.
static double collect_losses(trainer *trainer, int steps)
{
    check(cudaMemcpyAsync(trainer->host_losses, trainer->sample_losses,
                          (size_t)trainer->training.count * sizeof(double), cudaMemcpyDeviceToHost,
                          trainer->net.stream));
    check(cudaStreamSynchronize(trainer->net.stream));
    for (int step = 0; step < steps; step++) {
        const int batch = batch_of(trainer, step);
        const double *own = trainer->host_losses + step * trainer->given.batch;
        trainer->losses[step] = 0;
        for (int s = part(trainer, batch, trainer->rank);
             s < part(trainer, batch, trainer->rank + 1); s++)
            trainer->losses[step] += own[s];
    }
    check(lockstep_allreduce(trainer->session, "losses", trainer->losses, (uint64_t)steps,
                             LOCKSTEP_FLOAT64, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    double loss = 0;
    int samples = 0;
    for (int step = 0; step < steps; step++) {
        loss += trainer->losses[step];
        samples += batch_of(trainer, step);
    }
    return loss / samples;
}

static bool finished(const trainer *trainer)
{
    return trainer->given.steps > 0 && trainer->steps_done == trainer->given.steps;
}

static void train_epoch(trainer *trainer, int epoch)
{
    const double all = (double)trainer->given.epochs * trainer->steps_per_epoch;
    char mark[32];
    snprintf(mark, sizeof(mark), "epoch %d", epoch);
    check(lockstep_mark(trainer->session, mark));
    shuffle(trainer->order, trainer->training.count, trainer->given.seed, epoch);
    check(cudaMemcpyAsync(trainer->order_there, trainer->order,
                          (size_t)trainer->training.count * sizeof(int), cudaMemcpyHostToDevice,
                          trainer->net.stream));
    int step = 0;
    for (; step < trainer->steps_per_epoch && !finished(trainer); step++, trainer->steps_done++)
        train_step(trainer, step, trainer->given.rate * (1.0 - trainer->steps_done / all));
    const double loss = collect_losses(trainer, step);
    const double accuracy = measure_accuracy(trainer);
    if (trainer->rank == 0)
        printf("epoch %d/%d  loss %.4f  test accuracy %.2f %%\n", epoch, trainer->given.epochs,
               loss, 100 * accuracy);
}

// How many ranks have the parameters of rank 0, bit by bit.
static void compare_parameters(trainer *trainer)
{
    int64_t *hashes = (int64_t *)calloc(trainer->world_size, sizeof(int64_t));
    uint64_t own;
    uint32_t equal = 0;
    if (hashes == NULL)
        fail("calloc", "out of memory");
    check(lockstep_state_hash(trainer->session, &own));
    memcpy(&hashes[trainer->rank], &own, sizeof(own));
    check(lockstep_allreduce(trainer->session, "hashes", hashes, trainer->world_size,
                             LOCKSTEP_INT64, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    for (uint32_t r = 0; r < trainer->world_size; r++)
        equal += hashes[r] == hashes[0];
    if (trainer->rank == 0)
        printf("parameters: hash 0x%016llx equal on %u of %u ranks\n",
               (unsigned long long)hashes[0], equal, trainer->world_size);
    free(hashes);
    check(lockstep_state_check(trainer->session));
}

// ---- options and main ---------------------------------------------------------------------------

static options parse_options(int argc, char **argv)
{
    options given;
    if (getenv("MNIST_DIR") != NULL)
        given.data = getenv("MNIST_DIR");
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--data") == 0)
            given.data = value;
        else if (strcmp(argv[i], "--epochs") == 0 && atoi(value) > 0)
            given.epochs = atoi(value);
        else if (strcmp(argv[i], "--batch") == 0 && atoi(value) > 0)
            given.batch = atoi(value);
        else if (strcmp(argv[i], "--steps") == 0 && atoi(value) > 0)
            given.steps = atoi(value);
        else
            fail(argv[i], "usage: mnist_cuda [--data DIR] [--epochs N] [--batch N] [--steps N]");
    }
    return given;
}

static void trainer_load(trainer *trainer)
{
    const char *directory = trainer->given.data;
    trainer->training =
        dataset_load(directory, "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    trainer->test = dataset_load(directory, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");
    const size_t count = (size_t)trainer->training.count;
    trainer->steps_per_epoch =
        (trainer->training.count + trainer->given.batch - 1) / trainer->given.batch;
    check(cudaMallocHost((void **)&trainer->order, count * sizeof(int)));
    check(cudaMallocHost((void **)&trainer->host_losses, count * sizeof(double)));
    trainer->losses = (double *)calloc((size_t)trainer->steps_per_epoch, sizeof(double));
    trainer->order_there = device_array<int>(count);
    trainer->sample_losses = device_array<double>(count);
    trainer->correct = device_array<unsigned long long>(1);
    trainer->test_order = device_array<int>((size_t)trainer->test.count);
    if (trainer->losses == NULL || trainer->test.count > trainer->training.count)
        fail(directory, "out of memory, or not MNIST");
    for (int i = 0; i < trainer->test.count; i++)
        trainer->order[i] = i;
    check(cudaMemcpy(trainer->test_order, trainer->order, (size_t)trainer->test.count * sizeof(int),
                     cudaMemcpyHostToDevice));
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    trainer trainer = {};
    trainer.given = parse_options(argc, argv);
    check(cudaSetDevice(0));
    trainer_load(&trainer);
    trainer_open(&trainer);
    for (int epoch = 1; epoch <= trainer.given.epochs && !finished(&trainer); epoch++)
        train_epoch(&trainer, epoch);
    compare_parameters(&trainer);
    check(lockstep_close(trainer.session)); // It has borrowed the tensors until here.
    check(cudaDeviceReset()); // Gives them back.
    return 0;
}
