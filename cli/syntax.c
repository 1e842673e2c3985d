// SPDX-License-Identifier: Apache-2.0
//
// The options of a subcommand, one after the other. What they mean is the subcommand's.

#include "cli/syntax.h"

#include "cli/cli.h"
#include "cli/main.h"

#include <stdio.h>

int cli_read_options(const struct cli_syntax *syntax, void *options, int argc, char **argv)
{
    opterr = 0;
    for (;;) {
        const int key = getopt_long(argc, argv, syntax->letters, syntax->options, NULL);
        int result = 0;
        switch (key) {
        case -1:
            return 0;
        case 'h':
            fputs(syntax->help, stdout);
            return -1;
        case ':':
            return cli_misuse(syntax->name, "option '%s' needs a value", argv[optind - 1]);
        case '?':
            return cli_misuse(syntax->name, "unknown option '%s'", argv[optind - 1]);
        default:
            result = syntax->take(options, key, optarg);
        }
        if (result != 0)
            return result;
    }
}
