// SPDX-License-Identifier: Apache-2.0
//
// `lockstep health`: its exit status says whether a coordinator takes new workers, for container
// runtimes and scripts. `lockstep status` shows jobs. Main thread.

#include "cli/ask/health.h"

#include "base/json.h"
#include "cli/ask/ask.h"
#include "cli/common/cli.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct health_options {
    struct ask ask;
    bool live;
    bool json;
};

#define HEALTH_JSON_BYTES 4096

static const char help_text[] =
    "usage: lockstep health [--http ADDRESS] [--job NAME] [--live] [--json]\n"
    "\n"
    "Says whether a coordinator takes new workers: status 0 and `ok`, or status 1 and why not.\n"
    "\n"
    "      --http ADDRESS     HOST:PORT or https://HOST:PORT of its dashboard (default:\n"
    "                         LOCKSTEP_DASHBOARD, else the page of a job that\n"
    "                         lockstep run has started here, else " ASK_DEFAULT ")\n" ASK_HELP
    "      --job NAME         Without --http: that of this job, if lockstep run has started\n"
    "                         several here\n"
    "      --live             Only whether it answers: also while it drains\n"
    "      --json             One object: ok, and text, which says why not\n"
    "  -h, --help             Show this\n";

static const struct option long_options[] = {
    {"http", required_argument, NULL, 'a'},
    {"job", required_argument, NULL, 'n'},
    {"live", no_argument, NULL, 'l'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    ASK_OPTIONS,
    {NULL, 0, NULL, 0},
};

static int set_option(void *given, int key, char *value)
{
    struct health_options *options = given;
    switch (key) {
    case 'a':
        return ask_set_address(&options->ask, value);
    case 'n':
        return ask_set_job(&options->ask, value);
    case 'l':
        options->live = true;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    default:
        return ask_set_option(&options->ask, key, value);
    }
}

static const struct cli_syntax syntax = {.name = "health",
                                         .letters = ":h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// text: without the end of the line.
static void print_json(bool ok, const char *text, size_t size)
{
    struct json json;
    json_init(&json, HEALTH_JSON_BYTES);
    json_object_begin(&json, NULL);
    json_bool(&json, "ok", ok);
    json_string_bytes(&json, "text", text, size);
    json_object_end(&json);
    printf("%s\n", json_text(&json, NULL));
    json_fini(&json);
}

// Like ask_get, for a page whose only good answer is "ok".
static bool ask_health(struct ask *ask, const char *path, char **body)
{
    if (!ask_get(ask, path, body))
        return false;
    if (strcmp(*body, "ok\n") == 0)
        return true;
    snprintf(ask->error, sizeof(ask->error),
             "%s does not answer 'ok' to %s; is that the page of a coordinator of Lockstep?",
             ask->peer.address, path);
    return false;
}

int health_main(int argc, char **argv)
{
    struct health_options options = {.ask = {.command = syntax.name}};
    int status = cli_read_options(&syntax, &options, argc, argv);
    if (status < 0)
        return CLI_OK; // The help was printed.
    if (status == 0 && optind < argc)
        status = cli_misuse(syntax.name, "unexpected argument '%s'", argv[optind]);
    if (status == 0)
        status = ask_find(&options.ask);
    if (status != 0)
        return status;
    char *body = NULL;
    const bool ok = ask_health(&options.ask, options.live ? "/healthz" : "/readyz", &body);
    const char *text = ok ? body : options.ask.error;
    if (options.json)
        print_json(ok, text, strcspn(text, "\n"));
    else if (ok)
        fputs(text, stdout);
    else
        cli_say(syntax.name, "%s", text);
    free(body);
    return ok ? CLI_OK : CLI_FAILED;
}
