// SPDX-License-Identifier: Apache-2.0
//
// Colours of a terminal. Any thread.

#ifndef LOCKSTEP_CLI_ASK_COLOUR_H
#define LOCKSTEP_CLI_ASK_COLOUR_H

#include <stdbool.h>

// Terminal codes. A colour is written before a text, and `off` after it. All are empty without
// colours.
struct palette {
    const char *alarm; // For text that needs attention now.
    const char *label;
    const char *off;
};

// Returns true if colours are wanted: on a terminal, unless NO_COLOR is set.
bool colour_wanted(bool terminal);

// Returns the colours for standard output.
const struct palette *colour_palette(void);

#endif
