// SPDX-License-Identifier: Apache-2.0
//
// Farewells to bytes and back; see farewell.h. Pure functions, any thread.

#include "protos/farewell.h"

#include "base/utf8.h"

#include <string.h>

enum farewell_offset {
    AT_KIND = 0,
    AT_RANK = 4,
    AT_WITNESS = 8,
    AT_ZERO = 12,
    AT_STEP = 16,
};

static_assert(AT_STEP + 8 == FAREWELL_HEAD_BYTES, "the step is the last of the head");

static void farewell_put(uint8_t *bytes, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t farewell_get(const uint8_t *bytes, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static size_t farewell_put_text(uint8_t *bytes, const char *text, size_t capacity)
{
    const size_t length = strnlen(text, capacity - 1);
    memcpy(bytes, text, length);
    bytes[length] = '\0';
    return length + 1;
}

size_t farewell_encode(const struct farewell *farewell, uint8_t bytes[FAREWELL_BYTES])
{
    size_t size = FAREWELL_HEAD_BYTES;
    farewell_put(bytes + AT_KIND, (uint64_t)farewell->kind, 4);
    farewell_put(bytes + AT_RANK, farewell->rank, 4);
    farewell_put(bytes + AT_WITNESS, farewell->witness, 4);
    farewell_put(bytes + AT_ZERO, 0, 4);
    farewell_put(bytes + AT_STEP, farewell->step, 8);
    size += farewell_put_text(bytes + size, farewell->host, sizeof(farewell->host));
    size += farewell_put_text(bytes + size, farewell->text, sizeof(farewell->text));
    return size;
}

// Copies the text that begins at bytes[*at], cleaned, and moves *at behind its NUL. Returns NULL,
// or a sentence that says what is wrong.
static const char *farewell_get_text(const uint8_t *bytes, size_t size, size_t *at, char *text,
                                     size_t capacity)
{
    const uint8_t *from = bytes + *at;
    const size_t left = size - *at;
    const uint8_t *end = left > 0 ? memchr(from, '\0', left) : NULL;
    size_t used = 0;
    if (!end)
        return "a text of it has no end";
    const size_t length = (size_t)(end - from);
    if (length >= capacity)
        return "a text of it is too long";
    while (used < length) {
        const size_t bytes_of_one = utf8_length((const char *)from + used, length - used);
        const size_t taken = bytes_of_one == 0 ? 1 : bytes_of_one;
        memcpy(text + used, from + used, taken);
        if (bytes_of_one == 0 || !utf8_harmless((const char *)from + used, bytes_of_one))
            memset(text + used, '?', taken);
        used += taken;
    }
    text[length] = '\0';
    *at += length + 1;
    return NULL;
}

static const char *farewell_parse(const uint8_t *bytes, size_t size, uint32_t world,
                                  struct farewell *farewell)
{
    size_t at = FAREWELL_HEAD_BYTES;
    const char *wrong = NULL;
    if (size < FAREWELL_HEAD_BYTES || size > FAREWELL_BYTES)
        return "its length is wrong";
    const uint64_t kind = farewell_get(bytes + AT_KIND, 4);
    farewell->rank = (uint32_t)farewell_get(bytes + AT_RANK, 4);
    farewell->witness = (uint32_t)farewell_get(bytes + AT_WITNESS, 4);
    farewell->step = farewell_get(bytes + AT_STEP, 8);
    if (kind > FAREWELL_FROZEN)
        return "it says goodbye in an unknown way";
    if (farewell_get(bytes + AT_ZERO, 4) != 0)
        return "a reserved byte of it is not zero";
    if (farewell->rank >= world || farewell->witness >= world)
        return "it names a rank that does not exist";
    farewell->kind = (enum farewell_kind)kind;
    wrong = farewell_get_text(bytes, size, &at, farewell->host, sizeof(farewell->host));
    if (!wrong)
        wrong = farewell_get_text(bytes, size, &at, farewell->text, sizeof(farewell->text));
    if (!wrong && at != size)
        wrong = "its length is wrong";
    return wrong;
}

const char *farewell_decode(const uint8_t *bytes, size_t size, uint32_t world,
                            struct farewell *farewell)
{
    memset(farewell, 0, sizeof(*farewell));
    const char *wrong = farewell_parse(bytes, size, world, farewell);
    if (wrong)
        memset(farewell, 0, sizeof(*farewell));
    return wrong;
}
