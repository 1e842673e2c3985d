// SPDX-License-Identifier: Apache-2.0
//
// FNV-1a, for names and for values on which ranks must agree. Pure.

#include "coordinator/hash.h"

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t hash_number(uint64_t hash, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        hash = (hash ^ (number >> (8 * i) & 0xff)) * UINT64_C(0x100000001b3);
    return hash;
}
