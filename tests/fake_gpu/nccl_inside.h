// SPDX-License-Identifier: Apache-2.0
//
// The inside of libnccl-fake.so: what its files share. One mutex guards everything; operations meet
// the other ranks' without it, on the threads of their streams. Not for tests: they have
// fake_gpu.h.
#ifndef TESTS_FAKE_GPU_NCCL_INSIDE_H
#define TESTS_FAKE_GPU_NCCL_INSIDE_H

#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "tests/fake_gpu/fake_gpu.h"
#include "tests/fake_gpu/nccl_segment.h"
#include "tests/fake_gpu/nccl_sum.h"
#include "tests/fake_gpu/settings.h"

enum {
    COMMS_MAX = 256,
    COMM_TASKS = 1024, // Tasks that are launched and not done; a launch waits for room.
    GROUP_TASKS = 256,
    NCCL_CALL_NAMES = 24,
    GARBAGE = 0xDB, // Fills results of aborted operations.
};

enum nccl_kind {
    KIND_ALL_REDUCE,
    KIND_REDUCE_SCATTER,
    KIND_ALL_GATHER,
    KIND_BROADCAST
};

struct nccl_task {
    struct comm *comm;
    const void *in;
    void *out;
    void *stream;
    struct segment_call call;
    bool used;
    bool stands; // It is with the other ranks, or waits for them.
};

enum comm_step {
    STEP_INIT,
    STEP_IDLE,
    STEP_LAUNCH,
    STEP_FINALIZE
};

struct comm {
    // set at init, then constant
    uint32_t index, life;
    int rank;
    int ranks;
    int device;
    bool blocking;
    struct nccl_unique_id id;
    struct segment *segment; // Set by its thread in STEP_INIT; NULL before.
    // guarded by mutex
    bool alive; // There is a handle.
    uint32_t holders; // Its thread, and operations. Without any and without a handle it is free.
    enum comm_step step; // The present step of its thread.
    int error; // Result of ncclCommGetAsyncError, once it is not 0.
    uint64_t unsaid; // How often it has not said so.
    bool aborted; // True if its own rank aborted it.
    bool ending; // True if its thread shall end.
    uint32_t registrations;
    uint64_t launched; // Positions below this were given out,
    uint64_t turn; // and the one that may run is this.
    uint32_t running; // Operations that run now.
    struct nccl_task *tasks; // [COMM_TASKS]
    struct nccl_task *group[GROUP_TASKS]; // For its thread to launch.
    uint32_t group_count;
    struct thread thread;
};

struct nccl_weather {
    int version;
    uint64_t launch_us;
    bool abort_own;
    bool abort_hangs;
    uint64_t late_errors;
    bool verbose;
    struct faults faults;
};

struct nccl_world {
    struct mutex mutex;
    struct cond changed;
    // all of it guarded by mutex
    struct nccl_weather weather;
    struct comm *comms[COMMS_MAX];
    struct {
        const char *name;
        uint64_t calls;
    } calls[NCCL_CALL_NAMES];
    char complaint[300];
};

extern struct nccl_world world;

#define EXPORTED __attribute__((visibility("default")))

// Counts the call and lets faults strike; takes the mutex. rank -1: of nobody in particular.
int nccl_enter(const char *name, int rank);
int nccl_leave(int result);
void nccl_complain_locked(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct comm *comm_of_locked(const void *handle);
// The answer of a communicator's function: 0, or the reason why the communicator cannot be used
// now.
int comm_ready_locked(const char *name, const struct comm *comm);
// Its error and its end are seen by all who wait.
void comm_fail_locked(struct comm *comm, int error);
void comm_release_locked(struct comm *comm); // One holder less.

// Everybody is to leave: its own rank aborted, or another one did and that reaches us.
bool comm_given_up(struct comm *comm);
// Waits for the other ranks in a segment; false: given up, or the device is lost.
bool comm_meet(struct comm *comm);

const char *kind_name(int kind);
// On the communicator's thread, or on the caller's: puts operations into their streams.
void tasks_launch(struct nccl_task **tasks, uint32_t count);

// Waits until it has met the others; its error.
int comm_init_wait_locked(struct comm *comm);
// The calling thread is in a group, at whose end it waits for this one (nccl_group.c).
bool group_defers_init(struct comm *comm);

#endif
