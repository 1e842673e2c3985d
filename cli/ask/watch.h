// SPDX-License-Identifier: Apache-2.0
//
// The commands that show what a coordinator says, once or, with --watch, again and again: their
// options, and their pictures. A terminal shows the last picture only, from its upper left corner
// on; anything else gets one after the other. Main thread.

#ifndef LOCKSTEP_CLI_ASK_WATCH_H
#define LOCKSTEP_CLI_ASK_WATCH_H

#include "cli/ask/ask.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// The values of its options.
struct watch {
    struct ask ask;
    uint32_t every_ms; // 0: once.
    bool json;
};

struct watch_command {
    const char *name; // The NAME of "lockstep NAME".
    const char *help;
    // Prints one picture. Returns an exit status; CLI_FAILED: watch->ask.error says why.
    int (*paint)(struct watch *watch, FILE *out);
};

// Reads the options --http, --job, --watch, --json and those of ASK_OPTIONS. Returns the exit
// status of one picture, or paints for ever: SIGINT ends the process with 0. What fails before
// anything was painted ends it; later it is shown, and asked again.
int watch_main(const struct watch_command *command, int argc, char **argv);

#endif
