// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 by the rules of RFC 3629; utf8.h has the contract. Pure. Any thread.

#include "base/utf8.h"

size_t utf8_length(const char *bytes, size_t size)
{
    // The first byte limits the second. This excludes overlong forms, surrogates, and code points
    // above U+10FFFF.
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
