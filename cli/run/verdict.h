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
    // set at open, then constant
    uint64_t grace_ms;
    uint32_t needed; // Ranks that have to end with status 0; 0: another launcher decides.

    struct run_result result;
    uint32_t failed; // Ranks that have ended with another status.
    int stopped_status; // The wait status of the first rank that failed after a signal; 0: none.
    uint64_t started_ms; // When the workers were started.
    uint32_t running; // Workers that have started and not ended.
    bool halted; // True once the coordinator has ended the job because of a rank of this launcher.
    unsigned interrupts; // How many SIGINT, SIGTERM and SIGHUP counted: 0, 1 or 2.
    int interrupted_by; // The first of these signals.
    uint64_t interrupted_at; // When it came.
    bool quit; // True once SIGQUIT was received.
    bool orphaned; // True once the launcher is dead.
    // When the other workers are killed; VERDICT_NEVER until a failure ends the job.
    uint64_t kill_at;
    uint64_t give_up_at; // When unwritten output is dropped; VERDICT_NEVER: not yet.
};

// Allocates the ranks of this launcher. Returns false with errno. verdict_fini must be called in
// any case.
bool verdict_init(struct verdict *verdict, const struct run_options *options);
void verdict_fini(struct verdict *verdict);

// Records a signal of the user, or SIGKILL from the launcher's host. Returns the signal that the
// workers get: the same one; SIGKILL for the second that ends the job; or 0, none, for a further
// one that comes less than a second after the first. Such a one is another copy of the first: Slurm
// and timeout(1) send several.
int verdict_signal(struct verdict *verdict, int signal_number, uint64_t now_ms);

// Records that a rank has ended, at at_ms. same_time: no failure was known when this end was
// noticed. end->stopped and end->lost were set before.
void verdict_end(struct verdict *verdict, uint32_t rank, int status, uint64_t at_ms, bool same_time,
                 uint64_t now_ms);

// Records that the coordinator ended the job because of this rank. Its end, if it is a failure, is
// then the cause, also if it is noticed after the ends of others. result.count or more: no rank of
// this launcher, and nothing is recorded. With --survive the rank is not recorded after a failure,
// because ranks may have other numbers from then on.
void verdict_accuse(struct verdict *verdict, uint32_t rank);

// Sets result.absent: a rank that ended with status 0 and had not opened a session, after another
// one had.
void verdict_note_absent(struct verdict *verdict);

// Marks the ranks that still run as stopped by the supervisor, which kills them now.
void verdict_stop(struct verdict *verdict);

// Returns true once the launcher is dead, or the user has asked twice for the end and some time has
// passed.
bool verdict_given_up(const struct verdict *verdict, uint64_t now_ms);

// Returns the milliseconds until the earlier of kill_at and give_up_at, for poll; -1: none is set.
int verdict_time_left(const struct verdict *verdict, uint64_t now_ms);

// Returns true if the user has ended the job by a signal, so that it is not started again.
bool verdict_signalled(const struct verdict *verdict);

// Returns the exit status of a run that ends before all its workers run, because the launcher is
// dead or the user has ended the job by a signal; 0: neither.
int verdict_stopped_early(const struct verdict *verdict);

// Returns true if so many ranks have failed that the run fails, whatever the others do.
bool verdict_doomed(const struct verdict *verdict);

// Returns the wait status of the run: 0 if enough ranks have ended with it, else that of the first
// failed rank. If the user has stopped the job, failures before the signal that were few enough do
// not count.
int verdict_status(const struct verdict *verdict);

#endif
