// SPDX-License-Identifier: Apache-2.0
//
// Puts frames into the output of a hosted run; frames.h has the contract.

#include "cli/run/frames.h"

#include "base/clock.h"
#include "cli/run/daemon.h"
#include "cli/run/output.h"
#include "cli/run/place.h"
#include "cli/run/relay.h"

#include <stdio.h>

void frames_place(struct output *output, const struct daemon *daemon)
{
    char bytes[LOCKSTEP_ADDRESS_BYTES + DAEMON_DASHBOARD_BYTES + 2];
    char address[LOCKSTEP_ADDRESS_BYTES];
    char dashboard[DAEMON_DASHBOARD_BYTES] = "";
    place_coordinator(output->options, daemon, address, sizeof(address));
    daemon_dashboard(daemon, output->options, dashboard, sizeof(dashboard));
    const int size = snprintf(bytes, sizeof(bytes), "%s\n%s", address, dashboard);
    output_put(output, RELAY_PLACE, 0, bytes, (size_t)size);
}

void frames_started(struct output *output, uint32_t rank, pid_t pid)
{
    unsigned char bytes[RELAY_STARTED_BYTES];
    const struct relay_started started = {.at_ms = clock_now_ms(), .pid = (uint32_t)pid};
    relay_put_started(bytes, &started);
    output_put(output, RELAY_STARTED, output->options->first_rank + rank, bytes, sizeof(bytes));
}

void frames_ended(struct output *output, uint32_t rank, uint64_t at_ms, uint32_t cause,
                  const struct run_end *end)
{
    unsigned char bytes[RELAY_ENDED_BYTES];
    const struct relay_ended ended = {.at_ms = at_ms,
                                      .status = end->status,
                                      .exec_error = end->exec_error,
                                      .stopped = end->stopped,
                                      .cause = cause};
    relay_put_ended(bytes, &ended);
    output_put(output, RELAY_ENDED, output->options->first_rank + rank, bytes, sizeof(bytes));
}
