// SPDX-License-Identifier: Apache-2.0
//
// The time in which a line of the cache goes from one core to another and back.

#ifndef CLI_BENCH_LINE_H
#define CLI_BENCH_LINE_H

// line.c: nanoseconds in which a line of the cache goes to another core and back; NAN: could
// not be measured, where there is one core only, for example.
double bench_limit_line_ns(void);

#endif
