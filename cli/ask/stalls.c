// SPDX-License-Identifier: Apache-2.0
//
// `lockstep stalls`: prints why jobs make no progress, from a coordinator's HTTP API. For scripts,
// the exit status says whether a job is stalled now. Main thread.

#include "cli/ask/stalls.h"

#include "cli/ask/culprit.h"
#include "cli/ask/json_read.h"
#include "cli/ask/watch.h"
#include "cli/common/cli.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static const char help_text[] =
    "usage: lockstep stalls [--http ADDRESS] [--job NAME] [--watch[=SECONDS]] [--json]\n"
    "\n"
    "Says what stands still: which ranks are in the way of the others, since when, and\n"
    "where they are. Stalls that are over come last.\n"
    "\n"
    "      --http ADDRESS     HOST:PORT or https://HOST:PORT of the dashboard (default:\n"
    "                         LOCKSTEP_DASHBOARD, else the page of a job that\n"
    "                         lockstep run has started here, else " ASK_DEFAULT ")\n"
    "      --job NAME         Only this job\n"
    "      --watch[=SECONDS]  Again and again (1), until interrupted\n" ASK_HELP
    "      --json             Print what the coordinator says as it is, in one line\n"
    "  -h, --help             Show this\n"
    "\n"
    "Exit status: 0 when nothing stands still, 3 when something does, 1 without an answer.\n"
    "docs/stalls.md explains what is said.\n";

static bool is_active(const char *stall)
{
    bool active = false;
    return json_read_bool(json_read_member(stall, "active"), &active) && active;
}

static uint32_t count_active(const char *stalls)
{
    uint32_t count = 0;
    for (const char *item = json_read_first(stalls); item; item = json_read_next(item))
        count += is_active(item);
    return count;
}

static void print_stalls(FILE *out, const char *stalls)
{
    const struct palette *palette = colour_palette();
    if (count_active(stalls) == 0)
        fprintf(out, "nothing stands still\n");
    for (const char *item = json_read_first(stalls); item; item = json_read_next(item)) {
        if (is_active(item))
            culprit_print_stall(out, palette, item);
    }
    for (const char *item = json_read_first(stalls); item; item = json_read_next(item)) {
        if (!is_active(item))
            culprit_print_past(out, item);
    }
}

static int paint(struct watch *watch, FILE *out)
{
    struct ask *ask = &watch->ask;
    char path[ASK_PATH_BYTES];
    char *body;
    snprintf(path, sizeof(path), "/api/v1%s%s/stalls", ask->job[0] ? "/jobs/" : "", ask->job);
    if (!ask_get(ask, path, &body))
        return CLI_FAILED;
    const char *stalls = json_read_member(body, "stalls");
    const bool active = count_active(stalls) > 0;
    if (!stalls)
        snprintf(ask->error, sizeof(ask->error), "%s has no list of stalls: is it a coordinator?",
                 ask->peer.address);
    else if (watch->json)
        fprintf(out, "%s\n", body);
    else
        print_stalls(out, stalls);
    free(body);
    return !stalls ? CLI_FAILED : active ? CLI_STALLED : CLI_OK;
}

int stalls_main(int argc, char **argv)
{
    static const struct watch_command command = {
        .name = "stalls", .help = help_text, .paint = paint};
    return watch_main(&command, argc, argv);
}
