// SPDX-License-Identifier: Apache-2.0
//
// Text in fixed buffers, for the sentences, reports and log lines of the core. No state. Runs
// inside coordinator_step.

#include "coordinator/sentence.h"

#include "base/utf8.h"
#include "coordinator/core.h"

#include <stdio.h>

#define CLEAN_LONG_BYTES 128 // A copy that is shorter may be a name, and is cut anywhere.
#define CLEAN_WORD_BYTES 32 // A longer word is cut.

void sentence_begin(struct sentence *sentence, char *text, size_t bytes)
{
    sentence->text = text;
    sentence->bytes = bytes;
    sentence->used = 0;
    text[0] = '\0';
}

// Returns the size of the UTF-8 character that starts with this byte; 0: no character does.
static size_t character_bytes(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

// Returns the size of text[0, size) without an incomplete character at its end.
static size_t whole_characters(const char *text, size_t size)
{
    size_t start = size;
    while (start > 0 && size - start < 4 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0)
        return size;
    const size_t bytes = character_bytes((unsigned char)text[start - 1]);
    return bytes > size - start + 1 ? start - 1 : size;
}

void sentence_add_v(struct sentence *sentence, const char *format, va_list arguments)
{
    const size_t room = sentence->bytes - sentence->used;
    const int wanted = vsnprintf(sentence->text + sentence->used, room, format, arguments);
    if (wanted < 0)
        return;
    if ((size_t)wanted < room) {
        sentence->used += (size_t)wanted;
        return;
    }
    sentence->used = whole_characters(sentence->text, sentence->bytes - 1);
    sentence->text[sentence->used] = '\0';
}

void sentence_add(struct sentence *sentence, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    sentence_add_v(sentence, format, arguments);
    va_end(arguments);
}

void sentence_quote(struct sentence *sentence, const char *text)
{
    sentence_add(sentence, "\"");
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            sentence_add(sentence, "\\n");
        else if (*text == '"' || *text == '\\')
            sentence_add(sentence, "\\%c", *text);
        else
            sentence_add(sentence, "%c", *text);
    }
    sentence_add(sentence, "\"");
}

void sentence_seconds(struct sentence *sentence, uint64_t ms)
{
    sentence_add(sentence, "%" PRIu64 ".%" PRIu64 " s", ms / 1000, ms % 1000 / 100);
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
    if (used < CLEAN_LONG_BYTES || next == ' ')
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
