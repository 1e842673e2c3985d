// SPDX-License-Identifier: Apache-2.0
// XXH64. Any thread.
//
// Four lanes take eight bytes each of every 32-byte block, so that four multiplications are in
// flight at once: with a single lane, each multiplication would wait for the previous one.
// hash64_final folds the lanes into one word, adds the bytes of the incomplete last block, and
// mixes the word so that every bit affects every other bit.
#include "base/hash64.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "lanes are read in the machine's order");

static const uint64_t P1 = 0x9e3779b185ebca87u;
static const uint64_t P2 = 0xc2b2ae3d27d4eb4fu;
static const uint64_t P3 = 0x165667b19e3779f9u;
static const uint64_t P4 = 0x85ebca77c2b2ae63u;
static const uint64_t P5 = 0x27d4eb2f165667c5u;

static inline uint64_t hash_rotate(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}

static inline uint64_t hash_read64(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

static inline uint64_t hash_read32(const unsigned char *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

static inline uint64_t hash_round(uint64_t lane, uint64_t word)
{
    return hash_rotate(lane + word * P2, 31) * P1;
}

static inline uint64_t hash_merge(uint64_t sum, uint64_t lane)
{
    return (sum ^ hash_round(0, lane)) * P1 + P4;
}

// Mixes whole blocks in. The lanes are kept in registers for the loop.
static void hash_blocks(uint64_t lanes[4], const unsigned char *at, size_t blocks)
{
    uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
    for (; blocks > 0; blocks--, at += HASH64_BLOCK_BYTES) {
        a = hash_round(a, hash_read64(at));
        b = hash_round(b, hash_read64(at + 8));
        c = hash_round(c, hash_read64(at + 16));
        d = hash_round(d, hash_read64(at + 24));
    }
    lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
}

void hash64_init(struct hash64 *hash, uint64_t seed)
{
    *hash = (struct hash64){.lanes = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void hash64_update(struct hash64 *hash, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    size_t held = hash->size % HASH64_BLOCK_BYTES;
    hash->size += size;
    if (held > 0) {
        size_t missing = HASH64_BLOCK_BYTES - held;
        size_t taken = size < missing ? size : missing;
        memcpy(hash->block + held, at, taken);
        at += taken;
        size -= taken;
        if (taken < missing)
            return;
        hash_blocks(hash->lanes, hash->block, 1);
    }
    size_t blocks = size / HASH64_BLOCK_BYTES;
    hash_blocks(hash->lanes, at, blocks);
    size_t rest = size % HASH64_BLOCK_BYTES;
    if (rest > 0)
        memcpy(hash->block, at + blocks * HASH64_BLOCK_BYTES, rest);
}

// Adds the bytes of an incomplete block.
static uint64_t hash_rest(uint64_t sum, const unsigned char *at, size_t size)
{
    for (; size >= 8; size -= 8, at += 8)
        sum = hash_rotate(sum ^ hash_round(0, hash_read64(at)), 27) * P1 + P4;
    if (size >= 4) {
        sum = hash_rotate(sum ^ hash_read32(at) * P1, 23) * P2 + P3;
        size -= 4;
        at += 4;
    }
    for (; size > 0; size--, at++)
        sum = hash_rotate(sum ^ *at * P5, 11) * P1;
    return sum;
}

uint64_t hash64_final(const struct hash64 *hash)
{
    const uint64_t *lane = hash->lanes;
    uint64_t sum = hash->seed + P5;
    if (hash->size >= HASH64_BLOCK_BYTES) {
        sum = hash_rotate(lane[0], 1) + hash_rotate(lane[1], 7) + hash_rotate(lane[2], 12) +
              hash_rotate(lane[3], 18);
        for (int i = 0; i < 4; i++)
            sum = hash_merge(sum, lane[i]);
    }
    sum = hash_rest(sum + hash->size, hash->block, hash->size % HASH64_BLOCK_BYTES);
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

uint64_t hash64(const void *bytes, size_t size)
{
    struct hash64 hash;
    hash64_init(&hash, 0);
    hash64_update(&hash, bytes, size);
    return hash64_final(&hash);
}
