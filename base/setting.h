// SPDX-License-Identifier: Apache-2.0
// Reads settings from the environment and checks them. Any thread.
#ifndef LOCKSTEP_BASE_SETTING_H
#define LOCKSTEP_BASE_SETTING_H

#include <stddef.h>
#include <stdint.h>

// Returns the value of an environment variable, borrowed; NULL if the variable is not set or is
// empty.
const char *setting_get(const char *name);

// Writes a sentence into error. Returns -1, so that a function can return the result of this call.
int setting_error(char *error, size_t error_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Reads a variable that holds a number. *to stays as it is if the variable is not set. Returns 0,
// or -1 with a sentence in error.
int setting_number(const char *name, uint32_t maximum, uint32_t *to, char *error,
                   size_t error_bytes);

// Copies a text, which must fit and be UTF-8; NULL copies nothing. Returns 0, or -1 with a sentence
// in error that begins with `what` and the beginning of the text.
int setting_copy(char *to, size_t bytes, const char *from, const char *what, char *error,
                 size_t error_bytes);

#endif
