// SPDX-License-Identifier: Apache-2.0
//
// A standstill as text for people, from what the API says of it (docs/http.md): the sentence,
// who is in the way, and who waits for whom. Members that are not there, or null, are left out.
// Main thread.

#ifndef LOCKSTEP_CLI_ASK_CULPRIT_H
#define LOCKSTEP_CLI_ASK_CULPRIT_H

#include "cli/ask/colour.h"

#include <stdint.h>
#include <stdio.h>

#define CULPRIT_DURATION_BYTES 32

// "0.4 s", "34.2 s", "12 min 5 s", "3 h 20 min". Returns text[CULPRIT_DURATION_BYTES].
const char *culprit_duration(uint64_t ms, char *text);

// A stall that lasts, with all that is known of it.
void culprit_print_stall(FILE *out, const struct palette *palette, const char *stall);

// One that is over, in two lines.
void culprit_print_past(FILE *out, const char *stall);

#endif
