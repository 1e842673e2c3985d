// SPDX-License-Identifier: Apache-2.0
//
// Finds values in JSON text that a coordinator wrote. It does not validate: malformed values are
// not found. A value is a pointer to its first character in a NUL-terminated text. NULL means that
// there is no value, and every function accepts NULL. Pure, any thread.

#ifndef LOCKSTEP_CLI_ASK_JSON_READ_H
#define LOCKSTEP_CLI_ASK_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Returns the value of a member of an object.
const char *json_read_member(const char *object, const char *key);

// Return the first item of an array, and the item after an item.
const char *json_read_first(const char *array);
const char *json_read_next(const char *item);

// Copies a string, unescaped and cut to fit. A character that a terminal could take as a command
// becomes '?'. Returns false, and an empty text, if the value is not a string.
bool json_read_string(const char *value, char *text, size_t capacity);

bool json_read_u64(const char *value, uint64_t *number);

// Reads a number with or without a fraction. Returns false if the value is not a number.
bool json_read_double(const char *value, double *number);

// Reads true or false into *flag. Returns false if the value is neither.
bool json_read_bool(const char *value, bool *flag);

#endif
