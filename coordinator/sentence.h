// SPDX-License-Identifier: Apache-2.0
//
// Sentences, reports and log lines in fixed buffers. Runs inside coordinator_step.

#ifndef COORDINATOR_SENTENCE_H
#define COORDINATOR_SENTENCE_H

#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

// Adds text as a value of a logfmt line: in quotes, with its quotes and backslashes escaped, and
// newlines as \n.
void sentence_quote(struct text *sentence, const char *text);
// Adds "4.5 s".
void sentence_seconds(struct text *sentence, uint64_t ms);
// Copies a text that a peer sent, at most from_bytes of it, into to[0, bytes). A byte that is not
// UTF-8, or a control character, becomes '?', so that the copy can be shown and sent to others. A
// copy that is cut ends at a character.
void sentence_clean(char *to, size_t bytes, const char *from, size_t from_bytes);
// The same for the text of a failure, which may have lines: a line break and the blanks after it
// become "; ", or " " after punctuation. A long copy that is cut ends at a word, if that is short.
void sentence_clean_lines(char *to, size_t bytes, const char *from, size_t from_bytes);

#endif
