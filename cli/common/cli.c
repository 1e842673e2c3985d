// SPDX-License-Identifier: Apache-2.0
//
// Sentences on stderr and the reading of options; cli.h has the contract. The meaning of an option
// is in the file of its subcommand.

#include "cli/common/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void say(const char *name, const char *format, va_list arguments)
{
    char sentence[1024];
    vsnprintf(sentence, sizeof(sentence), format, arguments);
    fprintf(stderr, "lockstep%s%s: %s\n", name ? " " : "", name ? name : "", sentence);
}

void cli_say(const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(name, format, arguments);
    va_end(arguments);
}

int cli_misuse(const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(name, format, arguments);
    va_end(arguments);
    fprintf(stderr, "Try 'lockstep%s%s --help'.\n", name ? " " : "", name ? name : "");
    return CLI_MISUSE;
}

bool cli_flush(const char *name)
{
    static bool said;
    int reason = ferror(stdout) ? errno : 0;
    if (fflush(stdout) != 0)
        reason = errno;
    else if (!ferror(stdout))
        return true;
    if (!said)
        cli_say(name, "cannot write to standard output%s%s", reason ? ": " : "",
                reason ? strerror(reason) : "");
    said = true;
    return false;
}

// `argument` is the one that getopt_long refuses.
static int refuse(const char *name, const char *argument)
{
    if (strncmp(argument, "--", 2) == 0 && optopt != 0)
        return cli_misuse(name, "option '%.*s' takes no value", (int)strcspn(argument, "="),
                          argument);
    if (optopt != 0)
        return cli_misuse(name, "unknown option '-%c'", optopt);
    return cli_misuse(name, "unknown option '%s'", argument);
}

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
            return refuse(syntax->name, argv[optind - 1]);
        default:
            result = syntax->take(options, key, optarg);
        }
        if (result != 0)
            return result;
    }
}
