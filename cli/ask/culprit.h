// SPDX-License-Identifier: Apache-2.0
//
// Prints a stall as text for people, from the API's JSON (docs/http.md): the sentence, the
// ranks in the way, and the ranks that wait for each. Members that are missing or null are left
// out. Main thread.

#ifndef LOCKSTEP_CLI_ASK_CULPRIT_H
#define LOCKSTEP_CLI_ASK_CULPRIT_H

#include "cli/ask/colour.h"

#include <stdint.h>
#include <stdio.h>

#define CULPRIT_DURATION_BYTES 32

// Writes a duration such as "0.4 s", "34.2 s", "12 min 5 s" or "3 h 20 min". Returns text, which
// has CULPRIT_DURATION_BYTES.
const char *culprit_duration(uint64_t ms, char *text);

// Prints an active stall with all its details.
void culprit_print_stall(FILE *out, const struct palette *palette, const char *stall);

// Prints a past stall in two lines.
void culprit_print_past(FILE *out, const char *stall);

#endif
