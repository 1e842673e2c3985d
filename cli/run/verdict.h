// SPDX-License-Identifier: Apache-2.0
//
// The decisions about a run: which rank failed first, when the others are killed, and what a signal
// of the user does. It does no input or output; the caller names the time. The supervisors of one
// host (supervisor.c) and of several (hosts.c) use it. Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_VERDICT_H
#define LOCKSTEP_CLI_RUN_VERDICT_H

#include "cli/run/run.h"

#include <stdbool.h>
#include <stdint.h>

#define VERDICT_NEVER UINT64_MAX

struct verdict {
    uint64_t grace_ms; // set at open, then constant
    struct run_result result;
    uint64_t started_ms; // When the workers were started.
    uint32_t running; // Workers that have started and not ended.
    unsigned interrupts; // How many SIGINT, SIGTERM and SIGHUP were received.
    int interrupted_by; // The first of these signals.
    bool quit; // True once SIGQUIT was received.
    bool orphaned; // True once the launcher is dead.
    uint64_t kill_at; // When the other workers are killed; VERDICT_NEVER until the first failure.
    uint64_t give_up_at; // When unwritten output is dropped; VERDICT_NEVER: not yet.
};

// Allocates the ranks. Returns false with errno. verdict_fini must be called in any case.
bool verdict_init(struct verdict *verdict, uint32_t count, uint64_t grace_ms);
void verdict_fini(struct verdict *verdict);

// Records a signal of the user. Returns the signal that the workers get: the same one, or SIGKILL
// for the second that ends the job.
int verdict_signal(struct verdict *verdict, int signal_number, uint64_t now_ms);

// Records that a rank has ended. after_ms counts from the start of the workers. same_time: no
// failure was known when this end was noticed. end->stopped and end->lost were set before.
void verdict_end(struct verdict *verdict, uint32_t rank, int status, uint64_t after_ms,
                 bool same_time, uint64_t now_ms);

// Marks the ranks that still run as stopped by the supervisor, which kills them now.
void verdict_stop(struct verdict *verdict);

// Returns true once the launcher is dead, or the user has asked twice for the end and some time has
// passed.
bool verdict_given_up(const struct verdict *verdict, uint64_t now_ms);

// Returns the milliseconds until the earlier of kill_at and give_up_at, for poll; -1: none is set.
int verdict_time_left(const struct verdict *verdict, uint64_t now_ms);

// Returns true if the user has ended the job by a signal, so that it is not started again.
bool verdict_signalled(const struct verdict *verdict);

// Returns the wait status of the run: that of the first failed rank, or 0.
int verdict_status(const struct verdict *verdict);

#endif
