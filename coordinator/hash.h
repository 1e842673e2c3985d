// SPDX-License-Identifier: Apache-2.0
//
// FNV-1a over bytes and numbers. Start with HASH_START. Pure.

#ifndef COORDINATOR_HASH_H
#define COORDINATOR_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size);

// Adds the low `bytes` bytes of number, little endian.
uint64_t hash_number(uint64_t hash, uint64_t number, unsigned bytes);

#endif
