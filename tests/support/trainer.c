// SPDX-License-Identifier: Apache-2.0
//
// The trainer of trainer.h.

#include "tests/support/trainer.h"

#include "tests/support/choice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t trainer_random(uint64_t *state)
{
    return choice_random(state);
}

void trainer_shuffle(uint32_t *order, uint32_t count, uint64_t seed)
{
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t j = (uint32_t)(trainer_random(&seed) % i);
        const uint32_t kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

// ---- Making a module ---------------------------------------------------------------------------

static lockstep_dtype shape_dtype(const struct module_shape *shape, uint32_t parameter)
{
    return !shape->dtypes ? LOCKSTEP_FLOAT32 : shape->dtypes[parameter];
}

static size_t shape_size(const struct module_shape *shape, uint32_t parameter)
{
    return shape_dtype(shape, parameter) == LOCKSTEP_FLOAT32 ? 4 : 8;
}

static size_t shape_bytes(const struct module_shape *shape, uint32_t parameter)
{
    return shape->elements[parameter] * shape_size(shape, parameter);
}

// Places all gradients in one block, the last parameter first.
static size_t trainer_place(struct trained_module *module, char *block)
{
    const struct module_shape *shape = &module->shape;
    size_t used = 0;
    for (uint32_t p = shape->count; p-- > 0;) {
        const size_t size = shape_size(shape, p);
        used = (used + size - 1) / size * size;
        if (block)
            module->gradients[p] = block + used;
        used += shape_bytes(shape, p);
        if (shape->scattered)
            used += TRAINER_GAP_ELEMENTS * size;
    }
    return used;
}

static void trainer_describe(struct trained_module *module, uint32_t parameter)
{
    const struct module_shape *shape = &module->shape;
    snprintf(module->names[parameter], sizeof(module->names[0]), "p%" PRIu32, parameter % 1000);
    module->sizes[parameter] = (int64_t)shape->elements[parameter];
    module->data[parameter] = calloc(1, shape_bytes(shape, parameter) + 1);
    module->order[parameter] = shape->count - 1 - parameter;
    module->parameters[parameter] =
        (struct lockstep_parameter){.name = module->names[parameter],
                                    .dtype = shape_dtype(shape, parameter),
                                    .dims = 1,
                                    .shape = &module->sizes[parameter],
                                    .data = module->data[parameter],
                                    .gradient = module->gradients[parameter]};
}

void trainer_make(struct rank *rank, const struct module_shape *shape, uint32_t index,
                  struct trained_module *module)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    memset(module, 0, sizeof(*module));
    module->shape = *shape;
    module->index = index;
    RANK_TRUE(rank, shape->count <= TRAINER_MAX_PARAMETERS);
    module->block = calloc(1, trainer_place(module, NULL) + 1);
    trainer_place(module, module->block);
    for (uint32_t p = 0; p < shape->count; p++)
        trainer_describe(module, p);
    config.name = shape->name;
    config.parameters = module->parameters;
    config.parameter_count = shape->count;
    config.gradient_kind = shape->kind;
    config.unused = shape->unused;
    config.calls_per_step = shape->calls_per_step;
    config.wire = shape->wire;
    config.group = shape->group;
    if (shape->configure)
        shape->configure(module, &config);
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module->module));
}

void trainer_free(struct trained_module *module)
{
    for (uint32_t p = 0; p < module->shape.count; p++)
        free(module->data[p]);
    free(module->block);
}

// ---- Numbers -----------------------------------------------------------------------------------

int64_t trainer_known(const struct trained_module *module, uint32_t rank, uint64_t step,
                      uint32_t parameter, uint64_t element)
{
    return (int64_t)((module->index * 13 + rank * 7 + step * 3 + parameter * 5 + element) % 61) -
           17;
}

static void trainer_set(struct trained_module *module, uint32_t parameter, uint64_t element,
                        double value)
{
    if (shape_dtype(&module->shape, parameter) == LOCKSTEP_FLOAT32)
        ((float *)module->gradients[parameter])[element] = (float)value;
    else
        ((double *)module->gradients[parameter])[element] = value;
}

double trainer_value(const struct trained_module *module, uint32_t parameter, uint64_t element)
{
    if (shape_dtype(&module->shape, parameter) == LOCKSTEP_FLOAT32)
        return (double)((const float *)module->gradients[parameter])[element];
    return ((const double *)module->gradients[parameter])[element];
}

