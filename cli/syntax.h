// SPDX-License-Identifier: Apache-2.0
//
// The functions of syntax.c that other files call.

#ifndef CLI_SYNTAX_H
#define CLI_SYNTAX_H

struct cli_syntax;

// Gives each option to take, with its value; what follows them begins at argv[optind]. 0, an exit
// status, or -1 when the help was printed.
int cli_read_options(const struct cli_syntax *syntax, void *options, int argc, char **argv);

#endif
