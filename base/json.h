// SPDX-License-Identifier: Apache-2.0
// Streaming JSON writer into a buffer that grows to a maximum and no further. The writer adds the
// commas and tracks the nesting. It escapes keys and strings, and replaces malformed UTF-8 by
// U+FFFD, so the output is valid for every input. It is not a parser. Not synchronized.
//
//     json_object_begin(&json, NULL);
//     json_u64(&json, "rank", 5);
//     json_array_begin(&json, "modules");
//     json_string(&json, NULL, "policy");
//     json_array_end(&json);
//     json_object_end(&json);
//     const char *text = json_text(&json, &size);
//
// Inside an object, a key is the member's name. Inside an array and at the top level, it is NULL.
// The writer remembers errors, so only the result of json_text has to be checked.
#ifndef LOCKSTEP_BASE_JSON_H
#define LOCKSTEP_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_MAX_DEPTH 32

struct json {
    char *bytes; // owned
    size_t size;
    size_t capacity;
    size_t maximum;
    unsigned depth;
    bool failed; // True if the text became too large, or there was no memory.
    // By depth: true if the value is an object, false if it is an array.
    bool object[JSON_MAX_DEPTH + 1];
    bool members[JSON_MAX_DEPTH + 1]; // By depth: true if the object or array has a member already.
};

// maximum_bytes counts the closing NUL. Allocates nothing yet.
void json_init(struct json *json, size_t maximum_bytes);
void json_fini(struct json *json);

// Starts over and keeps the memory.
void json_reset(struct json *json);

void json_object_begin(struct json *json, const char *key);
void json_object_end(struct json *json);
void json_array_begin(struct json *json, const char *key);
void json_array_end(struct json *json);

void json_string(struct json *json, const char *key, const char *value); // Writes null for NULL.
void json_string_bytes(struct json *json, const char *key, const char *value, size_t size);
void json_u64(struct json *json, const char *key, uint64_t value);
void json_i64(struct json *json, const char *key, int64_t value);
// Writes null for an infinite number or NAN.
void json_double(struct json *json, const char *key, double value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);

// Returns the finished text with a NUL behind it, borrowed until the next call for this writer.
// size may be NULL. Returns NULL if an error occurred.
const char *json_text(const struct json *json, size_t *size);

#endif
