// SPDX-License-Identifier: Apache-2.0
//
// The mode `step`: how much of the communication a backward pass hides. Trainer's thread.

#ifndef CLI_BENCH_STEP_H
#define CLI_BENCH_STEP_H

#include <stdint.h>

struct bench_step;
struct bench_worker;

// Registers one module for each row; the caller starts the session then.
struct bench_step *bench_step_register(struct bench_worker *worker);
void bench_step_row(struct bench_worker *worker, struct bench_step *steps, uint32_t number);
void bench_step_free(struct bench_worker *worker, struct bench_step *steps);

#endif
