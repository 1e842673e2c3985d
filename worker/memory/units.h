// SPDX-License-Identifier: Apache-2.0
//
// Units: the parameters in one collective, and the bits that say which units some rank has used.
// The functions find the units that a chunk meets, and convert the bits of these units to and from
// their form in a frame. Pure functions of arrays; no frames, no sockets. Any thread.
//
// The elements of a collective are cut into units: unit u has the elements from ends[u - 1] (0 for
// the first one) to ends[u], exclusive. Ends ascend and the last one is the number of elements. A
// unit may have no elements.
//
// A chunk meets every unit that has an element in the chunk. A unit without elements is met by
// exactly one chunk, however the row is divided: by the chunk that begins at the unit's position or
// contains it, or, after the last element, by the chunk that ends there. So the chunks of a
// collective together meet every unit.
//
// In memory, bit u of an array of words is unit u. In a frame, bit i of an array of bytes is the
// i-th unit that the chunk meets; the unused bits of the last byte are zero.

#ifndef WORKER_MEMORY_UNITS_H
#define WORKER_MEMORY_UNITS_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

// A run of units.
struct unit_range {
    uint32_t first;
    uint32_t count;
};

enum unit_usage {
    USAGE_NONE, // There is at least one unit, and none was used.
    USAGE_SOME,
    USAGE_ALL, // All units were used, or there is no unit.
};

// Returns the units that a chunk meets. span is the chunk; it lies inside the row.
struct unit_range units_met(const uint64_t *ends, uint32_t count, struct ring_span span);

static inline uint32_t units_bytes(uint32_t count)
{
    return (count + 7) / 8;
}

static inline uint32_t units_words(uint32_t count)
{
    return (count + 63) / 64;
}

static inline bool units_is_used(const uint64_t *words, uint32_t unit)
{
    return words[unit / 64] >> (unit % 64) & 1;
}

static inline void units_set_used(uint64_t *words, uint32_t unit)
{
    words[unit / 64] |= (uint64_t)1 << (unit % 64);
}

// Writes the bits of a range in the form of a frame: units_bytes(range.count) bytes.
void units_pack(const uint64_t *words, struct unit_range range, uint8_t *bits);
// Adds the bits of a frame to the words: words |= bits.
void units_merge(uint64_t *words, struct unit_range range, const uint8_t *bits);

// True if the unused bits of the last byte are zero.
bool units_are_clean(const uint8_t *bits, uint32_t count);
// True if there are units and no unit is used.
bool units_none(const uint8_t *bits, uint32_t count);
// True if `bits` has every bit of the range that `words` has.
bool units_include(const uint8_t *bits, struct unit_range range, const uint64_t *words);

enum unit_usage units_usage(const uint64_t *words, struct unit_range range);

#endif
