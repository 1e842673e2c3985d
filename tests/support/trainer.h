// SPDX-License-Identifier: Apache-2.0
//
// A trainer for tests: modules whose gradients are known numbers, so that the mean over ranks is
// known too, and one step through the public functions. Runs on the thread of its rank.
//
// Known numbers are small integers: sums of them are exact in any order, and the only rounding of a
// mean is its one division. Noise is for questions of bits: sums of it depend on their order.

#ifndef LOCKSTEP_TESTS_TRAINER_H
#define LOCKSTEP_TESTS_TRAINER_H

#include "tests/support/cluster.h"

#include <unistd.h>

#define TRAINER_MAX_PARAMETERS 64
#define TRAINER_GAP_ELEMENTS 3 // Between gradients that are not to be contiguous.

struct trained_module;

struct module_shape {
    const char *name;
    uint32_t count; // Parameters, named p0, p1 and so on.
    const uint64_t *elements; // [count]
    const lockstep_dtype *dtypes; // [count]; NULL: all float32.
    bool scattered; // Gradients do not lie side by side.
    lockstep_gradient_kind kind;
    lockstep_unused_policy unused;
    uint64_t calls_per_step; // 0: 1.
    lockstep_wire wire;
    // Changes what is about to be registered. NULL: nothing is changed.
    void (*configure)(struct trained_module *module, struct lockstep_module_config *config);
};

struct trained_module {
    struct module_shape shape;
    lockstep_module *module;
    uint32_t index; // Different modules have different known numbers.
    char names[TRAINER_MAX_PARAMETERS][8];
    int64_t sizes[TRAINER_MAX_PARAMETERS];
    struct lockstep_parameter parameters[TRAINER_MAX_PARAMETERS];
    void *data[TRAINER_MAX_PARAMETERS];
    void *gradients[TRAINER_MAX_PARAMETERS]; // Inside block. In reverse, as backward makes them.
    char *block;
    uint32_t order[TRAINER_MAX_PARAMETERS]; // In which they become ready: reverse of definition.
};

// Allocates, registers. Freed by trainer_free after the session was closed, or before a close when
// no step is open.
void trainer_make(struct rank *rank, const struct module_shape *shape, uint32_t index,
                  struct trained_module *module);
void trainer_free(struct trained_module *module);

// The known gradient of one element.
int64_t trainer_known(const struct trained_module *module, uint32_t rank, uint64_t step,
                      uint32_t parameter, uint64_t element);
void trainer_fill_known(struct trained_module *module, uint32_t rank, uint64_t step);
void trainer_fill_noise(struct trained_module *module, uint32_t rank, uint64_t step);

// Checks every gradient against sum(w g) / sum(w); weights NULL: 1 for each rank. For modules of
// kind sum, g is what was filled and the result is sum(g) / sum(w) over ranks with a weight.
void trainer_expect_mean(struct rank *rank, const struct trained_module *module, uint64_t step,
                         const uint64_t *weights);
// One parameter only. sum and divisor as they should be, for every element.
void trainer_expect_parameter(struct rank *rank, const struct trained_module *module, uint64_t step,
                              uint32_t parameter, const uint64_t *weights);
// Value of one element as a double.
double trainer_value(const struct trained_module *module, uint32_t parameter, uint64_t element);
void trainer_digest(struct rank *rank, const struct trained_module *module);

// The pieces of a step; step_begin keeps rank->step for the report of a hang.
void trainer_begin(struct rank *rank, const struct lockstep_step_options *options);
void trainer_call(struct rank *rank, struct trained_module *module); // All gradients, in order.
// The same, without those parameters whose bit is not set.
void trainer_call_used(struct rank *rank, struct trained_module *module, uint64_t used);
void trainer_end(struct rank *rank);
struct lockstep_report trainer_report(struct rank *rank);
// A whole step with known gradients of these modules, checked.
void trainer_step_known(struct rank *rank, struct trained_module *modules, uint32_t count);
// A step with known gradients, whose last one comes after a pause. Nothing is checked.
void trainer_step_pausing(struct rank *rank, struct trained_module *module, useconds_t pause_us);

// order becomes a permutation that depends on seed only.
void trainer_shuffle(uint32_t *order, uint32_t count, uint64_t seed);
uint64_t trainer_random(uint64_t *state); // splitmix64

#endif
