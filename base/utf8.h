// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 by the rules of RFC 3629: the characters of foreign text, one by one. Pure. Any thread.

#ifndef LOCKSTEP_BASE_UTF8_H
#define LOCKSTEP_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Returns the bytes of the well-formed UTF-8 character at the beginning (1 to 4). Returns 0 if the
// character is malformed, overlong, a surrogate, above U+10FFFF or incomplete, or if size is 0. A
// NUL byte is a character of one byte.
size_t utf8_length(const char *bytes, size_t size);

// Returns the code point of a well-formed character of length bytes.
uint32_t utf8_code(const char *bytes, size_t length);

// Returns true if the well-formed character of length bytes is harmless in foreign text that people
// see. Control characters are not harmless: neither those of ASCII nor U+0080 to U+009F, which a
// terminal takes as commands like those of ESC. Also not harmless are marks that change the
// direction of the text around them (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069),
// and line ends that most programs do not know (U+2028, U+2029).
bool utf8_harmless(const char *bytes, size_t length);

// Returns true if all bytes are well-formed UTF-8.
bool utf8_valid(const char *bytes, size_t size);

#endif
