// SPDX-License-Identifier: Apache-2.0
//
// Limits of this machine without the library, and the cost of this process. Trainer's thread.

#ifndef CLI_BENCH_LIMITS_H
#define CLI_BENCH_LIMITS_H

#include "cli/bench/bench.h"

#include <stddef.h>

// The best rates of copying and of this machine's network, in bytes per second. Each takes a
// fraction of a second. NAN: could not be measured.
double bench_limit_memcpy(void);
// congestion: the rule that TCP follows, where it can be had; NULL: what this machine has.
double bench_limit_tcp(const char *congestion);
// How long a byte takes one way at best, in microseconds, or NAN.
double bench_limit_tcp_us(const char *congestion);
// Bytes of the largest cache of the first core.
size_t bench_cache_bytes(void);
// Counts the cycles of this thread and of all threads that it starts from now on. Returns 0, or an
// errno value when this machine has no such counter or does not let us use it.
int bench_cost_open(void);
struct bench_cost bench_cost_now(void);
void bench_cost_add(struct bench_cost *sum, struct bench_cost from, struct bench_cost to);

#endif
