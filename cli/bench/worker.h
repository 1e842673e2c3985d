// SPDX-License-Identifier: Apache-2.0
//
// One rank of a benchmark. It measures row by row. Trainer's thread.

#ifndef CLI_BENCH_WORKER_H
#define CLI_BENCH_WORKER_H

#include <stdint.h>

struct bench_program;
struct bench_row;
struct bench_worker;

// Ends the process after a failed call of the library; `what` names the call.
void bench_check(const struct bench_worker *worker, int status, const char *what);
double bench_now_us(void);
// Returns the next slot of the arena, of `bytes` bytes. Warm: only the first `slots` slots are
// used, in turn. Cold: all slots are used.
unsigned char *bench_slot(struct bench_worker *worker, uint64_t bytes, uint32_t slots);
// Warms up, chooses the number of iterations (equal on all ranks), measures, and gathers times and
// cost. Allocates the series, which bench_program_fini frees.
void bench_measure(struct bench_worker *worker, struct bench_row *row,
                   struct bench_program *program);
void bench_program_fini(struct bench_program *program);
int worker_main(int argc, char **argv); // Runs one rank of a benchmark. `lockstep bench` starts it.

#endif
