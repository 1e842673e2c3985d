// SPDX-License-Identifier: Apache-2.0
//
// How long tests have patience, and how much they try. Only something that hangs, or takes far too
// long, meets a bound.

#ifndef LOCKSTEP_TESTS_BOUNDS_H
#define LOCKSTEP_TESTS_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

// LOCKSTEP_TEST_SLOW, at least 1: above that a sanitizer runs, and tests may try less.
uint32_t test_slow(void);

// True with LOCKSTEP_TEST_ALGORITHMS=all: every combination is tried, as every night, and not only
// a part that has each choice in it.
bool test_everything(void);

// A bound of a release build, times test_slow(); in CI, whose machines are busy, at least times
// five.
uint64_t test_bound_ms(uint64_t ms);

#endif
