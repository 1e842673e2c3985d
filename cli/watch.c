// SPDX-License-Identifier: Apache-2.0
//
// Pictures, one after the other; watch.h has the contract. A picture is made in memory and goes out
// at once, so that nothing flickers and an interrupt leaves nothing half drawn.

#include "cli/watch.h"

#include "cli/cli.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define LEAST_S 0.1
#define MOST_S 3600.0

// Of the terminal.
#define HOME "\x1b[H"
#define CLEAR_LINE "\x1b[K"
#define CLEAR_BELOW "\x1b[J"

int watch_read(const struct ask *ask, const char *value, uint32_t *every_ms)
{
    char *end = NULL;
    const double seconds = value ? strtod(value, &end) : WATCH_DEFAULT_MS / 1000.0;
    if (value && (end == value || *end != '\0' || !(seconds >= LEAST_S && seconds <= MOST_S)))
        return cli_misuse(ask->command, "--watch=%s: not %.1f to %.0f seconds", value, LEAST_S,
                          MOST_S);
    *every_ms = (uint32_t)lround(seconds * 1000);
    return 0;
}

// Everything that was painted is out, and the terminal is as it was: there is nothing to put back.
static void watch_interrupted(int signal_number)
{
    (void)signal_number;
    _exit(CLI_OK);
}

// Columns that a line takes: its characters, without the commands to the terminal among them.
static size_t watch_width(const char *line, size_t size)
{
    size_t width = 0;
    for (size_t i = 0; i < size; i++) {
        if (line[i] == '\x1b')
            i += strcspn(line + i, "m");
        else
            width += ((unsigned char)line[i] & 0xC0) != 0x80; // Not inside a character of UTF-8.
    }
    return width;
}

// As much of a picture as the terminal has room for: it would scroll, and not find home again.
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

// False: nobody takes it any more.
static bool watch_show(const struct watch *watch, const char *picture)
{
    if (watch->every_ms && isatty(STDOUT_FILENO))
        watch_repaint(picture);
    else
        fputs(picture, stdout);
    return fflush(stdout) == 0;
}

// One picture, given in *picture; NULL when there is no memory.
static int watch_paint(const struct watch *watch, char **picture)
{
    size_t size = 0;
    *picture = NULL;
    FILE *out = open_memstream(picture, &size);
    if (!out)
        return CLI_FAILED;
    const int code = watch->paint(watch->context, out);
    if (code == CLI_FAILED)
        fprintf(out, "%s\n", watch->ask->error);
    (void)fclose(out);
    return code;
}

static void watch_rest(uint32_t ms)
{
    const struct timespec rest = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    (void)nanosleep(&rest, NULL);
}

int watch_run(const struct watch *watch)
{
    const struct sigaction interrupted = {.sa_handler = watch_interrupted};
    if (watch->every_ms)
        sigaction(SIGINT, &interrupted, NULL);
    for (bool painted = false;; painted = true) {
        char *picture;
        const int code = watch_paint(watch, &picture);
        if (!picture || (code == CLI_FAILED && !(painted && watch->every_ms))) {
            cli_say(watch->ask->command, "%s", picture ? watch->ask->error : "out of memory");
            free(picture);
            return CLI_FAILED;
        }
        const bool taken = watch_show(watch, picture);
        free(picture);
        if (!taken)
            cli_say(watch->ask->command, "cannot write to standard output");
        if (!taken || !watch->every_ms)
            return taken ? code : CLI_FAILED;
        watch_rest(watch->every_ms);
    }
}
