// SPDX-License-Identifier: Apache-2.0
//
// Time limits of tests, and how many cases tests run. A limit is generous: only a hang, or code
// that is far too slow, exceeds it.

#ifndef LOCKSTEP_TESTS_BOUNDS_H
#define LOCKSTEP_TESTS_BOUNDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The slowdown of this run: LOCKSTEP_TEST_SLOW, at least 1. Under a sanitizer it is above 1, and
// tests may run fewer cases.
uint32_t test_slow(void);

// True with LOCKSTEP_TEST_ALGORITHMS=all, as in the nightly run: tests run every combination of
// choices. False: tests run a subset that contains each choice at least once.
bool test_everything(void);

// Under a sanitizer one of several ways stands for all of them, in turn: each test takes another
// one, and under ThreadSanitizer not the one that it takes under AddressSanitizer. True if this
// test takes this way. Elsewhere, with test_everything() and with a filter, each test takes all.
bool test_takes(size_t test, size_t way, size_t ways);

// Scales a time limit of a release build by test_slow(); in CI, whose machines are busy, by at
// least 5.
uint64_t test_bound_ms(uint64_t ms);

#endif
