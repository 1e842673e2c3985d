// SPDX-License-Identifier: Apache-2.0
//
// Questions to a coordinator's HTTP side; ask.h has the contract.

#include "cli/ask.h"

#include "base/text.h"
#include "cli/cli.h"
#include "cli/http.h"
#include "cli/json_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 5000

int ask_set_address(struct ask *ask, const char *value)
{
    if (http_read_address(value, ask->address, sizeof(ask->address)))
        return 0;
    return cli_misuse(ask->command, "%s: not HOST:PORT or [IPV6]:PORT", value);
}

// It becomes a part of a path as it is: a coordinator has no other names.
int ask_set_job(struct ask *ask, const char *value)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (value[0] && value[strspn(value, allowed)] == '\0' &&
        text_copy(ask->job, sizeof(ask->job), value))
        return 0;
    return cli_misuse(ask->command, "--job '%s': a job has up to %d letters, digits, '-', '_', '.'",
                      value, LOCKSTEP_JOB_NAME_BYTES - 1);
}

int ask_set_token(struct ask *ask, const char *file)
{
    FILE *from = fopen(file, "re");
    if (!from)
        return cli_misuse(ask->command, "--token %s: %s", file, strerror(errno));
    const bool read = fgets(ask->token, sizeof(ask->token), from) != NULL;
    (void)fclose(from);
    ask->token[read ? strcspn(ask->token, "\r\n") : 0] = '\0';
    if (ask->token[0] && strlen(ask->token) < sizeof(ask->token) - 1)
        return 0;
    return cli_misuse(ask->command, "--token %s: its first line is not a token", file);
}

int ask_find(struct ask *ask)
{
    const char *dashboard = getenv("LOCKSTEP_DASHBOARD");
    if (ask->address[0])
        return 0;
    return ask_set_address(ask, dashboard && dashboard[0] ? dashboard : ASK_DEFAULT);
}

// What it says beside its number: {"error":{"code":404,"message":"there is no such job"}}
static void ask_refused(struct ask *ask, const char *path, int code, const char *body)
{
    char message[LOCKSTEP_TEXT_BYTES / 2];
    const char *error = json_member(body, "error");
    const bool says = json_read_string(json_member(error, "message"), message, sizeof(message)) ||
                      json_read_string(error, message, sizeof(message));
    snprintf(ask->error, sizeof(ask->error), "%s answered %d to GET %s%s%s", ask->address, code,
             path, says ? ": " : "", message);
}

bool ask_get(struct ask *ask, const char *path, char **body)
{
    *body = NULL;
    ask->error[0] = '\0';
    const int code =
        http_get(ask->address, path, ask->token, TIMEOUT_MS, body, ask->error, sizeof(ask->error));
    if (code == 200)
        return true;
    if (code >= 0)
        ask_refused(ask, path, code, *body);
    free(*body);
    *body = NULL;
    return false;
}
