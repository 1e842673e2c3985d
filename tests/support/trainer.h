// SPDX-License-Identifier: Apache-2.0
//
// A trainer for tests. It has modules whose gradients are known numbers, so that the mean over all
// ranks is known too, and runs steps through the public functions. Runs on the thread of its rank.
//
// Known numbers are small integers: their sums are exact in any order, and a mean is rounded only
// once, in its division. Noise is for tests of exact bits: a sum of noise depends on the order of
// summation.

#ifndef LOCKSTEP_TESTS_TRAINER_H
#define LOCKSTEP_TESTS_TRAINER_H

#include "tests/support/cluster.h"

#include <unistd.h>

#define TRAINER_MAX_PARAMETERS 64
#define TRAINER_GAP_ELEMENTS 3 // Elements between the gradients of a scattered module.

struct trained_module;

struct module_shape {
    const char *name;
    uint32_t count; // Number of parameters, which are named p0, p1 and so on.
    const uint64_t *elements; // [count]
    const lockstep_dtype *dtypes; // [count]; NULL: all float32.
    bool scattered; // True if there are gaps between the gradients.
    lockstep_gradient_kind kind;
    lockstep_unused_policy unused;
    uint64_t calls_per_step; // 0: 1.
    lockstep_wire wire;
    lockstep_group *group; // NULL: all ranks.
    // Changes the configuration before the module is registered. NULL: no change.
    void (*configure)(struct trained_module *module, struct lockstep_module_config *config);
};

struct trained_module {
    struct module_shape shape;
    lockstep_module *module;
    uint32_t index; // Number of the module; known numbers depend on it.
    char names[TRAINER_MAX_PARAMETERS][8];
    int64_t sizes[TRAINER_MAX_PARAMETERS];
    struct lockstep_parameter parameters[TRAINER_MAX_PARAMETERS];
    void *data[TRAINER_MAX_PARAMETERS];
    void *gradients[TRAINER_MAX_PARAMETERS]; // In `block`, the last parameter first.
    char *block; // The memory of all gradients.
    // The parameters in the order in which their gradients become ready; by default the last first.
    uint32_t order[TRAINER_MAX_PARAMETERS];
};

// Allocates the memory of a module and registers it. The caller calls trainer_free after it has
// closed the session, or earlier while no step is open.
void trainer_make(struct rank *rank, const struct module_shape *shape, uint32_t index,
                  struct trained_module *module);
void trainer_free(struct trained_module *module);

// The known gradient of one element.
int64_t trainer_known(const struct trained_module *module, uint32_t rank, uint64_t step,
                      uint32_t parameter, uint64_t element);
void trainer_fill_known(struct trained_module *module, uint32_t rank, uint64_t step);
void trainer_fill_noise(struct trained_module *module, uint32_t rank, uint64_t step);

// Checks every gradient against sum(w g) / sum(w), where g is a rank's known gradient and w its
// weight; weights NULL: 1 for each rank. For modules of LOCKSTEP_GRADIENT_SUM the expected result
// is sum(g) / sum(w) over the ranks with w > 0.
void trainer_expect_mean(struct rank *rank, const struct trained_module *module, uint64_t step,
                         const uint64_t *weights);
// The same for one parameter.
void trainer_expect_parameter(struct rank *rank, const struct trained_module *module, uint64_t step,
                              uint32_t parameter, const uint64_t *weights);
// Value of one element as a double.
double trainer_value(const struct trained_module *module, uint32_t parameter, uint64_t element);
void trainer_digest(struct rank *rank, const struct trained_module *module);

// The calls of one step. trainer_begin also sets rank->step, which the report of a hang prints.
void trainer_begin(struct rank *rank, const struct lockstep_step_options *options);
void trainer_call(struct rank *rank, struct trained_module *module); // All gradients, in order.
// The same, only for the parameters whose bit is set in `used`.
void trainer_call_used(struct rank *rank, struct trained_module *module, uint64_t used);
void trainer_end(struct rank *rank);
struct lockstep_report trainer_report(struct rank *rank);
// Runs a whole step with known gradients of these modules and checks the means.
void trainer_step_known(struct rank *rank, struct trained_module *modules, uint32_t count);
// Runs a step with known gradients and a pause before the last gradient. Checks no results.
void trainer_step_pausing(struct rank *rank, struct trained_module *module, useconds_t pause_us);

// Permutes `order`; the permutation depends only on the seed.
void trainer_shuffle(uint32_t *order, uint32_t count, uint64_t seed);
uint64_t trainer_random(uint64_t *state); // splitmix64

#endif
