// SPDX-License-Identifier: Apache-2.0
//
// One rank of a benchmark: measuring row by row. Trainer's thread.

#ifndef CLI_BENCH_WORKER_H
#define CLI_BENCH_WORKER_H

#include <stdint.h>

struct bench_program;
struct bench_row;
struct bench_worker;

// Ends the process after a failed call of the library; what says which call it was.
void bench_check(const struct bench_worker *worker, int status, const char *what);
double bench_now_us(void);
// The next slot of the arena for bytes bytes. Warm: always the first ones.
unsigned char *bench_slot(struct bench_worker *worker, uint64_t bytes, uint32_t slots);
// Warms up, chooses the number of iterations (equal on all ranks), measures, and gathers times and
// cost. The series are allocated, and freed by bench_program_fini.
void bench_measure(struct bench_worker *worker, struct bench_row *row,
                   struct bench_program *program);
void bench_program_fini(struct bench_program *program);
int worker_main(int argc, char **argv); // One rank of a benchmark; not for people.

#endif
