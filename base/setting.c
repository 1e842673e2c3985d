// SPDX-License-Identifier: Apache-2.0
// Settings from the environment; setting.h has the contract.
#include "base/setting.h"

#include "base/parse.h"
#include "base/text.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 40 // Characters of a value that is too long to be shown.

const char *setting_get(const char *name)
{
    const char *value = getenv(name);
    return !value || value[0] == '\0' ? NULL : value;
}

int setting_error(char *error, size_t error_bytes, const char *format, ...)
{
    struct text text;
    va_list arguments;
    text_init(&text, error, error_bytes);
    va_start(arguments, format);
    text_append_v(&text, format, arguments);
    va_end(arguments);
    return -1;
}

int setting_number(const char *name, uint32_t maximum, uint32_t *to, char *error,
                   size_t error_bytes)
{
    const char *value = setting_get(name);
    uint64_t number;
    if (!value)
        return 0;
    if (!parse_u64(value, &number) || number > maximum)
        return setting_error(error, error_bytes, "%s='%s' is not a number from 0 to %" PRIu32, name,
                             value, maximum);
    *to = (uint32_t)number;
    return 0;
}

// Writes a sentence about a value, of which it shows the first characters. A byte that is not UTF-8
// becomes '?'.
static int refuse_text(const char *what, const char *value, const char *why, char *error,
                       size_t error_bytes)
{
    struct text text;
    text_init(&text, error, error_bytes);
    text_append(&text, "%s '", what);
    for (int i = 0; i < SHOWN && *value; i++) {
        const size_t length = utf8_length(value, strlen(value));
        text_append_bytes(&text, length > 0 ? value : "?", length > 0 ? length : 1);
        value += length > 0 ? length : 1;
    }
    text_append(&text, "%s' %s", *value ? "..." : "", why);
    return -1;
}

int setting_copy(char *to, size_t bytes, const char *from, const char *what, char *error,
                 size_t error_bytes)
{
    if (!from)
        return 0;
    if (!text_copy(to, bytes, from)) {
        char why[96];
        snprintf(why, sizeof(why), "is too long: %zu characters, at most %zu", strlen(from),
                 bytes - 1);
        return refuse_text(what, from, why, error, error_bytes);
    }
    if (!utf8_valid(from, strlen(from)))
        return refuse_text(what, from, "is not valid UTF-8", error, error_bytes);
    return 0;
}
