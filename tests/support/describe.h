// SPDX-License-Identifier: Apache-2.0
//
// Prints control messages as one line of text, for traces that tests assert and failures print. Not
// for programs. Pure functions, any thread.

#ifndef TESTS_SUPPORT_DESCRIBE_H
#define TESTS_SUPPORT_DESCRIBE_H

#include "protos/types.h"

#include <stddef.h>

#define DESCRIBE_BYTES (LOCKSTEP_REPORT_BYTES + 256)

// "ready step 1 slot 0#0.3"
void describe_up(char *text, size_t bytes, const struct up_message *message);
// "grant step 1 slot 0#0.3". The texts in a message are printed whole, with their line breaks.
void describe_down(char *text, size_t bytes, const struct down_message *message);

#endif
