// SPDX-License-Identifier: Apache-2.0
//
// Units of a collective and their used bits; see units.h for the words. Pure, any thread.

#include "worker/memory/units.h"

// Returns the first unit whose end is not below the element; count if there is none.
static uint32_t units_lower_bound(const uint64_t *ends, uint32_t count, uint64_t element)
{
    uint32_t low = 0;
    uint32_t high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (ends[middle] < element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// If a unit ends where this chunk begins, an earlier chunk meets that unit, unless the unit also
// begins there. If a unit begins where this chunk ends, a later chunk meets that unit, unless there
// is no later chunk.
struct unit_range units_met(const uint64_t *ends, uint32_t count, struct ring_span span)
{
    const uint64_t end = span.first + span.count;
    uint32_t first = 0;
    uint32_t last = count;
    if (count == 0)
        return (struct unit_range){0, 0};
    if (span.first > 0) {
        first = units_lower_bound(ends, count, span.first);
        first += first < count && ends[first] == span.first;
    }
    if (end < ends[count - 1])
        last = units_lower_bound(ends, count, end) + 1;
    return (struct unit_range){first, last - first};
}

// Returns `count` bits, at most 8, from bit `at` on, as the low bits of the result.
static uint8_t units_take(const uint64_t *words, uint32_t at, uint32_t count)
{
    const uint32_t shift = at % 64;
    uint64_t bits = words[at / 64] >> shift;
    if (shift + count > 64)
        bits |= words[at / 64 + 1] << (64 - shift);
    return (uint8_t)(bits & (((uint64_t)1 << count) - 1));
}

static uint32_t units_in_byte(uint32_t count, uint32_t byte)
{
    const uint32_t left = count - byte * 8;
    return left < 8 ? left : 8;
}

void units_pack(const uint64_t *words, struct unit_range range, uint8_t *bits)
{
    for (uint32_t i = 0; i < units_bytes(range.count); i++)
        bits[i] = units_take(words, range.first + i * 8, units_in_byte(range.count, i));
}

void units_merge(uint64_t *words, struct unit_range range, const uint8_t *bits)
{
    for (uint32_t i = 0; i < units_bytes(range.count); i++) {
        const uint32_t at = range.first + i * 8;
        const uint32_t shift = at % 64;
        const uint64_t some = bits[i];
        words[at / 64] |= some << shift;
        if (shift + units_in_byte(range.count, i) > 64)
            words[at / 64 + 1] |= some >> (64 - shift);
    }
}

bool units_are_clean(const uint8_t *bits, uint32_t count)
{
    return count % 8 == 0 || bits[count / 8] >> (count % 8) == 0;
}

bool units_none(const uint8_t *bits, uint32_t count)
{
    uint8_t any = 0;
    for (uint32_t i = 0; i < units_bytes(count); i++)
        any |= bits[i];
    return count > 0 && any == 0;
}

bool units_include(const uint8_t *bits, struct unit_range range, const uint64_t *words)
{
    for (uint32_t i = 0; i < units_bytes(range.count); i++) {
        const uint32_t have = units_take(words, range.first + i * 8, units_in_byte(range.count, i));
        if ((have & ~(uint32_t)bits[i]) != 0)
            return false;
    }
    return true;
}

enum unit_usage units_usage(const uint64_t *words, struct unit_range range)
{
    bool any = false;
    bool all = true;
    for (uint32_t i = 0; i < units_bytes(range.count); i++) {
        const uint32_t here = units_in_byte(range.count, i);
        const uint32_t bits = units_take(words, range.first + i * 8, here);
        any = any || bits != 0;
        all = all && bits == (1u << here) - 1;
    }
    if (all)
        return USAGE_ALL;
    return any ? USAGE_SOME : USAGE_NONE;
}
