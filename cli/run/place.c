// SPDX-License-Identifier: Apache-2.0
//
// The environment of a worker; place.h has the contract.

#include "cli/run/place.h"

#include "cli/common/cli.h"

#include <stdio.h>

unsigned place_variables(const struct run_options *options, const struct daemon *daemon,
                         uint32_t rank, struct place_text *text,
                         struct spawn_variable variables[PLACE_VARIABLES])
{
    unsigned count = 0;
    if (options->coordinator)
        snprintf(text->coordinator, sizeof(text->coordinator), "%s", options->coordinator);
    else
        daemon_address(options, text->coordinator, sizeof(text->coordinator));
    snprintf(text->world_size, sizeof(text->world_size), "%u", options->world_size);
    snprintf(text->rank, sizeof(text->rank), "%u", rank);
    snprintf(text->timeout, sizeof(text->timeout), "%u", (unsigned)options->timeout_ms);
    variables[count++] = (struct spawn_variable){"LOCKSTEP_COORDINATOR", text->coordinator};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_JOB", options->job};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_WORLD_SIZE", text->world_size};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_RANK_HINT", text->rank};
    if (!options->coordinator) // A private one is behind a path, and has no certificate.
        variables[count++] = (struct spawn_variable){"LOCKSTEP_TLS_DIR", NULL};
    if (options->timeout_ms)
        variables[count++] = (struct spawn_variable){"LOCKSTEP_OPEN_TIMEOUT_MS", text->timeout};
    if (daemon_dashboard(daemon, options, text->dashboard, sizeof(text->dashboard)))
        variables[count++] = (struct spawn_variable){"LOCKSTEP_DASHBOARD", text->dashboard};
    return count;
}

void place_announce(const struct run_options *options, const struct daemon *daemon)
{
    char dashboard[DAEMON_DASHBOARD_BYTES];
    const char *plural = options->world_size == 1 ? "" : "s";
    if (options->quiet)
        return;
    if (options->coordinator)
        cli_say(options->command, "job %s, %u worker%s, coordinator %s", options->job,
                options->world_size, plural, options->coordinator);
    else if (daemon_dashboard(daemon, options, dashboard, sizeof(dashboard)))
        cli_say(options->command, "job %s, %u worker%s, dashboard %s", options->job,
                options->world_size, plural, dashboard);
    else
        cli_say(options->command, "job %s, %u worker%s, no dashboard", options->job,
                options->world_size, plural);
}
