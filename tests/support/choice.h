// SPDX-License-Identifier: Apache-2.0
//
// Choices of tests that kill at random: numbers that follow from a seed, and numbers that the
// environment gives.

#ifndef LOCKSTEP_TESTS_CHOICE_H
#define LOCKSTEP_TESTS_CHOICE_H

#include <stdint.h>

// The next number below `bound` (xorshift). The state is not 0.
uint64_t choice_below(uint64_t *state, uint64_t bound);
// The number in an environment variable; `otherwise` if it is not set, or is empty.
uint64_t choice_number(const char *variable, uint64_t otherwise);

#endif
