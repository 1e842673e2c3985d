// SPDX-License-Identifier: Apache-2.0
//
// Text in fixed buffers, for the sentences, reports and log lines of the core. No state. Runs
// inside coordinator_step.

#include "coordinator/sentence.h"

#include "base/utf8.h"
#include "coordinator/core.h"

#define CLEAN_LONG_BYTES 128 // A copy that is shorter may be a name, and is cut anywhere.
#define CLEAN_WORD_BYTES 32 // A longer word is cut.

void sentence_quote(struct text *sentence, const char *text)
{
    text_append(sentence, "\"");
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            text_append(sentence, "\\n");
        else if (*text == '"' || *text == '\\')
            text_append(sentence, "\\%c", *text);
        else
            text_append(sentence, "%c", *text);
    }
    text_append(sentence, "\"");
}

void sentence_seconds(struct text *sentence, uint64_t ms)
{
    text_append(sentence, "%" PRIu64 ".%" PRIu64 " s", ms / 1000, ms % 1000 / 100);
}

// Returns what stands for a line break after to[0, used).
static const char *clean_break(const char *to, size_t used)
{
    if (used == 0 || to[used - 1] == ' ')
        return "";
    return strchr(":;,.", to[used - 1]) ? " " : "; ";
}

// Returns the size of a copy that was cut: without its last word if that was cut.
static size_t clean_cut(const char *to, size_t used, char next)
{
    size_t words = used;
    if (used < CLEAN_LONG_BYTES || next == ' ' || next == '\n')
        return used;
    while (words > used - CLEAN_WORD_BYTES && to[words - 1] != ' ')
        words--;
    return to[words - 1] == ' ' ? words - 1 : used;
}

static void clean(char *to, size_t bytes, const char *from, size_t from_bytes, bool lines)
{
    const char *end = memchr(from, '\0', from_bytes);
    size_t left = end ? (size_t)(end - from) : from_bytes;
    size_t used = 0;
    while (left > 0) {
        size_t size = utf8_length(from, left);
        size_t taken = size == 0 ? 1 : size;
        const bool breaks = lines && (*from == '\n' || *from == '\r');
        while (breaks && taken < left && strchr("\r\n\t ", from[taken]))
            taken++;
        const char *instead = breaks && taken < left ? clean_break(to, used) : "";
        if (used + (breaks ? strlen(instead) : taken) >= bytes) {
            used = lines ? clean_cut(to, used, *from) : used;
            break;
        }
        if (breaks) {
            size = strlen(instead);
            memcpy(to + used, instead, size);
            used += size;
        } else if (size == 0 || !utf8_harmless(from, size)) {
            to[used++] = '?';
        } else {
            memcpy(to + used, from, size);
            used += size;
        }
        from += taken;
        left -= taken;
    }
    to[used] = '\0';
}

void sentence_clean(char *to, size_t bytes, const char *from, size_t from_bytes)
{
    clean(to, bytes, from, from_bytes, false);
}

void sentence_clean_lines(char *to, size_t bytes, const char *from, size_t from_bytes)
{
    clean(to, bytes, from, from_bytes, true);
}
