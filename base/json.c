// SPDX-License-Identifier: Apache-2.0
// JSON writer. Not synchronized.
#include "base/json.h"

#include "base/utf8.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_FIRST_BYTES 256

void json_init(struct json *json, size_t maximum_bytes)
{
    *json = (struct json){.maximum = maximum_bytes};
}

void json_fini(struct json *json)
{
    free(json->bytes);
    *json = (struct json){0};
}

void json_reset(struct json *json)
{
    json->size = 0;
    json->depth = 0;
    json->failed = false;
    json->members[0] = false;
}

// Makes room for size more bytes and a NUL, by doubling up to the maximum.
static bool json_reserve(struct json *json, size_t size)
{
    if (json->failed)
        return false;
    if (json->maximum == 0 || size > json->maximum - 1 - json->size) {
        json->failed = true;
        return false;
    }
    size_t needed = json->size + size + 1;
    if (needed <= json->capacity)
        return true;
    size_t capacity = json->capacity ? json->capacity : JSON_FIRST_BYTES;
    while (capacity < needed && capacity <= json->maximum / 2)
        capacity *= 2;
    if (capacity < needed || capacity > json->maximum)
        capacity = json->maximum;
    char *bytes = realloc(json->bytes, capacity);
    if (!bytes) {
        json->failed = true;
        return false;
    }
    json->bytes = bytes;
    json->capacity = capacity;
    return true;
}

static void json_put(struct json *json, const char *bytes, size_t size)
{
    if (!json_reserve(json, size))
        return;
    memcpy(json->bytes + json->size, bytes, size);
    json->size += size;
    json->bytes[json->size] = '\0';
}

static void json_put_escape(struct json *json, uint32_t code)
{
    static const char letters[] = "\"\\\b\f\n\r\t";
    static const char escapes[] = "\"\\bfnrt";
    char escaped[8];
    const char *found = code > 0 && code < 0x80 ? strchr(letters, (int)code) : NULL;
    int length = found ? snprintf(escaped, sizeof(escaped), "\\%c", escapes[found - letters])
                       : snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)code);
    json_put(json, escaped, (size_t)length);
}

// Plain characters are copied in runs. Characters that could harm a terminal are written as \u
// escapes, because tools print answers as they are. All of these have code points of at most four
// hex digits.
static void json_put_string(struct json *json, const char *value, size_t size)
{
    size_t plain = 0; // Where the current run of plain characters begins.
    json_put(json, "\"", 1);
    for (size_t at = 0; at < size;) {
        unsigned char byte = (unsigned char)value[at];
        size_t length = utf8_length(value + at, size - at);
        bool special =
            length == 0 || byte == '"' || byte == '\\' || !utf8_harmless(value + at, length);
        if (special)
            json_put(json, value + plain, at - plain);
        if (length == 0)
            json_put(json, "\xef\xbf\xbd", 3); // U+FFFD for one malformed byte
        else if (special)
            json_put_escape(json, utf8_code(value + at, length));
        at += length > 0 ? length : 1;
        if (special)
            plain = at;
    }
    json_put(json, value + plain, size - plain);
    json_put(json, "\"", 1);
}

// Writes the text before any value: a comma, and the key.
static void json_before(struct json *json, const char *key)
{
    assert((key != NULL) == json->object[json->depth]);
    assert(json->depth > 0 || !json->members[0]);
    if (json->members[json->depth])
        json_put(json, ",", 1);
    json->members[json->depth] = true;
    if (key) {
        json_put_string(json, key, strlen(key));
        json_put(json, ":", 1);
    }
}

static void json_literal(struct json *json, const char *key, const char *literal)
{
    json_before(json, key);
    json_put(json, literal, strlen(literal));
}

static void json_begin(struct json *json, const char *key, bool object)
{
    json_literal(json, key, object ? "{" : "[");
    assert(json->depth < JSON_MAX_DEPTH); // The depth depends on our code, never on data.
    json->depth++;
    json->object[json->depth] = object;
    json->members[json->depth] = false;
}

static void json_end(struct json *json, bool object)
{
    assert(json->depth > 0 && json->object[json->depth] == object);
    json->depth--;
    json_put(json, object ? "}" : "]", 1);
}

void json_object_begin(struct json *json, const char *key)
{
    json_begin(json, key, true);
}

void json_object_end(struct json *json)
{
    json_end(json, true);
}

void json_array_begin(struct json *json, const char *key)
{
    json_begin(json, key, false);
}

void json_array_end(struct json *json)
{
    json_end(json, false);
}

void json_string_bytes(struct json *json, const char *key, const char *value, size_t size)
{
    json_before(json, key);
    json_put_string(json, value, size);
}

void json_string(struct json *json, const char *key, const char *value)
{
    if (value)
        json_string_bytes(json, key, value, strlen(value));
    else
        json_null(json, key);
}

void json_u64(struct json *json, const char *key, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%" PRIu64, value);
    json_literal(json, key, digits);
}

void json_i64(struct json *json, const char *key, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%" PRId64, value);
    json_literal(json, key, digits);
}

void json_double(struct json *json, const char *key, double value)
{
    char digits[40];
    if (!isfinite(value)) {
        json_null(json, key);
        return;
    }
    // 15 digits are easy to read, but some values need 17 digits to be read back exactly.
    snprintf(digits, sizeof(digits), "%.15g", value);
    if (strtod(digits, NULL) != value)
        snprintf(digits, sizeof(digits), "%.17g", value);
    // The program's locale may use another decimal point.
    for (char *at = digits; *at; at++)
        if (!strchr("+-0123456789e", *at))
            *at = '.';
    json_literal(json, key, digits);
}

void json_bool(struct json *json, const char *key, bool value)
{
    json_literal(json, key, value ? "true" : "false");
}

void json_null(struct json *json, const char *key)
{
    json_literal(json, key, "null");
}

const char *json_text(const struct json *json, size_t *size)
{
    assert(json->depth == 0);
    if (json->failed || json->size == 0)
        return NULL;
    if (size)
        *size = json->size;
    return json->bytes;
}
