// SPDX-License-Identifier: Apache-2.0
// Settings from the environment; setting.h has the contract.
#include "base/setting.h"

#include "base/parse.h"
#include "base/text.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

int setting_number(const char *name, uint64_t maximum, uint32_t *to, char *error,
                   size_t error_bytes)
{
    const char *value = setting_get(name);
    uint64_t number;
    if (!value)
        return 0;
    if (!parse_u64(value, &number) || number > maximum)
        return setting_error(error, error_bytes, "%s='%s' is not a number from 0 to %" PRIu64, name,
                             value, maximum);
    *to = (uint32_t)number;
    return 0;
}

int setting_copy(char *to, size_t bytes, const char *from, const char *what, char *error,
                 size_t error_bytes)
{
    if (!from)
        return 0;
    if (!text_copy(to, bytes, from))
        return setting_error(error, error_bytes, "%s is too long: %zu characters, at most %zu",
                             what, strlen(from), bytes - 1);
    if (!utf8_valid(from, strlen(from)))
        return setting_error(error, error_bytes, "%s is not valid UTF-8", what);
    return 0;
}
