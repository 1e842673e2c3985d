// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of the tool, and what they say alike. Single-threaded, at start.

#ifndef LOCKSTEP_CLI_CLI_H
#define LOCKSTEP_CLI_CLI_H

#include <getopt.h>

#define CLI_OK 0
#define CLI_FAILED 1
#define CLI_MISUSE 2 // What was asked for makes no sense; nothing was started.
#define CLI_STALLED 3 // Of `lockstep stalls`: something stands still.
#define CLI_NOT_EXECUTABLE 126 // As a shell has it.
#define CLI_NOT_FOUND 127

int cli_health(int argc, char **argv);

// What a subcommand may be given. `letters` is as of getopt and begins with ":" or "+:".
struct cli_syntax {
    const char *name;
    const char *letters;
    const struct option *options;
    const char *help; // Printed for the letter h.
    int (*take)(void *options, int key, char *value); // 0, or an exit status.
};

#endif
