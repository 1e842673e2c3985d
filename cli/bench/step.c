// SPDX-License-Identifier: Apache-2.0
//
// `lockstep bench --mode step`: measures how much of the communication is hidden behind a backward
// pass. Trainer's thread of every rank.
//
// An iteration has three parts, one after the other. All ranks begin each part together:
//
//     compute        the backward pass alone; the library is not called
//     communication  the same step without a backward pass: every gradient is ready at once
//     step           both: gradients are reported while the backward pass goes on
//
// Exposed is how much longer the step takes than the backward pass alone, iteration by iteration.
// The rest of the communication was hidden. If communication takes cores that compute needs, the
// exposed time grows, because the backward pass is a fixed amount of work, not a fixed time.
//
// The module looks like a transformer: an embedding, layers of twelve tensors (half of them small),
// and a head. Its gradients become ready from head to embedding at equal intervals.

#include "cli/bench/step.h"

#include "cli/bench/bench.h"
#include "cli/bench/limits.h"
#include "cli/bench/report.h"
#include "cli/bench/worker.h"
#include "cli/common/cli.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_LAYERS 12
#define LAYER_TENSORS 12
#define MAX_TENSORS (MAX_LAYERS * LAYER_TENSORS + 2)
#define LAYER_ELEMENTS 1000000 // A module has one layer for each such number of elements.
#define GRADIENT_ALIGN 64
#define CALIBRATE_PASSES 40
#define CALIBRATE_ROUNDS 200000 // About half a millisecond.

static_assert(MAX_TENSORS * GRADIENT_ALIGN <= BENCH_GAP_BYTES, "a slot holds a module");

struct bench_step {
    lockstep_module *module;
    unsigned char *values; // owned, mapped: the parameters to which the gradients belong
    size_t values_bytes;
    uint32_t count; // Tensors with elements.
    uint64_t elements[MAX_TENSORS]; // Elements of each tensor, in the order of definition.
    uint64_t offsets[MAX_TENSORS]; // Bytes from the first gradient.
    uint64_t span; // Bytes from the first gradient to the end of the last one.
};

// ---- The module --------------------------------------------------------------------------------

static void add_tensor(struct bench_step *step, uint64_t elements)
{
    if (elements > 0)
        step->elements[step->count++] = elements;
}

// Adds the tensors of attention and of the layer behind it, of width d: 12 d * d + 13 d elements.
static void add_layer(struct bench_step *step, uint64_t d)
{
    const uint64_t tensors[LAYER_TENSORS] = {d, d, 3 * d * d, 3 * d, d * d,     d,
                                             d, d, 4 * d * d, 4 * d, 4 * d * d, d};
    for (size_t i = 0; i < LAYER_TENSORS; i++)
        add_tensor(step, tensors[i]);
}

// Chooses the tensors. Layers have three quarters of the elements, the head a seventh, and the
// embedding the rest. A module that is too small for a layer is all embedding.
static void plan_tensors(struct bench_step *step, uint64_t elements)
{
    uint64_t layers = elements / LAYER_ELEMENTS;
    layers = layers < 1 ? 1 : layers > MAX_LAYERS ? MAX_LAYERS : layers;
    uint64_t d = (uint64_t)sqrt(0.75 * (double)elements / (12.0 * (double)layers));
    while (layers * (12 * d * d + 13 * d) > elements / 4 * 3)
        d--;
    uint64_t head = d > 0 ? elements / 7 : 0;
    add_tensor(step, elements - head - layers * (12 * d * d + 13 * d));
    for (uint64_t i = 0; i < layers; i++)
        add_layer(step, d);
    add_tensor(step, head);
}

static void place_gradients(struct bench_step *step, size_t element_size)
{
    step->span = 0;
    for (uint32_t i = 0; i < step->count; i++) {
        uint64_t bytes = step->elements[i] * element_size;
        step->offsets[i] = step->span;
        step->span += (bytes + GRADIENT_ALIGN - 1) / GRADIENT_ALIGN * GRADIENT_ALIGN;
    }
}

