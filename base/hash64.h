// SPDX-License-Identifier: Apache-2.0
// A fast 64-bit hash of bytes: XXH64 by its published specification (github.com/Cyan4973/xxHash,
// doc/xxhash_spec.md), so that other languages can compute the same. It costs about one pass over
// memory, and serves for names as well as for tensors of hundreds of MB. It is not cryptographic:
// an attacker who chooses the bytes can make two inputs collide. The value depends on the bytes
// alone, not on how the bytes were divided into updates, and is the same on every machine (all
// supported machines are little-endian). Pure. Any thread.
#ifndef LOCKSTEP_BASE_HASH64_H
#define LOCKSTEP_BASE_HASH64_H

#include <stddef.h>
#include <stdint.h>

#define HASH64_BLOCK_BYTES 32

struct hash64 {
    uint64_t lanes[4];
    uint64_t seed;
    uint64_t size; // Bytes added so far.
    // The last size % 32 bytes, which are not mixed in yet.
    unsigned char block[HASH64_BLOCK_BYTES];
};

void hash64_init(struct hash64 *hash, uint64_t seed);
void hash64_update(struct hash64 *hash, const void *bytes, size_t size);

// Returns the hash of all bytes so far. The state stays, so more bytes may be added afterwards.
uint64_t hash64_final(const struct hash64 *hash);

// The hash of these bytes, with seed 0.
uint64_t hash64(const void *bytes, size_t size);

#endif
