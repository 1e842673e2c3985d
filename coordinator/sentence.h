// SPDX-License-Identifier: Apache-2.0
//
// Sentences, reports and log lines in fixed buffers. Runs inside coordinator_step.

#ifndef COORDINATOR_SENTENCE_H
#define COORDINATOR_SENTENCE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

// Text in a fixed buffer, always terminated, always whole UTF-8 characters when what is added is.
struct sentence {
    char *text; // Borrowed.
    size_t bytes;
    size_t used;
};

void sentence_begin(struct sentence *sentence, char *text, size_t bytes);
void sentence_add(struct sentence *sentence, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sentence_add_v(struct sentence *sentence, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
// A value of a logfmt line: quoted, its quotes and backslashes escaped, newlines as \n.
void sentence_quote(struct sentence *sentence, const char *text);
// "4.5 s"
void sentence_seconds(struct sentence *sentence, uint64_t ms);
// Copies what a peer said into to[0, bytes): at most from_bytes of it, and whatever is no UTF-8 or
// a control character becomes '?', so that it can be shown and sent on.
void sentence_clean(char *to, size_t bytes, const char *from, size_t from_bytes);

#endif
