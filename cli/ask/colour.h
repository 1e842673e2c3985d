// SPDX-License-Identifier: Apache-2.0
//
// Colours of a terminal. Any thread.

#ifndef LOCKSTEP_CLI_ASK_COLOUR_H
#define LOCKSTEP_CLI_ASK_COLOUR_H

#include <stdbool.h>

// Written before a piece of text, and `off` after it. Empty without colours.
struct palette {
    const char *alarm; // Needs somebody now.
    const char *label;
    const char *off;
};

// Whether colours are wanted: on a terminal, unless NO_COLOR is set.
bool colour_wanted(bool terminal);

// The colours of standard output.
const struct palette *colour_palette(void);

#endif
