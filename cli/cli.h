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

// argv[0] is the subcommand's name. Each returns the exit status of the process.
int cli_run(int argc, char **argv);
int cli_status(int argc, char **argv);
int cli_health(int argc, char **argv);
int cli_stalls(int argc, char **argv);
int cli_stacks(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_certs(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_bench_worker(int argc, char **argv); // One rank of a benchmark; not for people.

// "lockstep NAME: <sentence>" on stderr; NAME may be NULL.
void cli_say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The same, followed by where the help is. Returns CLI_MISUSE.
int cli_misuse(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

// What a subcommand may be given. `letters` is as of getopt and begins with ":" or "+:".
struct cli_syntax {
    const char *name;
    const char *letters;
    const struct option *options;
    const char *help; // Printed for the letter h.
    int (*take)(void *options, int key, char *value); // 0, or an exit status.
};

// Gives each option to take, with its value; what follows them begins at argv[optind]. 0, an exit
// status, or -1 when the help was printed.
int cli_read_options(const struct cli_syntax *syntax, void *options, int argc, char **argv);

#endif
