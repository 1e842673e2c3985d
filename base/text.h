// SPDX-License-Identifier: Apache-2.0
// Text in a buffer of fixed size: appending never overflows, and truncation is remembered instead
// of ignored. UTF-8 by the rules of RFC 3629. Not a string library; nothing here allocates. Pure.
// Any thread, one at a time for each struct text.
#ifndef LOCKSTEP_BASE_TEXT_H
#define LOCKSTEP_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// bytes is always terminated by a NUL; size does not count it.
struct text {
    char *bytes; // borrowed
    size_t size;
    size_t capacity;
    bool truncated;
};

// Borrows the buffer for as long as the text is used. capacity, in bytes, counts the NUL and is at
// least 1.
void text_init(struct text *text, char *buffer, size_t capacity);

// Each returns false when not everything fitted: what fits is kept, cut between characters, and
// later appends add nothing, so that a text never has a hole in its middle.
bool text_append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool text_append_v(struct text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
bool text_append_bytes(struct text *text, const char *bytes, size_t size);

// Copies a string into a buffer of capacity bytes; false when it was cut.
bool text_copy(char *buffer, size_t capacity, const char *string);

// Bytes of the well-formed UTF-8 character at the beginning (1 to 4), or 0: malformed, overlong, a
// surrogate, above U+10FFFF, incomplete, or size is 0. A NUL byte is a character of one byte.
size_t utf8_length(const char *bytes, size_t size);

// The code point of a well-formed character of so many bytes.
uint32_t utf8_code(const char *bytes, size_t length);

// Whether the well-formed character of so many bytes is a harmless one where text of others is
// shown to people. No control character is: neither one of ASCII, nor U+0080 to U+009F, which a
// terminal takes as commands like those of ESC. Nor are marks that change the direction of what
// stands around them (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069), nor line ends
// that are none for most programs (U+2028, U+2029).
bool utf8_harmless(const char *bytes, size_t length);

// Whether all of it is well-formed.
bool utf8_valid(const char *bytes, size_t size);

#endif
