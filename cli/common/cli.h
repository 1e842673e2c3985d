// SPDX-License-Identifier: Apache-2.0
//
// Shared by all subcommands: the exit statuses, sentences on stderr, and the reading of options.
// Main thread.

#ifndef LOCKSTEP_CLI_COMMON_CLI_H
#define LOCKSTEP_CLI_COMMON_CLI_H

#include <getopt.h>
#include <stdbool.h>

#define CLI_OK 0
#define CLI_FAILED 1
#define CLI_MISUSE 2 // The arguments are wrong; nothing was started.
#define CLI_STALLED 3 // `lockstep stalls` found a stall.
#define CLI_NOT_EXECUTABLE 126 // The same number as in a shell.
#define CLI_NOT_FOUND 127

// Prints "lockstep NAME: <sentence>" on stderr; NAME may be NULL.
void cli_say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Prints the same, and a line that names --help. Returns CLI_MISUSE.
int cli_misuse(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Flushes stdout. Returns false if anything that was printed there could not be written, with one
// sentence on stderr in the life of the process. errno: that of the last print, or 0.
bool cli_flush(const char *name);

// The options of one subcommand. `letters` is getopt's and begins with ":" or "+:".
struct cli_syntax {
    const char *name;
    const char *letters;
    const struct option *options;
    const char *help; // Printed for the letter h.
    int (*take)(void *options, int key, char *value); // Returns 0, or an exit status.
};

// Calls syntax->take for each option and its value. The other arguments begin at argv[optind].
// Returns 0, an exit status, or -1 if the help was printed.
int cli_read_options(const struct cli_syntax *syntax, void *options, int argc, char **argv);

#endif
