// SPDX-License-Identifier: Apache-2.0
//
// Finding values in JSON text that a coordinator wrote. Not a validator: what is malformed is not
// found. A value is a pointer to its first character in a NUL-terminated text; NULL is "there is
// none", and every function takes it. Pure, any thread.

#ifndef LOCKSTEP_CLI_ASK_JSON_READ_H
#define LOCKSTEP_CLI_ASK_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The value of a member of an object. Keys with escapes are not found.
const char *json_read_member(const char *object, const char *key);

// The first item of an array, and the one after an item.
const char *json_read_first(const char *array);
const char *json_read_next(const char *item);

// Copies a string, unescaped and cut to fit. What a terminal could take as a command becomes '?'.
// False, and an empty text, when the value is not a string.
bool json_read_string(const char *value, char *text, size_t capacity);

bool json_read_u64(const char *value, uint64_t *number);

// A number with or without a fraction; false when the value is none.
bool json_read_double(const char *value, double *number);

// True or false in *flag; false when the value is neither.
bool json_read_bool(const char *value, bool *flag);

#endif