void trainer_fill_known(struct trained_module *module, uint32_t rank, uint64_t step)
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; i < module->shape.elements[p]; i++)
            trainer_set(module, p, i, (double)trainer_known(module, rank, step, p, i));
    }
}

// Fills all gradients with random numbers of both signs over 16 binary orders of magnitude.
void trainer_fill_noise(struct trained_module *module, uint32_t rank, uint64_t step)
{
    uint64_t state = ((uint64_t)module->index << 40) + ((uint64_t)rank << 32) + step;
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; i < module->shape.elements[p]; i++) {
            const uint64_t bits = trainer_random(&state);
            const double fraction = (double)(int64_t)bits / 9223372036854775808.0;
            trainer_set(module, p, i, fraction * (double)(1u << (bits & 15)));
        }
    }
}

// The correct mean of an element: one exact sum, and one division in the element's dtype.
static double trainer_mean(const struct rank *rank, const struct trained_module *module,
                           uint64_t step, uint32_t parameter, uint64_t element,
                           const uint64_t *weights)
{
    const bool is_sum = module->shape.kind == LOCKSTEP_GRADIENT_SUM;
    int64_t sum = 0;
    int64_t total = 0;
    for (uint32_t r = 0; r < rank->world_size; r++) {
        const int64_t weight = !weights ? 1 : (int64_t)weights[r];
        const int64_t factor = is_sum ? weight > 0 : weight;
        sum += factor * trainer_known(module, r, step, parameter, element);
        total += weight;
    }
    if (shape_dtype(&module->shape, parameter) == LOCKSTEP_FLOAT32)
        return (double)((float)sum / (float)total);
    return (double)sum / (double)total;
}

void trainer_expect_parameter(struct rank *rank, const struct trained_module *module, uint64_t step,
                              uint32_t parameter, const uint64_t *weights)
{
    for (uint64_t i = 0; i < module->shape.elements[parameter]; i++) {
        const double expected = trainer_mean(rank, module, step, parameter, i, weights);
        const double found = trainer_value(module, parameter, i);
        if (found < expected || found > expected || found != found)
            rank_fail(rank, __FILE__, __LINE__,
                      "step %" PRIu64 ": module '%s' parameter %" PRIu32 " element %" PRIu64
                      " is %.17g, not %.17g",
                      step, module->shape.name, parameter, i, found, expected);
    }
}

void trainer_expect_mean(struct rank *rank, const struct trained_module *module, uint64_t step,
                         const uint64_t *weights)
{
    for (uint32_t p = 0; p < module->shape.count; p++)
        trainer_expect_parameter(rank, module, step, p, weights);
}

void trainer_digest(struct rank *rank, const struct trained_module *module)
{
    for (uint32_t p = 0; p < module->shape.count; p++)
        rank_digest(rank, module->gradients[p], shape_bytes(&module->shape, p));
}

// ---- A step ------------------------------------------------------------------------------------

void trainer_begin(struct rank *rank, const struct lockstep_step_options *options)
{
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    RANK_OK(rank, lockstep_step_begin(rank->session, options, &view));
    atomic_store(&rank->step, view.step);
}

void trainer_call(struct rank *rank, struct trained_module *module)
{
    trainer_call_used(rank, module, UINT64_MAX);
}

void trainer_call_used(struct rank *rank, struct trained_module *module, uint64_t used)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < module->shape.count; i++)
        if ((used >> module->order[i] & 1) != 0)
            RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
}

void trainer_end(struct rank *rank)
{
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
}

void trainer_step_pausing(struct rank *rank, struct trained_module *module, useconds_t pause_us)
{
    lockstep_call *call;
    trainer_begin(rank, NULL);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t p = module->shape.count; p-- > 1;)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, p, NULL, NULL));
    usleep(pause_us);
    RANK_OK(rank, lockstep_grad_ready(module->module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
}

struct lockstep_report trainer_report(struct rank *rank)
{
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    RANK_OK(rank, lockstep_step_report(rank->session, atomic_load(&rank->step), 0, &report));
    return report;
}

void trainer_step_known(struct rank *rank, struct trained_module *modules, uint32_t count)
{
    trainer_begin(rank, NULL);
    for (uint32_t m = 0; m < count; m++) {
        trainer_fill_known(&modules[m], rank->rank, atomic_load(&rank->step));
        trainer_call(rank, &modules[m]);
    }
    trainer_end(rank);
    for (uint32_t m = 0; m < count; m++)
        trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step), NULL);
}
