// SPDX-License-Identifier: Apache-2.0
//
// The trainer that fault tests run in worker processes: a synthetic model of some megabytes whose
// gradients have a closed form, so that every element of every step can be checked. A script says
// what the trainer does, and at which place it sends REPORT_PLACE to the test. The trainer uses the
// public header only. Not a test. Runs on the main thread of a process of its own.

#ifndef LOCKSTEP_TESTS_PROCESS_TRAINER_H
#define LOCKSTEP_TESTS_PROCESS_TRAINER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WORLD_MAX 8

// Places in a trainer's program. A trainer sends REPORT_PLACE once, at script.place of step
// script.place_step.
enum stand_place {
    PLACE_NOWHERE = 0,
    PLACE_OPENING, // Before lockstep_open.
    PLACE_START, // Before lockstep_start.
    PLACE_LEARNING, // Before lockstep_step_begin of step 1.
    PLACE_STEADY, // Before lockstep_step_begin of another step.
    PLACE_PLAIN, // Before a plain allreduce; after every even step.
    PLACE_OPTIMIZER, // After lockstep_step_end.
    PLACE_START_AGAIN, // After script.starts_after: its module is closed and registered again.
    PLACE_COUNT,
    // Inside a call, after script.place_gradients gradients were reported. Tests that draw a place
    // do not draw this one.
    PLACE_IN_CALL
};

// How a trainer waits at script.place for world_release. Each way has a function of that name in
// the trainer, which stacks show.
enum hold {
    HOLD_NOT = 0, // No hold: the trainer goes on.
    HOLD_READ, // hold_read: in a system call that never returns.
    HOLD_SPIN, // hold_spin: the trainer computes.
    HOLD_SLEEP, // hold_sleep: the trainer calls usleep again and again.
    HOLD_KERNEL, // hold_kernel: asleep in the kernel, in state D.
    // hold_frozen: the trainer creates the file LOCKSTEP_TEST_FROZEN, on a frozen file system.
    HOLD_FROZEN,
    HOLD_LOAD, // hold_load: the trainer loads a library, and holds the loader's lock.
    HOLD_STREAM, // The trainer goes on; the stream that makes its gradients stands still instead.
};

// The way in which gradients are reduced. Where a field is NULL or zero, the environment decides.
struct way {
    const char *name;
    const char *transport; // LOCKSTEP_TRANSPORT
    const char *algorithm; // LOCKSTEP_ALGORITHM
    bool two_hosts; // The upper half of the ranks says that it is on another host.
    bool registered; // True if gradients are in registered memory, which mates can map.
    bool device; // True if the trainer has a fake device, which treats all memory as its own.
};

enum ending {
    ENDING_CLOSE = 0,
    ENDING_ABORT, // lockstep_abort, then lockstep_close.
    ENDING_AT_ONCE, // lockstep_close after script.last_step; its streams may still work.
    ENDING_EXIT, // _exit(0) without closing the session.
};

struct script {
    bool absent; // True if this rank is never started.
    enum stand_place place;
    uint64_t place_step;
    // For PLACE_IN_CALL: number of gradients reported before the place, of eight, "h" first.
    uint32_t place_gradients;
    bool
        forwards; // True if gradients are reported in another order than by other ranks: "a" first.
    enum hold hold; // How the trainer waits at `place` for world_release.
    // Time between lockstep_pause and lockstep_resume at `place`; 0: no pause.
    uint64_t pause_ms;
    // True if the trainer forks a child after lockstep_start, which keeps all descriptors open.
    bool child;
    bool waits; // True if each step waits for its call before lockstep_step_end.
    // True if the step ends on the stream of the device. The trainer then waits for the stream
    // outside the library.
    bool by_stream;
    uint32_t halt_timeout_ms; // As in struct lockstep_config.
    uint64_t starts_after; // The step after which the trainer starts again; 0: never.
    uint64_t report_every; // Number of steps between two REPORT_STEP; 0: none is sent.
    uint64_t rest_ms; // Time that the trainer sleeps after each step.
    // The step after which `ending` follows. 0: the trainer runs until world_stop, then closes.
    uint64_t last_step;
    enum ending ending;
    struct way way;
    uint32_t rounds; // Number of sessions, one after the other, each of its own job; 0: one.
    uint32_t open_timeout_ms;
    uint32_t away_timeout_ms; // LOCKSTEP_AWAY_TIMEOUT_MS; 0: not set.
    // How long descriptors may be left after the last session was closed, on any machine; 0: 5 s,
    // and longer on slow machines.
    uint32_t leaves_ms;
    bool survives; // True: on_failure is continue, and there are no plain collectives.
};

enum report_kind {
    REPORT_PLACE = 1, // The trainer is at script.place.
    REPORT_CHILD, // value: process id of the forked child.
    REPORT_STEP, // The trainer has ended the step `step`.
    REPORT_FAILED, // `call` returned a failure at at_us; text: its error text.
    REPORT_DONE, // The script is done and the session closed. value: the state hash.
};

#define REPORT_CALL_BYTES 24
#define REPORT_TEXT_BYTES 2048

// One datagram of the socket between a worker and the test.
struct report {
    enum report_kind kind;
    int status; // REPORT_FAILED
    int status_again; // Status of the call after the one that failed.
    uint64_t at_us; // clock_now_us, which is one clock for all processes.
    uint64_t step; // The last step that was begun.
    uint64_t settled; // The last step that ended successfully.
    uint64_t value;
    // REPORT_FAILED: numbers of elements of the gradients handed over in the step, by their value.
    uint64_t elements_intact; // Elements that hold this rank's input.
    uint64_t elements_final; // Elements that hold the mean over all ranks.
    uint64_t elements_torn; // Elements that hold neither.
    char call[REPORT_CALL_BYTES];
    char text[REPORT_TEXT_BYTES];
};

// Memory shared by the test and all workers of a world.
struct world_shared {
    atomic_bool stop;
    atomic_uint released; // Set of ranks that world_release has released.
};

struct trainer_place {
    char coordinator[160]; // Its address, or a list of addresses.
    uint32_t rank;
    uint32_t world_size;
    int socket; // The trainer sends reports on it, and receives the byte of world_release.
    int lifeline; // End of file when the test ends. The forked child waits for it.
    struct world_shared *shared;
    char job[48];
};

// Returns the exit code of the process. 0: the script was played, or a failure was reported, and
// nothing of the session is left in this process.
int trainer_run(const struct trainer_place *place, const struct script *script);

#endif
