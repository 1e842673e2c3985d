// SPDX-License-Identifier: Apache-2.0
//
// Finds values in JSON text; json_read.h has the contract.

#include "cli/ask/json_read.h"

#include "base/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32

static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
        at++;
    return at;
}

// Returns the position after the string that begins here, or NULL.
static const char *skip_string(const char *at)
{
    for (at++; *at && *at != '"'; at++) {
        if (*at == '\\' && *++at == '\0')
            return NULL;
    }
    return *at ? at + 1 : NULL;
}

// Returns the position after a value, or NULL. Brackets need not match by kind, because this file
// does not validate.
static const char *skip_value(const char *at)
{
    unsigned depth = 0;
    do {
        at = skip_space(at);
        if (*at == '"') {
            at = skip_string(at);
            if (!at)
                return NULL;
        } else if (*at == '{' || *at == '[') {
            if (++depth > MAX_DEPTH)
                return NULL;
            at++;
        } else if (*at == '}' || *at == ']') {
            if (depth-- == 0)
                return NULL;
            at++;
        } else if (*at == ',' || *at == ':') {
            if (depth == 0)
                return NULL;
            at++;
        } else {
            size_t size = strcspn(at, ",:]}\" \n\r\t");
            if (size == 0)
                return NULL;
            at += size;
        }
    } while (depth > 0);
    return at;
}

const char *json_read_member(const char *object, const char *key)
{
    size_t size = strlen(key);
    const char *at = object ? skip_space(object) : "";
    if (*at++ != '{')
        return NULL;
    for (;;) {
        at = skip_space(at);
        if (*at != '"')
            return NULL;
        const char *name = at + 1;
        at = skip_string(at);
        if (!at)
            return NULL;
        bool found = (size_t)(at - 1 - name) == size && memcmp(name, key, size) == 0;
        at = skip_space(at);
        if (*at != ':')
            return NULL;
        at = skip_space(at + 1);
        if (found)
            return at;
        at = skip_value(at);
        if (!at)
            return NULL;
        at = skip_space(at);
        if (*at++ != ',')
            return NULL;
    }
}

const char *json_read_first(const char *array)
{
    const char *at = array ? skip_space(array) : "";
    if (*at != '[')
        return NULL;
    at = skip_space(at + 1);
    return *at == ']' || *at == '\0' ? NULL : at;
}

const char *json_read_next(const char *item)
{
    const char *at = item ? skip_value(item) : NULL;
    if (!at)
        return NULL;
    at = skip_space(at);
    return *at == ',' ? skip_space(at + 1) : NULL;
}

// Reads one escape at *at, after the backslash. A character that is not printable ASCII becomes
// '?'.
static char unescape(const char **at)
{
    char kind = *(*at)++;
    if (kind == 'n' || kind == 't' || kind == 'r')
        return ' ';
    if (kind != 'u')
        return isprint((unsigned char)kind) ? kind : '?';
    for (int i = 0; i < 4 && isxdigit((unsigned char)**at); i++)
        (*at)++;
    return '?';
}

// Copies the first character to out, or '?' if it is malformed or could harm a terminal. Returns
// the bytes in out. *taken: the bytes of the original character.
static size_t harmless(const char *at, const char *end, char out[4], size_t *taken)
{
    const size_t length = utf8_length(at, (size_t)(end - at));
    *taken = length > 0 ? length : 1;
    out[0] = '?';
    if (length == 0 || !utf8_harmless(at, length))
        return 1;
    memcpy(out, at, length);
    return length;
}

bool json_read_string(const char *value, char *text, size_t capacity)
{
    size_t size = 0;
    text[0] = '\0';
    if (!value || *value != '"')
        return false;
    const char *end = value + strlen(value);
    for (const char *at = value + 1; *at && *at != '"';) {
        char shown[4];
        size_t taken = 0;
        size_t bytes = 1;
        if (*at == '\\' && at[1]) {
            at++;
            shown[0] = unescape(&at);
        } else {
            bytes = harmless(at, end, shown, &taken);
        }
        if (size + bytes >= capacity)
            break;
        memcpy(text + size, shown, bytes);
        size += bytes;
        at += taken;
    }
    text[size] = '\0';
    return true;
}

bool json_read_u64(const char *value, uint64_t *number)
{
    char *end = NULL;
    if (!value || !isdigit((unsigned char)*value))
        return false;
    errno = 0;
    unsigned long long read = strtoull(value, &end, 10);
    if (errno != 0)
        return false;
    *number = read;
    return true;
}

// Programs that use this set no locale, so strtod expects the decimal point of JSON.
bool json_read_double(const char *value, double *number)
{
    char *end = NULL;
    if (!value || (!isdigit((unsigned char)*value) && *value != '-'))
        return false;
    const double read = strtod(value, &end);
    if (end == value)
        return false;
    *number = read;
    return true;
}

bool json_read_bool(const char *value, bool *flag)
{
    if (!value || (strncmp(value, "true", 4) != 0 && strncmp(value, "false", 5) != 0))
        return false;
    *flag = *value == 't';
    return true;
}
