// SPDX-License-Identifier: Apache-2.0
//
// How long tests have patience: bounds that only something that hangs, or takes far too long,
// meets.

#ifndef LOCKSTEP_TESTS_BOUNDS_H
#define LOCKSTEP_TESTS_BOUNDS_H

#include <stdint.h>

// LOCKSTEP_TEST_SLOW, at least 1: above that a sanitizer runs, and tests may try less.
uint32_t test_slow(void);

// A bound of a release build, times test_slow(); in CI, whose machines are busy, at least times
// five.
uint64_t test_bound_ms(uint64_t ms);

#endif
