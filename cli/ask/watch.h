// SPDX-License-Identifier: Apache-2.0
//
// Shared by the commands that show a coordinator's answers once or, with --watch, repeatedly. One
// such output is a picture. A terminal shows only the last picture, from its upper left corner on.
// Any other output gets the pictures one after the other. Main thread.

#ifndef LOCKSTEP_CLI_ASK_WATCH_H
#define LOCKSTEP_CLI_ASK_WATCH_H

#include "cli/ask/ask.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// The values of the options.
struct watch {
    struct ask ask;
    uint32_t every_ms; // Time between two pictures in ms; 0: print one picture and end.
    bool json;
};

struct watch_command {
    const char *name; // The NAME of "lockstep NAME".
    const char *help;
    // Prints one picture. Returns an exit status. If that is CLI_FAILED, watch->ask.error has the
    // reason.
    int (*paint)(struct watch *watch, FILE *out);
};

// Reads the options --http, --job, --watch, --json and those of ASK_OPTIONS. Without --watch it
// prints one picture and returns its exit status. With --watch it prints pictures until SIGINT,
// which ends the process with 0. If the first picture fails, the command ends with the error; the
// error of a later picture is printed in its place, or with --json on stderr, and the coordinator
// is asked again.
int watch_main(const struct watch_command *command, int argc, char **argv);

#endif
