// SPDX-License-Identifier: Apache-2.0
// Bounded text and UTF-8. Any thread.
#include "base/text.h"

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
        // Only a conversion error of wide characters, which we do not use.
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

size_t utf8_length(const char *bytes, size_t size)
{
    // The second byte is bounded by the first: no overlong forms, no surrogates, nothing too high.
    static const struct {
        unsigned char first_min, first_max, second_min, second_max, length;
    } forms[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    const unsigned char *at = (const unsigned char *)bytes;
    if (size == 0)
        return 0;
    if (at[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (at[0] < forms[i].first_min || at[0] > forms[i].first_max)
            continue;
        if (size < forms[i].length || at[1] < forms[i].second_min || at[1] > forms[i].second_max)
            return 0;
        for (size_t k = 2; k < forms[i].length; k++)
            if ((at[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].length;
    }
    return 0;
}

uint32_t utf8_code(const char *bytes, size_t length)
{
    const unsigned char *at = (const unsigned char *)bytes;
    uint32_t code = length == 1 ? at[0] : at[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (at[i] & 0x3fu);
    return code;
}

bool utf8_harmless(const char *bytes, size_t length)
{
    const uint32_t code = utf8_code(bytes, length);
    if (code < 0x20 || (code >= 0x7f && code <= 0x9f))
        return false;
    if (code == 0x061c || code == 0x200e || code == 0x200f)
        return false;
    return !(code >= 0x2028 && code <= 0x202e) && !(code >= 0x2066 && code <= 0x2069);
}

bool utf8_valid(const char *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t length = utf8_length(bytes + at, size - at);
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}
