// SPDX-License-Identifier: Apache-2.0
// Monotonic time. It is not for people: the sink of a log adds the date to its lines. Any thread.
#ifndef LOCKSTEP_BASE_CLOCK_H
#define LOCKSTEP_BASE_CLOCK_H

#include <stdint.h>

// Time since an arbitrary moment before the process began. The clock never goes back, and all
// deadlines use it. It is CLOCK_MONOTONIC, which stands still while the machine is suspended.
uint64_t clock_now_ms(void);
uint64_t clock_now_us(void);
uint64_t clock_now_ns(void);

// The same clock at the kernel's last tick: some milliseconds late at most, and several times
// cheaper to read.
uint64_t clock_coarse_ms(void);

// Processor time that all threads of this process have used so far.
uint64_t clock_process_us(void);

#endif
