// SPDX-License-Identifier: Apache-2.0
//
// `lockstep stalls`: why jobs do not get on, from a coordinator's HTTP side. The status says
// whether something stands still now, for scripts. Main thread.

#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/culprit.h"
#include "cli/json_read.h"
#include "cli/watch.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct stalls_options {
    struct ask ask;
    uint32_t every_ms; // 0: once.
    bool json;
};

static const char help_text[] =
    "usage: lockstep stalls [--http ADDRESS] [--job NAME] [--watch[=SECONDS]] [--json]\n"
    "\n"
    "Says what stands still: which ranks are in the way of the others, since when, and\n"
    "where they are. Stalls that are over come last.\n"
    "\n"
    "      --http ADDRESS     HOST:PORT or https://HOST:PORT of the dashboard (default:\n"
    "                         LOCKSTEP_DASHBOARD, else " ASK_DEFAULT ")\n"
    "      --job NAME         Only this job\n"
    "      --watch[=SECONDS]  Again and again (1), until interrupted\n" ASK_HELP
    "      --json             Print what the coordinator says as it is, in one line\n"
    "  -h, --help             Show this\n"
    "\n"
    "Exit status: 0 when nothing stands still, 3 when something does, 1 without an answer.\n"
    "docs/stalls.md explains what is said.\n";

static const struct option long_options[] = {
    {"http", required_argument, NULL, 'a'},
    {"job", required_argument, NULL, 'n'},
    {"watch", optional_argument, NULL, 'w'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    ASK_OPTIONS,
    {NULL, 0, NULL, 0},
};

static int set_option(void *given, int key, char *value)
{
    struct stalls_options *options = given;
    switch (key) {
    case 'a':
        return ask_set_address(&options->ask, value);
    case 'n':
        return ask_set_job(&options->ask, value);
    case 'w':
        return watch_read(&options->ask, value, &options->every_ms);
    case 'j':
        options->json = true;
        return 0;
    default:
        return ask_set_option(&options->ask, key, value);
    }
}

static const struct cli_syntax syntax = {.name = "stalls",
                                         .letters = ":h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// 0, an exit status, or -1 when the help was printed.
static int read_options(struct stalls_options *options, int argc, char **argv)
{
    *options = (struct stalls_options){.ask = {.command = syntax.name}};
    const int read = cli_read_options(&syntax, options, argc, argv);
    if (read != 0)
        return read;
    if (optind < argc)
        return cli_misuse(syntax.name, "unexpected argument '%s'", argv[optind]);
    return ask_find(&options->ask);
}

static bool is_active(const char *stall)
{
    bool active = false;
    return json_read_bool(json_member(stall, "active"), &active) && active;
}

static uint32_t count_active(const char *stalls)
{
    uint32_t count = 0;
    for (const char *item = json_first(stalls); item; item = json_next(item))
        count += is_active(item);
    return count;
}

static void print_stalls(FILE *out, const char *stalls)
{
    const struct palette *palette = colour_palette();
    if (count_active(stalls) == 0)
        fprintf(out, "nothing stands still\n");
    for (const char *item = json_first(stalls); item; item = json_next(item)) {
        if (is_active(item))
            culprit_print_stall(out, palette, item);
    }
    for (const char *item = json_first(stalls); item; item = json_next(item)) {
        if (!is_active(item))
            culprit_print_past(out, item);
    }
}

static int paint(void *context, FILE *out)
{
    struct stalls_options *options = context;
    struct ask *ask = &options->ask;
    char path[ASK_PATH_BYTES];
    char *body;
    snprintf(path, sizeof(path), "/api/v1%s%s/stalls", ask->job[0] ? "/jobs/" : "", ask->job);
    if (!ask_get(ask, path, &body))
        return CLI_FAILED;
    const char *stalls = json_member(body, "stalls");
    const bool active = count_active(stalls) > 0;
    if (!stalls)
        snprintf(ask->error, sizeof(ask->error), "%s has no list of stalls: is it a coordinator?",
                 ask->peer.address);
    else if (options->json)
        fprintf(out, "%s\n", body);
    else
        print_stalls(out, stalls);
    free(body);
    return !stalls ? CLI_FAILED : active ? CLI_STALLED : CLI_OK;
}

int cli_stalls(int argc, char **argv)
{
    struct stalls_options options;
    const int result = read_options(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    return watch_run(&(struct watch){
        .ask = &options.ask, .every_ms = options.every_ms, .paint = paint, .context = &options});
}
