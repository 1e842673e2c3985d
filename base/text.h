// SPDX-License-Identifier: Apache-2.0
// Text in a buffer of fixed size: appending never overflows, and truncation is remembered instead
// of ignored. Not a string library; nothing here allocates. Pure. Any thread, one at a time for
// each struct text.
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

#endif
