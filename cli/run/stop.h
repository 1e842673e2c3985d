// SPDX-License-Identifier: Apache-2.0
//
// The end of a job that the user has stopped by a signal. A worker that handles the signal has all
// the time that it needs, and so has one that blocks the signal: it may take the signal later. A
// worker that ignores the signal gets SIGTERM after STOP_LOOK_MS, and SIGKILL STOP_KILL_MS later if
// it ignores SIGTERM, too. A worker that the signal should have ended by itself, and that still
// runs, gets SIGKILL at the same time. Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_STOP_H
#define LOCKSTEP_CLI_RUN_STOP_H

#include "cli/run/run_set.h"

#include <stdint.h>

struct run_options;
struct run_result;

#define STOP_LOOK_MS 2000
#define STOP_KILL_MS 5000

struct stop {
    int by; // The first signal that stops the job; 0: none has come.
    uint64_t look_at; // When the workers are looked at again; UINT64_MAX: never.
    uint64_t kill_at; // When the workers of `deaf` are killed; UINT64_MAX: never.
    struct run_set deaf; // Workers that neither handle nor block the signal.
};

void stop_init(struct stop *stop);
void stop_begin(struct stop *stop, int signal_number);
// Returns the time in clock_now_ms of the next stop_turn; UINT64_MAX: none is needed.
uint64_t stop_due(const struct stop *stop);
// Does what is due, and says on stderr what it does.
void stop_turn(struct stop *stop, const struct run_options *options, struct run_result *result);

#endif
