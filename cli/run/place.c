// SPDX-License-Identifier: Apache-2.0
//
// See place.h.

#include "cli/run/place.h"

#include "cli/main.h"

#include "cli/cli.h"

#include <stdio.h>

unsigned place_variables(const struct run_options *options, const struct daemon *daemon,
                         uint32_t rank, struct place *place,
                         struct spawn_variable variables[PLACE_VARIABLES])
{
    unsigned count = 0;
    if (options->coordinator)
        snprintf(place->coordinator, sizeof(place->coordinator), "%s", options->coordinator);
    else
        daemon_address(options, place->coordinator, sizeof(place->coordinator));
    snprintf(place->world_size, sizeof(place->world_size), "%u", options->world_size);
    snprintf(place->rank, sizeof(place->rank), "%u", rank);
    snprintf(place->timeout, sizeof(place->timeout), "%u", (unsigned)options->timeout_ms);
    variables[count++] = (struct spawn_variable){"LOCKSTEP_COORDINATOR", place->coordinator};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_JOB", options->job};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_WORLD_SIZE", place->world_size};
    variables[count++] = (struct spawn_variable){"LOCKSTEP_RANK_HINT", place->rank};
    if (!options->coordinator) // A private one is behind a path, and has no certificate.
        variables[count++] = (struct spawn_variable){"LOCKSTEP_TLS_DIR", NULL};
    if (options->timeout_ms)
        variables[count++] = (struct spawn_variable){"LOCKSTEP_OPEN_TIMEOUT_MS", place->timeout};
    if (daemon_dashboard(daemon, options, place->dashboard, sizeof(place->dashboard)))
        variables[count++] = (struct spawn_variable){"LOCKSTEP_DASHBOARD", place->dashboard};
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
