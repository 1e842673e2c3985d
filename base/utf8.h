// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 by the rules of RFC 3629: the characters of foreign text, one by one. Pure. Any thread.

#ifndef LOCKSTEP_BASE_UTF8_H
#define LOCKSTEP_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes of the well-formed UTF-8 character at the beginning (1 to 4), or 0: malformed, overlong, a
// surrogate, above U+10FFFF, incomplete, or size is 0. A NUL byte is a character of one byte.
size_t utf8_length(const char *bytes, size_t size);

// The code point of a well-formed character of so many bytes.
uint32_t utf8_code(const char *bytes, size_t length);

// Whether the well-formed character of so many bytes is harmless in foreign text that people see.
// No control character is: neither one of ASCII, nor U+0080 to U+009F, which a
// terminal takes as commands like those of ESC. Nor are marks that change the direction of what
// stands around them (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069), nor line ends
// that are none for most programs (U+2028, U+2029).
bool utf8_harmless(const char *bytes, size_t length);

// Whether all of it is well-formed.
bool utf8_valid(const char *bytes, size_t size);

#endif
