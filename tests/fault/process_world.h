// SPDX-License-Identifier: Apache-2.0
//
// For tests that kill and stop real processes: a lockstep-coordinator and up to eight worker
// processes, each of which plays a script (process_trainer.h) and reports over a socket of its own.
//
// Workers are forked by the test, which therefore never opens a session itself and has no threads.
// Every wait has a bound; a wait that fails prints what the other ranks did last. world_teardown
// leaves no process behind, and the workers die when the test dies. One test at a time, on the
// test's thread.

#ifndef LOCKSTEP_TESTS_PROCESS_WORLD_H
#define LOCKSTEP_TESTS_PROCESS_WORLD_H

#include "tests/fault/process_trainer.h"

#include <stddef.h>
#include <sys/types.h>

// ---- Bounds -------------------------------------------------------------------------------------

// The same as test_bound_ms.
uint64_t slow_ms(uint64_t ms);
#define LOST_MS slow_ms(1000) // From a death to the last survivor's error.
#define WAIT_MS slow_ms(20000) // Bound of every wait that has no bound of its own.

// ---- Processes ----------------------------------------------------------------------------------

// Every fork of a test begins with this function. It is like fork, and the child dies with the
// test.
pid_t process_fork(void);
// Waits for the end of a process; false: it did not end in time.
bool process_reap(pid_t pid, uint64_t ms, int *status);

// ---- The coordinator ----------------------------------------------------------------------------

struct coordinator_process {
    pid_t pid; // 0: none.
    // 0: coordinator_start finds a free one, which stays the coordinator's when it is started
    // again.
    uint16_t port;
    uint16_t http_port; // 0: the HTTP side is off, which is the default.
    // Where workers look for it, if that is not port alone; coordinator_start leaves it as it is.
    const char *list;
};

// Returns when the coordinator is ready. arguments: NULL, or further arguments up to a NULL.
void coordinator_start(struct coordinator_process *coordinator, const char *const *arguments);
void coordinator_signal(struct coordinator_process *coordinator, int signal_number);
// Waits for the end of the coordinator and returns the status of waitpid.
int coordinator_wait(struct coordinator_process *coordinator);
void coordinator_stop(struct coordinator_process *coordinator); // SIGTERM; expects code 0.

// ---- The workers --------------------------------------------------------------------------------

struct world_worker {
    pid_t pid; // 0: none, or reaped.
    pid_t child; // The process that the worker has forked; 0: none.
    int socket; // -1: none.
    bool killed;
    struct report last; // The last report, shown when the test fails.
};

struct world {
    uint32_t size;
    struct world_worker workers[WORLD_MAX];
    struct world_shared *shared;
    int lifeline; // When the test closes it, the workers' children end.
};

// All ways in which gradients are reduced.
enum {
    WORLD_WAYS = 7
};
extern const struct way world_ways[WORLD_WAYS];

// Starts `size` workers of this job. scripts: one for each rank.
void world_start(struct world *world, const struct coordinator_process *coordinator,
                 const char *job, uint32_t size, const struct script *scripts);

// Waits for a rank's next report of this kind, and skips reports of steps and children. The test
// fails if a report of another kind comes, the process ends, or WAIT_MS is over.
void world_expect(struct world *world, uint32_t rank, enum report_kind kind, struct report *report);
// Waits for a rank's next report that is not of a step or a child. Returns false if none comes
// within ms. A negative ms means WAIT_MS.
bool world_next(struct world *world, uint32_t rank, int64_t ms, struct report *report);
// Waits until the rank has reported this step or a later one.
void world_expect_step(struct world *world, uint32_t rank, uint64_t step);

// Waits until all ranks have played their scripts, expects that they hold equal parameters, and
// joins them. Returns the state hash.
uint64_t world_expect_done(struct world *world);

void world_release(struct world *world, uint32_t rank); // Ends the rank's script.hold.
// Sends SIGKILL. Returns the time of clock_now_us just before.
uint64_t world_kill(struct world *world, uint32_t rank);
void world_signal(struct world *world, uint32_t rank, int signal_number);
void world_stop(struct world *world); // Training ends at the same step on all ranks.

// Ends the workers' children; every worker that was not killed has to end with code 0.
void world_join(struct world *world);
// Kills and reaps everything that is left. For the teardown of a test that failed.
void world_teardown(struct world *world, struct coordinator_process *coordinator);

// Sleeps for us microseconds. For choosing a random instant or holding a process stopped, not for
// waiting until something has happened.
void pause_us(uint64_t us);

#endif
