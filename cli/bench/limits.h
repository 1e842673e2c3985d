// SPDX-License-Identifier: Apache-2.0
//
// Limits of this machine without the library, and the cost of this process. Trainer's thread.

#ifndef CLI_BENCH_LIMITS_H
#define CLI_BENCH_LIMITS_H

#include "cli/bench/bench.h"

#include <stddef.h>

// The best rates of memory copies and of this machine's network, in bytes per second. Each call
// takes a fraction of a second. Returns NAN if the rate could not be measured.
double bench_limit_memcpy(void);
// congestion: the TCP congestion control to use if available; NULL: the machine's default.
double bench_limit_tcp(const char *congestion);
// Returns the shortest time of a byte in one direction, in microseconds, or NAN.
double bench_limit_tcp_us(const char *congestion);
// Returns the bytes of the largest cache of the first core.
size_t bench_cache_bytes(void);
// Starts to count the cycles of this thread and of all threads that it starts from now on. Returns
// 0, or an errno value if this machine has no such counter or does not permit its use.
int bench_cost_open(void);
struct bench_cost bench_cost_now(void);
void bench_cost_add(struct bench_cost *sum, struct bench_cost from, struct bench_cost to);

#endif
