// SPDX-License-Identifier: Apache-2.0
//
// Prints pictures one after the other; watch.h has the contract. A picture is built in memory and
// written at once, so it does not flicker, and an interrupt never leaves half of it.

#include "cli/ask/watch.h"

#include "cli/common/cli.h"

#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define USUAL_S 1.0
#define LEAST_S 0.1
#define MOST_S 3600.0

// Commands of the terminal.
#define HOME "\x1b[H"
#define CLEAR_LINE "\x1b[K"
#define CLEAR_BELOW "\x1b[J"

// ---- options ------------------------------------------------------------------------------------

static const struct option long_options[] = {
    {"http", required_argument, NULL, 'a'},
    {"job", required_argument, NULL, 'n'},
    {"watch", optional_argument, NULL, 'w'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    ASK_OPTIONS,
    {NULL, 0, NULL, 0},
};

// Reads the value of --watch: seconds, or NULL. Returns 0, or CLI_MISUSE with a sentence on stderr.
static int watch_read_every(struct watch *watch, const char *value)
{
    char *end = NULL;
    const double seconds = value ? strtod(value, &end) : USUAL_S;
    if (value && (end == value || *end != '\0' || !(seconds >= LEAST_S && seconds <= MOST_S)))
        return cli_misuse(watch->ask.command, "--watch=%s: not %.1f to %.0f seconds", value,
                          LEAST_S, MOST_S);
    watch->every_ms = (uint32_t)lround(seconds * 1000);
    return 0;
}

static int watch_set_option(void *given, int key, char *value)
{
    struct watch *watch = given;
    switch (key) {
    case 'a':
        return ask_set_address(&watch->ask, value);
    case 'n':
        return ask_set_job(&watch->ask, value);
    case 'w':
        return watch_read_every(watch, value);
    case 'j':
        watch->json = true;
        return 0;
    default:
        return ask_set_option(&watch->ask, key, value);
    }
}

// Returns 0, an exit status, or -1 if the help was printed.
static int watch_read_options(const struct watch_command *command, struct watch *watch, int argc,
                              char **argv)
{
    const struct cli_syntax syntax = {.name = command->name,
                                      .letters = ":h",
                                      .options = long_options,
                                      .help = command->help,
                                      .take = watch_set_option};
    *watch = (struct watch){.ask = {.command = command->name}};
    const int read = cli_read_options(&syntax, watch, argc, argv);
    if (read != 0)
        return read;
    if (optind < argc)
        return cli_misuse(command->name, "unexpected argument '%s'", argv[optind]);
    return ask_find(&watch->ask);
}

// ---- pictures -----------------------------------------------------------------------------------

// Ends the process. The last picture was written completely and the terminal's mode was not
// changed, so there is nothing to restore.
static void watch_interrupted(int signal_number)
{
    (void)signal_number;
    _exit(CLI_OK);
}

// Returns the columns that a line takes: its characters without the terminal commands among them.
static size_t watch_width(const char *line, size_t size)
{
    size_t width = 0;
    for (size_t i = 0; i < size; i++) {
        if (line[i] == '\x1b')
            i += strcspn(line + i, "m");
        else
            width += ((unsigned char)line[i] & 0xC0) != 0x80; // First byte of a character.
    }
    return width;
}

// Writes as much of a picture as fits on the terminal. If it scrolled, the next picture would not
// begin at the same place.
static void watch_repaint(const char *picture)
{
    struct winsize window = {0};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    size_t rows = known && window.ws_row > 1 ? window.ws_row - 1u : SIZE_MAX;
    fputs(HOME, stdout);
    while (*picture) {
        const size_t size = strcspn(picture, "\n");
        const size_t width = watch_width(picture, size);
        const size_t needs = known && width > 0 ? (width - 1) / window.ws_col + 1 : 1;
        if (needs > rows)
            break;
        rows -= needs;
        fwrite(picture, 1, size, stdout);
        fputs(CLEAR_LINE "\n", stdout);
        picture += size + (picture[size] == '\n');
    }
    fputs(CLEAR_BELOW, stdout);
}

// Writes a picture. Returns false after a sentence on stderr if that failed.
static bool watch_show(const struct watch *watch, const char *picture)
{
    if (watch->every_ms && isatty(STDOUT_FILENO))
        watch_repaint(picture);
    else
        fputs(picture, stdout);
    return cli_flush(watch->ask.command);
}

// Makes one picture, which is given in *picture; NULL if there is no memory.
static int watch_paint(const struct watch_command *command, struct watch *watch, char **picture)
{
    size_t size = 0;
    *picture = NULL;
    FILE *out = open_memstream(picture, &size);
    if (!out)
        return CLI_FAILED;
    const int code = command->paint(watch, out);
    if (code == CLI_FAILED && !watch->json)
        fprintf(out, "%s\n", watch->ask.error);
    (void)fclose(out);
    return code;
}

static void watch_rest(uint32_t ms)
{
    const struct timespec rest = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    (void)nanosleep(&rest, NULL);
}

static int watch_run(const struct watch_command *command, struct watch *watch)
{
    const struct sigaction interrupted = {.sa_handler = watch_interrupted};
    if (watch->every_ms)
        sigaction(SIGINT, &interrupted, NULL);
    for (bool painted = false;; painted = true) {
        char *picture;
        const int code = watch_paint(command, watch, &picture);
        if (!picture || (code == CLI_FAILED && !(painted && watch->every_ms))) {
            cli_say(command->name, "%s", picture ? watch->ask.error : "out of memory");
            free(picture);
            return CLI_FAILED;
        }
        if (code == CLI_FAILED && watch->json)
            cli_say(command->name, "%s", watch->ask.error);
        const bool taken = watch_show(watch, picture);
        free(picture);
        if (!taken || !watch->every_ms)
            return taken ? code : CLI_FAILED;
        watch_rest(watch->every_ms);
    }
}

int watch_main(const struct watch_command *command, int argc, char **argv)
{
    struct watch watch;
    const int result = watch_read_options(command, &watch, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    return watch_run(command, &watch);
}