// Maps the values. Only the library reads them, when it compares them, so they need no physical
// memory.
static void map_values(const struct bench_worker *worker, struct bench_step *step)
{
    step->values_bytes = (size_t)step->span;
    step->values = mmap(NULL, step->values_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (step->values == MAP_FAILED) {
        cli_say("bench", "rank %u: no memory for a module of %zu bytes", worker->rank,
                step->values_bytes);
        exit(CLI_FAILED);
    }
}

// Registers the module. It has no fixed addresses for gradients: every report gives the address.
static void register_module(struct bench_worker *worker, const struct bench_row *row,
                            struct bench_step *step, uint32_t number)
{
    struct lockstep_parameter parameters[MAX_TENSORS] = {0};
    char names[MAX_TENSORS][24];
    int64_t shapes[MAX_TENSORS];
    char name[24];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    for (uint32_t i = 0; i < step->count; i++) {
        snprintf(names[i], sizeof(names[i]), "tensor%u", i);
        shapes[i] = (int64_t)step->elements[i];
        parameters[i] = (struct lockstep_parameter){.name = names[i],
                                                    .dtype = row->dtype->value,
                                                    .dims = 1,
                                                    .shape = &shapes[i],
                                                    .data = step->values + step->offsets[i]};
    }
    snprintf(name, sizeof(name), "row%u", number);
    config.name = name;
    config.parameters = parameters;
    config.parameter_count = step->count;
    bench_check(worker, lockstep_module_register(worker->session, &config, &step->module),
                "lockstep_module_register");
}

struct bench_step *bench_step_register(struct bench_worker *worker)
{
    const struct bench_report *report = worker->report;
    struct bench_step *steps = calloc(report->row_count, sizeof(*steps));
    if (!steps) {
        cli_say("bench", "rank %u: no memory", worker->rank);
        exit(CLI_FAILED);
    }
    for (uint32_t i = 0; i < report->row_count; i++) {
        plan_tensors(&steps[i], report->rows[i].count);
        place_gradients(&steps[i], report->rows[i].dtype->size);
        map_values(worker, &steps[i]);
        register_module(worker, &report->rows[i], &steps[i], i);
    }
    bench_check(worker, lockstep_start(worker->session), "lockstep_start");
    return steps;
}

void bench_step_free(struct bench_worker *worker, struct bench_step *steps)
{
    for (uint32_t i = 0; steps && i < worker->report->row_count; i++)
        munmap(steps[i].values, steps[i].values_bytes);
    free(steps);
}

// ---- The backward pass -------------------------------------------------------------------------

static volatile double work_result; // Prevents the compiler from removing the work.

// Does an amount of work. Each round needs the result of the previous one, so the time does not
// depend on how many instructions a core can run in parallel.
static void work(uint64_t rounds)
{
    double value = work_result;
    for (uint64_t i = 0; i < rounds; i++)
        value = value * 0.999999 + 1e-6;
    work_result = value;
}

// Returns the rounds that take a microsecond on an undisturbed core. All ranks get the same number.
static double calibrate(struct bench_worker *worker)
{
    double best_us = INFINITY;
    for (int i = 0; i < CALIBRATE_PASSES; i++) {
        double begin_us = bench_now_us();
        work(CALIBRATE_ROUNDS);
        best_us = fmin(best_us, bench_now_us() - begin_us);
    }
    bench_check(worker,
                lockstep_allreduce(worker->session, "bench/calibrate", &best_us, 1,
                                   LOCKSTEP_FLOAT64, LOCKSTEP_MIN, LOCKSTEP_WAIT_FOREVER),
                "calibrating the backward pass");
    return CALIBRATE_ROUNDS / best_us;
}

// ---- The three parts of an iteration -----------------------------------------------------------

enum series {
    SERIES_COMPUTE,
    SERIES_COMMUNICATION,
    SERIES_STEP,
    SERIES_WAITED,
    SERIES_COUNT
};

struct measurement {
    struct bench_worker *worker;
    const struct bench_step *step;
    char phase[24];
    uint64_t rounds; // Rounds of work before each gradient.
    struct bench_program program;
};

static double begin_together(const struct measurement *measurement)
{
    bench_check(
        measurement->worker,
        lockstep_barrier(measurement->worker->session, "bench/together", LOCKSTEP_WAIT_FOREVER),
        "beginning together");
    return bench_now_us();
}

static double compute(const struct measurement *measurement)
{
    double begin_us = begin_together(measurement);
    for (uint32_t i = 0; i < measurement->step->count; i++)
        work(measurement->rounds);
    return bench_now_us() - begin_us;
}

static void backward(const struct measurement *measurement, lockstep_call *call, uint64_t rounds)
{
    const struct bench_step *step = measurement->step;
    unsigned char *gradients = bench_slot(measurement->worker, step->span, 1);
    for (uint32_t i = step->count; i-- > 0;) {
        work(rounds);
        bench_check(measurement->worker,
                    lockstep_grad_ready(step->module, call, i, gradients + step->offsets[i], NULL),
                    "lockstep_grad_ready");
    }
}

// Runs a step with `rounds` of work before each gradient. Returns its time in microseconds. view
// describes the step.
static double synchronized_step(const struct measurement *measurement, uint64_t rounds,
                                struct lockstep_step_view *view)
{
    struct bench_worker *worker = measurement->worker;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_call *call = NULL;
    options.phase = measurement->phase;
    double begin_us = begin_together(measurement);
    bench_check(worker, lockstep_step_begin(worker->session, &options, view),
                "lockstep_step_begin");
    bench_check(worker, lockstep_call_begin(measurement->step->module, &call),
                "lockstep_call_begin");
    backward(measurement, call, rounds);
    bench_check(worker, lockstep_call_end(call), "lockstep_call_end");
    bench_check(worker, lockstep_step_end(worker->session, NULL), "lockstep_step_end");
    return bench_now_us() - begin_us;
}

static double waited_us(const struct bench_worker *worker, uint64_t step)
{
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    bench_check(worker, lockstep_step_report(worker->session, step, 0, &report),
                "lockstep_step_report");
    return (double)(report.done_us - report.end_us);
}

static void iterate(void *context, uint64_t iteration)
{
    struct measurement *measurement = context;
    struct bench_program *program = &measurement->program;
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    program->series[SERIES_COMPUTE].samples[iteration] = compute(measurement);
    struct bench_cost before = bench_cost_now();
    program->series[SERIES_COMMUNICATION].samples[iteration] =
        synchronized_step(measurement, 0, &view);
    bench_cost_add(&program->cost, before, bench_cost_now());
    program->series[SERIES_STEP].samples[iteration] =
        synchronized_step(measurement, measurement->rounds, &view);
    program->series[SERIES_WAITED].samples[iteration] = waited_us(measurement->worker, view.step);
}

// Computes the spreads of a row. bench_spread_of sorts a series, so the difference of two series is
// computed first. It is stored in a series that is no longer needed, so it needs no extra memory.
static void spread_all(struct bench_row *row, const struct bench_program *program)
{
    const struct bench_series *series = program->series;
    row->waited = bench_spread_of(series[SERIES_WAITED].samples, row->iterations);
    double *exposed = series[SERIES_WAITED].samples;
    for (uint64_t i = 0; i < row->iterations; i++)
        exposed[i] = series[SERIES_STEP].samples[i] - series[SERIES_COMPUTE].samples[i];
    row->exposed = bench_spread_of(exposed, row->iterations);
    row->compute = bench_spread_of(series[SERIES_COMPUTE].samples, row->iterations);
    row->communication = bench_spread_of(series[SERIES_COMMUNICATION].samples, row->iterations);
    row->time = bench_spread_of(series[SERIES_STEP].samples, row->iterations);
}

void bench_step_row(struct bench_worker *worker, struct bench_step *steps, uint32_t number)
{
    struct bench_row *row = &worker->report->rows[number];
    struct measurement measurement = {.worker = worker, .step = &steps[number]};
    double rounds = calibrate(worker) * worker->options->backward_ms * 1000;
    measurement.rounds = (uint64_t)(rounds / steps[number].count);
    snprintf(measurement.phase, sizeof(measurement.phase), "row%u", number);
    measurement.program = (struct bench_program){.iterate = iterate,
                                                 .context = &measurement,
                                                 .series = {[SERIES_COMPUTE] = {"compute", NULL},
                                                            {"communication", NULL},
                                                            {"step", NULL},
                                                            {"waited", NULL}},
                                                 .series_count = SERIES_COUNT,
                                                 .own_cost = true};
    worker->turn = 0;
    bench_measure(worker, row, &measurement.program);
    row->tensors = steps[number].count;
    row->payload_bytes = (double)row->bytes;
    spread_all(row, &measurement.program);
    bench_program_fini(&measurement.program);
}
