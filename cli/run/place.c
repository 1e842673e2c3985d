// SPDX-License-Identifier: Apache-2.0
//
// The environment of a worker; place.h has the contract.

#include "cli/run/place.h"

#include "base/text.h"
#include "cli/common/cli.h"

#include <stdio.h>
#include <stdlib.h>

void place_coordinator(const struct run_options *options, const struct daemon *daemon,
                       char *address, size_t capacity)
{
    if (daemon->served[0])
        snprintf(address, capacity, "%s", daemon->served);
    else if (options->serves && options->bind) // The address by which other hosts reach this one.
        snprintf(address, capacity, "%s", options->bind);
    else if (options->coordinator)
        snprintf(address, capacity, "%s", options->coordinator);
    else
        daemon_address(options, address, capacity);
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] != '\0';
}

unsigned place_variables(const struct run_options *options, const struct daemon *daemon,
                         uint32_t rank, struct place_text *text,
                         struct spawn_variable variables[PLACE_VARIABLES])
{
    unsigned count = 0;
    place_coordinator(options, daemon, text->coordinator, sizeof(text->coordinator));
    snprintf(text->world_size, sizeof(text->world_size), "%u", options->world_size);
    snprintf(text->rank, sizeof(text->rank), "%u", options->first_rank + rank);
    snprintf(text->timeout, sizeof(text->timeout), "%u", (unsigned)options->timeout_ms);
    variables[count++] = (struct spawn_variable){"LOCKSTEP_COORDINATOR", text->coordinator};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_JOB", options->job};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_WORLD_SIZE", text->world_size};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_RANK_HINT", text->rank};
    if (!options->coordinator) // A private coordinator is on a Unix socket, and has no certificate.
        variables[count++] = (struct spawn_variable){"LOCKSTEP_TLS_DIR", NULL};
    if (options->timeout_ms)
        variables[count++] = (struct spawn_variable){"LOCKSTEP_OPEN_TIMEOUT_MS", text->timeout};
    if (daemon_dashboard(daemon, options, text->dashboard, sizeof(text->dashboard)))
        variables[count++] = (struct spawn_variable){"LOCKSTEP_DASHBOARD", text->dashboard};
    if (options->survive > 0 && !is_set("LOCKSTEP_ON_FAILURE"))
        variables[count++] = (struct spawn_variable){"LOCKSTEP_ON_FAILURE", "continue"};
    return count;
}

// Appends "4 workers", or "host 2 of 2, ranks 4 to 7 of 8".
static void append_workers(struct text *text, const struct run_options *options)
{
    if (options->nodes > 1)
        text_append(text, "host %u of %u, ", options->node_rank + 1, options->nodes);
    if (options->workers == options->world_size)
        text_append(text, "%u worker%s", options->workers, options->workers == 1 ? "" : "s");
    else if (options->workers == 1)
        text_append(text, "rank %u of %u", options->first_rank, options->world_size);
    else
        text_append(text, "ranks %u to %u of %u", options->first_rank,
                    options->first_rank + options->workers - 1, options->world_size);
}

void place_announce(const struct run_options *options, const struct daemon *daemon)
{
    char dashboard[DAEMON_DASHBOARD_BYTES];
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text text;
    if (options->quiet)
        return;
    text_init(&text, bytes, sizeof(bytes));
    append_workers(&text, options);
    if (options->coordinator)
        text_append(&text, ", coordinator %s", options->coordinator);
    if (daemon_dashboard(daemon, options, dashboard, sizeof(dashboard)))
        text_append(&text, ", dashboard %s", dashboard);
    else if (!options->coordinator || options->serves)
        text_append(&text, ", no dashboard");
    cli_say(options->command, "job %s, %s", options->job, bytes);
}
