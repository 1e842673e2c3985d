// SPDX-License-Identifier: Apache-2.0
//
// For tests that kill and stop real processes: a lockstep-coordinator and up to eight worker
// processes, each of which plays a script (process_trainer.h) and reports over a socket of its own.
//
// Workers are forked by the test, which therefore never opens a session itself and has no threads.
// Every wait has a bound; a wait that fails says what the others were doing. In every case
// world_teardown leaves no process behind, and the workers die with the test. One test at a time,
// the test's thread.

#ifndef LOCKSTEP_TESTS_PROCESS_WORLD_H
#define LOCKSTEP_TESTS_PROCESS_WORLD_H

#include "tests/fault/process_trainer.h"

#include <stddef.h>
#include <sys/types.h>

// ---- Bounds -------------------------------------------------------------------------------------

// As test_bound_ms.
uint64_t slow_ms(uint64_t ms);
#define LOST_MS slow_ms(1000) // From a death to the last survivor's error.
#define WAIT_MS slow_ms(20000) // For what has no bound of its own.

// ---- Processes ----------------------------------------------------------------------------------

// Every fork of a test begins with this function. It is like fork, and the child dies with the
// test.
pid_t process_fork(void);
// Waits for the end of a process; false: it did not end in time.
bool process_reap(pid_t pid, uint64_t ms, int *status);

// ---- The coordinator ----------------------------------------------------------------------------

struct coordinator_process {
    pid_t pid; // 0: none.
    uint16_t port;
    uint16_t http_port; // 0: off, as it is unless an argument says otherwise.
};

// arguments: further ones up to a NULL, or NULL. Returns when it is ready.
void coordinator_start(struct coordinator_process *coordinator, const char *const *arguments);
void coordinator_signal(struct coordinator_process *coordinator, int signal_number);
// Waits for its end and returns the status of waitpid.
int coordinator_wait(struct coordinator_process *coordinator);
void coordinator_stop(struct coordinator_process *coordinator); // SIGTERM; expects code 0.

// ---- The workers --------------------------------------------------------------------------------

struct world_worker {
    pid_t pid; // 0: none, or reaped.
    pid_t child; // The process that it has forked; 0: none.
    int socket; // -1: none.
    bool killed;
    struct report last; // The last report, for messages.
};

struct world {
    uint32_t size;
    struct world_worker workers[WORLD_MAX];
    struct world_shared *shared;
    int lifeline; // Closed: the workers' children end.
};

// Starts size workers of this job. scripts[size].
void world_start(struct world *world, const struct coordinator_process *coordinator,
                 const char *job, uint32_t size, const struct script *scripts);

// The next report of a rank of this kind; reports of steps and children are passed over. Another
// kind, the end of the process or of the bound fails the test.
void world_expect(struct world *world, uint32_t rank, enum report_kind kind, struct report *report);
// The next report that is not of a step or a child; false: none within ms. Negative ms: WAIT_MS.
bool world_next(struct world *world, uint32_t rank, int64_t ms, struct report *report);
// Waits until that rank has reported a step that is not before this one.
void world_expect_step(struct world *world, uint32_t rank, uint64_t step);

void world_release(struct world *world, uint32_t rank); // From script.hold.
uint64_t world_kill(struct world *world, uint32_t rank); // SIGKILL. Returns clock_now_us before.
void world_signal(struct world *world, uint32_t rank, int signal_number);
void world_stop(struct world *world); // Training ends at the same step on all ranks.

// Ends the workers' children; every worker that was not killed has to end with code 0.
void world_join(struct world *world);
// Kills and reaps everything that is left. For the teardown of a test that failed.
void world_teardown(struct world *world, struct coordinator_process *coordinator);

// Sleeps so long. Only to choose a random instant or to hold a process stopped: no test waits for
// anything in this way.
void pause_us(uint64_t us);

#endif
