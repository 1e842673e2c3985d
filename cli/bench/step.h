// SPDX-License-Identifier: Apache-2.0
//
// The mode `step`: it measures how much of the communication runs hidden behind the backward pass.

#ifndef CLI_BENCH_STEP_H
#define CLI_BENCH_STEP_H

#include <stdint.h>

struct bench_step;
struct bench_worker;

// Registers one module for each row. Then the caller starts the session.
struct bench_step *bench_step_register(struct bench_worker *worker);
void bench_step_row(struct bench_worker *worker, struct bench_step *steps, uint32_t number);
void bench_step_free(struct bench_worker *worker, struct bench_step *steps);

#endif
