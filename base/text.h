// SPDX-License-Identifier: Apache-2.0
// Text in a buffer of fixed size: appending never overflows, and the text remembers that it was
// truncated. No function allocates. Pure. Any thread, one at a time for each struct text.
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

// The buffer is borrowed for as long as the text is used. capacity is in bytes, counts the NUL, and
// is at least 1.
void text_init(struct text *text, char *buffer, size_t capacity);

// Each function returns false if the text did not fit. The part that fits is kept, cut between two
// characters. Later appends add nothing, so no text is missing in the middle.
bool text_append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool text_append_v(struct text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
bool text_append_bytes(struct text *text, const char *bytes, size_t size);

// Copies a string into a buffer of capacity bytes. Returns false if the string was cut.
bool text_copy(char *buffer, size_t capacity, const char *string);

#endif
