// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that follow from a seed, so that a failing draw is the same on every run, and
// numbers that the environment gives.

#ifndef LOCKSTEP_TESTS_CHOICE_H
#define LOCKSTEP_TESTS_CHOICE_H

#include <stdint.h>

// The next number of a sequence that any state begins (splitmix64).
static inline uint64_t choice_random(uint64_t *state)
{
    uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

// The next number below `bound` (xorshift). The state is not 0.
uint64_t choice_below(uint64_t *state, uint64_t bound);
// The number in an environment variable; `otherwise` if it is not set, or is empty.
uint64_t choice_number(const char *variable, uint64_t otherwise);

#endif
