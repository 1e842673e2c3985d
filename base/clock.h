// SPDX-License-Identifier: Apache-2.0
// Monotonic time. Not for people: a log line's date comes from its sink. Any thread.
#ifndef LOCKSTEP_BASE_CLOCK_H
#define LOCKSTEP_BASE_CLOCK_H

#include <stdint.h>

// Time since an arbitrary moment before the process began; it never goes back, and it is the clock
// of every deadline. CLOCK_MONOTONIC stands still while the machine is suspended.
uint64_t clock_now_ms(void);
uint64_t clock_now_us(void);
uint64_t clock_now_ns(void);

// The same clock as of the last tick of the kernel, some milliseconds behind at most: several times
// cheaper.
uint64_t clock_coarse_ms(void);

#endif
