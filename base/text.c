// SPDX-License-Identifier: Apache-2.0
//
// Text in a buffer of fixed size; text.h has the contract. Pure. Any thread.

#include "base/text.h"

#include "base/utf8.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void text_init(struct text *text, char *buffer, size_t capacity)
{
    assert(capacity > 0);
    *text = (struct text){.bytes = buffer, .capacity = capacity};
    buffer[0] = '\0';
}

// Drops the incomplete character that a cut may have left at the end.
static void text_trim(struct text *text)
{
    for (size_t back = 1; back <= 3 && back <= text->size; back++) {
        size_t start = text->size - back;
        unsigned char byte = (unsigned char)text->bytes[start];
        if ((byte & 0xc0) == 0x80)
            continue;
        if (byte >= 0xc0 && utf8_length(text->bytes + start, back) == 0)
            text->size = start;
        break;
    }
    text->bytes[text->size] = '\0';
}

static bool text_cut(struct text *text)
{
    text->truncated = true;
    text->size = text->capacity - 1;
    text_trim(text);
    return false;
}

bool text_append_v(struct text *text, const char *format, va_list arguments)
{
    if (text->truncated)
        return false;
    size_t room = text->capacity - text->size;
    int length = vsnprintf(text->bytes + text->size, room, format, arguments);
    if (length < 0) {
        // vsnprintf fails only for wide characters, which we do not use.
        text->bytes[text->size] = '\0';
        text->truncated = true;
        return false;
    }
    if ((size_t)length >= room)
        return text_cut(text);
    text->size += (size_t)length;
    return true;
}

bool text_append(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool whole = text_append_v(text, format, arguments);
    va_end(arguments);
    return whole;
}

bool text_append_bytes(struct text *text, const char *bytes, size_t size)
{
    if (text->truncated)
        return false;
    size_t room = text->capacity - 1 - text->size;
    if (size > room) {
        memcpy(text->bytes + text->size, bytes, room);
        return text_cut(text);
    }
    if (size > 0)
        memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = '\0';
    return true;
}

bool text_copy(char *buffer, size_t capacity, const char *string)
{
    struct text text;
    text_init(&text, buffer, capacity);
    return text_append_bytes(&text, string, strlen(string));
}
