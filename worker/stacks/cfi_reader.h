// SPDX-License-Identifier: Apache-2.0
//
// Reads DWARF numbers from memory that may not be mapped. After the end or a bad address the reader
// sets `bad` and returns zeros from then on. Inline; only for cfi.c and cfi_find.c.

#ifndef WORKER_STACKS_CFI_READER_H
#define WORKER_STACKS_CFI_READER_H

#include "worker/stacks/peek.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CFI_WINDOW 128

struct cfi_reader {
    uintptr_t at, end;
    uintptr_t window_at;
    size_t window_bytes;
    bool resident; // True if only bytes in main memory may be read.
    bool bad;
    uint8_t window[CFI_WINDOW];
};

static inline void reader_init(struct cfi_reader *reader, uintptr_t at, uintptr_t end,
                               bool resident)
{
    reader->at = at;
    reader->end = end;
    reader->window_bytes = 0;
    reader->resident = resident;
    reader->bad = end < at;
}

static inline bool reader_more(const struct cfi_reader *reader)
{
    return !reader->bad && reader->at < reader->end;
}

static inline uint8_t reader_byte(struct cfi_reader *reader)
{
    if (!reader_more(reader)) {
        reader->bad = true;
        return 0;
    }
    if (reader->window_bytes == 0 || reader->at - reader->window_at >= reader->window_bytes) {
        const uintptr_t left = reader->end - reader->at;
        reader->window_at = reader->at;
        reader->window_bytes = left < CFI_WINDOW ? left : CFI_WINDOW;
        if (!(reader->resident ? peek_resident(reader->at, reader->window, reader->window_bytes)
                               : peek(reader->at, reader->window, reader->window_bytes))) {
            reader->bad = true;
            return 0;
        }
    }
    return reader->window[reader->at++ - reader->window_at];
}

// Reads a little-endian number: all machines with an unwinder here are little-endian.
static inline uint64_t reader_unsigned(struct cfi_reader *reader, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)reader_byte(reader) << (8 * i);
    return value;
}

static inline int64_t reader_signed(struct cfi_reader *reader, unsigned bytes)
{
    const uint64_t value = reader_unsigned(reader, bytes);
    const uint64_t sign = UINT64_C(1) << (8 * bytes - 1);
    return (int64_t)((value ^ sign) - sign);
}

static inline uint64_t reader_uleb(struct cfi_reader *reader)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        const uint8_t byte = reader_byte(reader);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0)
            return value;
    }
    reader->bad = true;
    return 0;
}

static inline int64_t reader_sleb(struct cfi_reader *reader)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        const uint8_t byte = reader_byte(reader);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) != 0)
            continue;
        if ((byte & 0x40) != 0 && shift + 7 < 64)
            value |= ~UINT64_C(0) << (shift + 7);
        return (int64_t)value;
    }
    reader->bad = true;
    return 0;
}

static inline void reader_skip(struct cfi_reader *reader, uint64_t bytes)
{
    if (bytes > reader->end - reader->at)
        reader->bad = true;
    else
        reader->at += bytes;
}

#endif
