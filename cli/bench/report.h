// SPDX-License-Identifier: Apache-2.0
//
// Figures of a benchmark, as tables or as JSON. Rank 0's trainer thread.

#ifndef CLI_BENCH_REPORT_H
#define CLI_BENCH_REPORT_H

#include "cli/bench/bench.h"

#include <stdint.h>

// Computes the spread of the samples. Sorts them in place. count is at least 1.
struct bench_spread bench_spread_of(double *samples, uint64_t count);
void bench_print_head(const struct bench_report *report);
void bench_print_row(const struct bench_report *report, const struct bench_row *row);
void bench_print_end(const struct bench_report *report);
void bench_print_json(const struct bench_report *report);

#endif
