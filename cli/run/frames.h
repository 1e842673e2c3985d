// SPDX-License-Identifier: Apache-2.0
//
// The frames by which a hosted run (`lockstep run-host`) tells the launcher's host about ranks:
// their form is in relay.h. Ranks are those of this host, from 0. Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_FRAMES_H
#define LOCKSTEP_CLI_RUN_FRAMES_H

#include <stdint.h>
#include <sys/types.h>

struct daemon;
struct output;
struct run_end;

void frames_place(struct output *output, const struct daemon *daemon);
void frames_started(struct output *output, uint32_t rank, pid_t pid);
// cause: as in relay_ended.
void frames_ended(struct output *output, uint32_t rank, uint64_t at_ms, uint32_t cause,
                  const struct run_end *end);

#endif
