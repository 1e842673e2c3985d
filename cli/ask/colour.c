// SPDX-License-Identifier: Apache-2.0

#include "cli/ask/colour.h"

#include <stdlib.h>
#include <unistd.h>

bool colour_wanted(bool terminal)
{
    const char *no_color = getenv("NO_COLOR");
    return terminal && !(no_color && no_color[0]);
}

const struct palette *colour_palette(void)
{
    static const struct palette none = {.alarm = "", .label = "", .off = ""};
    static const struct palette colours = {
        .alarm = "\x1b[1;31m", .label = "\x1b[36m", .off = "\x1b[0m"};
    return colour_wanted(isatty(STDOUT_FILENO) == 1) ? &colours : &none;
}
