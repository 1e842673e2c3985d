// SPDX-License-Identifier: Apache-2.0
//
// Questions to a coordinator's HTTP side; ask.h has the contract.

#include "cli/ask/ask.h"

#include "cli/common/cli.h"
#include "cli/common/registry.h"

#include "base/text.h"
#include "cli/ask/http.h"
#include "cli/ask/json_read.h"
#include "protos/job_name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 5000

// given: "LOCKSTEP_DASHBOARD=" for the error, or "".
static int take_address(struct ask *ask, const char *given, const char *value)
{
    if (http_read_address(value, &ask->peer)) {
        ask->peer.tls |= ask->peer.cacert[0] != '\0';
        return 0;
    }
    return cli_misuse(ask->command, "%s%s: not HOST:PORT or [IPV6]:PORT", given, value);
}

int ask_set_address(struct ask *ask, char *value)
{
    const int result = take_address(ask, "", value);
    http_hide_token(value);
    return result;
}

// Sets the job. The name becomes part of a URL path without escaping, so only valid names are
// accepted.
int ask_set_job(struct ask *ask, const char *value)
{
    if (job_name_valid(value) && text_copy(ask->job, sizeof(ask->job), value))
        return 0;
    return cli_misuse(ask->command,
                      "--job '%s': a job's name has up to %d characters: " JOB_NAME_RULE, value,
                      LOCKSTEP_JOB_NAME_BYTES - 1);
}

int ask_set_token(struct ask *ask, const char *file)
{
    FILE *from = fopen(file, "re");
    if (!from)
        return cli_misuse(ask->command, "--token-file %s: %s", file, strerror(errno));
    char *token = ask->peer.token;
    const bool read = fgets(token, sizeof(ask->peer.token), from) != NULL;
    (void)fclose(from);
    token[read ? strcspn(token, "\r\n") : 0] = '\0';
    if (token[0] && strlen(token) < sizeof(ask->peer.token) - 1)
        return 0;
    return cli_misuse(ask->command, "--token-file %s: its first line is not a token", file);
}

int ask_set_cacert(struct ask *ask, const char *file)
{
    ask->peer.tls = true;
    if (file[0] && text_copy(ask->peer.cacert, sizeof(ask->peer.cacert), file))
        return 0;
    return cli_misuse(ask->command, "--cacert '%s': a file is needed", file);
}

int ask_set_option(struct ask *ask, int key, const char *value)
{
    switch (key) {
    case ASK_KEY_CACERT:
        return ask_set_cacert(ask, value);
    case ASK_KEY_TOKEN:
        return ask_set_token(ask, value);
    default:
        return CLI_MISUSE;
    }
}

// Writes the names of jobs: "mnist, llama".
static void append_names(struct text *names, const struct registry_job *jobs, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        text_append(names, "%s%s", i == 0 ? "" : ", ", jobs[i].name);
}

// Writes the addresses of jobs: "http://127.0.0.1:40123/?token=..., http://...".
static void append_addresses(struct text *addresses, const struct registry_job *jobs,
                             unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        text_append(addresses, "%s'%s'", i == 0 ? "" : ", ", jobs[i].address);
}

// Prints an error that asks the user to name one of several jobs.
static int refuse_several(const struct ask *ask, const struct registry_job *jobs, unsigned count)
{
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text names;
    text_init(&names, bytes, sizeof(bytes));
    if (ask->job[0]) { // All have this name.
        append_addresses(&names, jobs, count);
        return cli_misuse(ask->command,
                          "%u jobs of the name '%s' run on this machine; give the address of one "
                          "with --http: %s",
                          count, ask->job, bytes);
    }
    append_names(&names, jobs, count);
    return cli_misuse(ask->command, "%u jobs run on this machine: %s; name one with --job", count,
                      bytes);
}

int ask_find(struct ask *ask)
{
    struct registry_job jobs[REGISTRY_MAX];
    const char *dashboard = getenv("LOCKSTEP_DASHBOARD");
    if (ask->peer.address[0])
        return 0;
    if (dashboard && dashboard[0])
        return take_address(ask, "LOCKSTEP_DASHBOARD=", dashboard);
    const unsigned count = registry_list(ask->job, jobs);
    if (count > 1)
        return refuse_several(ask, jobs, count);
    ask->guessed = count == 0;
    return take_address(ask, "", count == 1 ? jobs[0].address : ASK_DEFAULT);
}

// Copies the body and returns true if it is one line of printable ASCII, such as "draining" from
// /readyz.
static bool is_line(const char *body, char *line, size_t capacity)
{
    size_t length = 0;
    while (body && body[length] >= ' ' && body[length] <= '~' && length + 1 < capacity)
        length++;
    if (length == 0 || body[0] == '<' || strcmp(body + length, "\n") != 0)
        return false;
    memcpy(line, body, length);
    line[length] = '\0';
    return true;
}

// Sets the error to the message of the answer's JSON: {"error":{"code":404,"message":"there is no
// such job"}}
static void ask_refused(struct ask *ask, int code, const char *body)
{
    char message[LOCKSTEP_TEXT_BYTES / 2];
    const char *error = json_read_member(body, "error");
    ask->refused = code;
    const bool says =
        json_read_string(json_read_member(error, "message"), message, sizeof(message)) ||
        json_read_string(error, message, sizeof(message));
    if (!says && !is_line(body, message, sizeof(message)))
        snprintf(message, sizeof(message),
                 "status %d to a question; is that the page of a coordinator of Lockstep?", code);
    snprintf(ask->error, sizeof(ask->error), "%s answers: %s%s", ask->peer.address, message,
             code == 401 ? "; lockstep wants it in --token-file FILE, or in the whole address that "
                           "lockstep run has printed: --http 'http://HOST:PORT/?token=TOKEN'"
                         : "");
}

// Adds a hint to the error. Used if no address was given, `lockstep run` has no job of that name on
// this machine, and no daemon answers at the default address.
static void ask_elsewhere(struct ask *ask)
{
    struct registry_job jobs[REGISTRY_MAX];
    char bytes[LOCKSTEP_TEXT_BYTES / 2];
    struct text hint;
    const size_t used = strlen(ask->error);
    const unsigned count = ask->job[0] ? registry_list("", jobs) : 0;
    text_init(&hint, bytes, sizeof(bytes));
    if (count > 0) {
        text_append(&hint, "lockstep run has no job '%s' on this machine, but these: ", ask->job);
        append_names(&hint, jobs, count);
    } else {
        text_append(&hint, "no job of lockstep run is on this machine");
    }
    snprintf(ask->error + used, sizeof(ask->error) - used,
             ", and %s; name the page of a coordinator: --http ADDRESS, or LOCKSTEP_DASHBOARD",
             bytes);
}

bool ask_get(struct ask *ask, const char *path, char **body)
{
    *body = NULL;
    ask->error[0] = '\0';
    const int code = http_get(&ask->peer, path, TIMEOUT_MS, body, ask->error, sizeof(ask->error));
    if (code == 200)
        return true;
    if (code >= 0)
        ask_refused(ask, code, *body);
    else if (ask->guessed)
        ask_elsewhere(ask);
    free(*body);
    *body = NULL;
    return false;
}
