// SPDX-License-Identifier: Apache-2.0
// A set of small numbers, as bits of words: number n is bit n % 64 of word n / 64. The caller's
// numbers are below 64 times the count of words. Pure.
#ifndef LOCKSTEP_BASE_BITS_H
#define LOCKSTEP_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool bits_has(const uint64_t *words, uint32_t number)
{
    return (words[number / 64] >> number % 64 & 1) != 0;
}

static inline void bits_add(uint64_t *words, uint32_t number)
{
    words[number / 64] |= UINT64_C(1) << number % 64;
}

static inline void bits_remove(uint64_t *words, uint32_t number)
{
    words[number / 64] &= ~(UINT64_C(1) << number % 64);
}

#endif
