// SPDX-License-Identifier: Apache-2.0
//
// The trainer that fault tests run in worker processes: a synthetic model of some megabytes whose
// gradients have a closed form, so that every element of every step can be checked. A script says
// what it does, and where it tells the test that it is there. It uses the public header only. Not a
// test. Runs on the main thread of a process of its own.

#ifndef LOCKSTEP_TESTS_PROCESS_TRAINER_H
#define LOCKSTEP_TESTS_PROCESS_TRAINER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WORLD_MAX 8

// Where a trainer is; the test is told once, at script.place and script.place_step.
enum place {
    PLACE_NOWHERE = 0,
    PLACE_OPENING, // Before lockstep_open.
    PLACE_START, // Before lockstep_start.
    PLACE_LEARNING, // Before lockstep_step_begin of step 1.
    PLACE_STEADY, // Before lockstep_step_begin of another step.
    PLACE_PLAIN, // Before a plain allreduce; after every even step.
    PLACE_OPTIMIZER, // After lockstep_step_end.
    PLACE_START_AGAIN, // After script.starts_after: its module is closed and registered again.
    PLACE_COUNT,
    PLACE_IN_CALL // Before a report of a gradient, after script.place_gradients. Not drawn.
};

// How a trainer waits there for world_release: each in a function of its own, of this name.
enum hold {
    HOLD_NOT = 0, // No hold: the trainer goes on.
    HOLD_READ, // hold_read: in a system call that never returns.
    HOLD_SPIN, // hold_spin: it computes.
    HOLD_SLEEP, // hold_sleep
    HOLD_KERNEL, // hold_kernel: asleep in the kernel, in state D.
    HOLD_FROZEN, // hold_frozen: it makes the file LOCKSTEP_TEST_FROZEN, whose file system is
                 // frozen.
    HOLD_STREAM, // It goes on, and the stream that makes its gradients stands still instead.
};

// The way in which gradients are reduced. Where a field is NULL or zero, the environment decides.
struct way {
    const char *name;
    const char *transport; // LOCKSTEP_TRANSPORT
    const char *algorithm; // LOCKSTEP_ALGORITHM
    bool two_hosts; // The upper half of the ranks says that it is on another host.
    bool registered; // Gradients are in memory that mates can reach.
    bool device; // It has a fake one, which takes all memory for its own.
};

enum ending {
    ENDING_CLOSE = 0,
    ENDING_ABORT, // lockstep_abort, then lockstep_close.
    ENDING_EXIT, // _exit(0) without a word.
};

struct script {
    bool absent; // True if this rank is never started.
    enum place place;
    uint64_t place_step;
    uint32_t place_gradients; // PLACE_IN_CALL: so many of eight were reported, "h" first.
    enum hold hold; // At that place: wait for world_release.
    // Time between lockstep_pause and lockstep_resume at that place; 0: no pause.
    uint64_t pause_ms;
    bool child; // After lockstep_start: fork a process that lives on with all descriptors.
    bool waits; // For its call, before it ends the step.
    bool by_stream; // It ends the step by the stream of its device, and waits for that outside.
    uint32_t halt_timeout_ms; // As in struct lockstep_config.
    uint64_t starts_after; // The step after which it calls lockstep_start again; 0: never.
    uint64_t report_every; // Steps; 0: never.
    uint64_t rest_ms; // After each step.
    uint64_t last_step; // Then comes the ending; 0: when the test says stop, by lockstep_close.
    enum ending ending;
    struct way way;
    uint32_t rounds; // How many sessions, one after the other, each of its own job. 0: one.
    uint32_t open_timeout_ms;
};

enum report_kind {
    REPORT_PLACE = 1, // It is at script.place.
    REPORT_CHILD, // value: the process it has forked.
    REPORT_STEP, // step is done.
    REPORT_FAILED, // A call has returned a failure, at at_us; text is what it said.
    REPORT_DONE, // Everything was done and closed. value: the hash of the state.
};

#define REPORT_CALL_BYTES 24
#define REPORT_TEXT_BYTES 2048

// One datagram of the socket between a worker and the test.
struct report {
    enum report_kind kind;
    int status; // REPORT_FAILED
    int status_again; // Status of the call after that.
    uint64_t at_us; // clock_now_us, which is one clock for all processes.
    uint64_t step; // Begun last.
    uint64_t settled; // Ended well last.
    uint64_t value;
    // REPORT_FAILED, the elements of the gradients handed over in the step:
    uint64_t elements_intact; // This rank's input.
    uint64_t elements_final; // The mean over all ranks.
    uint64_t elements_torn; // Neither.
    char call[REPORT_CALL_BYTES];
    char text[REPORT_TEXT_BYTES];
};

// Between the test and all workers of a world.
struct world_shared {
    atomic_bool stop;
    atomic_uint released; // Bit r: rank r.
};

struct trainer_place {
    uint16_t coordinator_port;
    uint32_t rank;
    uint32_t world_size;
    int socket; // Reports go out, the release comes in.
    int lifeline; // Ends with the test; what the child waits for.
    struct world_shared *shared;
    char job[48];
};

// Returns the exit code of the process. 0: the script was played, or a failure was reported, and
// nothing of the session is left in this process.
int trainer_run(const struct trainer_place *place, const struct script *script);

#endif
