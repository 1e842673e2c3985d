// SPDX-License-Identifier: Apache-2.0
//
// The time in which a cache line moves from one core to another and back.

#ifndef CLI_BENCH_LINE_H
#define CLI_BENCH_LINE_H

// Returns the nanoseconds in which a cache line moves to another core and back. Returns NAN if it
// could not be measured, for example because there is only one core.
double bench_limit_line_ns(void);

#endif
