// SPDX-License-Identifier: Apache-2.0
//
// The internal header of libnccl-fake.so. One mutex guards all of its state. Operations run on the
// threads of their streams, and wait for other ranks without the mutex. Tests use fake_gpu.h
// instead.
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
    COMM_TASKS = 1024, // Tasks in flight on one communicator; a launch waits for a free one.
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
    bool stands; // True while the operation runs, or waits for its turn or for other ranks.
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
    bool alive; // True while the communicator has a handle.
    // Number of users: the communicator's thread, and its tasks in flight. A communicator without
    // users and without a handle is free.
    uint32_t holders;
    enum comm_step step; // The present step of the communicator's thread.
    int error; // The first error; 0: none.
    uint64_t unsaid; // How often ncclCommGetAsyncError has hidden the error.
    bool aborted; // True if its own rank aborted it.
    bool ending; // True if the communicator's thread must end.
    uint32_t registrations;
    uint64_t launched; // Position of the next operation to be launched.
    uint64_t turn; // Position of the operation that may run now.
    uint32_t running; // Operations that run now.
    struct nccl_task *tasks; // [COMM_TASKS]
    struct nccl_task *group[GROUP_TASKS]; // Tasks that the communicator's thread has to launch.
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
    // guarded by mutex
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

// Locks the mutex, counts the call, and applies FAKE_NCCL_FAIL. rank -1: the call names no rank.
int nccl_enter(const char *name, int rank);
int nccl_leave(int result);
void nccl_complain_locked(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct comm *comm_of_locked(const void *handle);
// Returns 0 if the communicator can be used now, else the error that the function `name` returns.
int comm_ready_locked(const char *name, const struct comm *comm);
// Sets the communicator's error if it has none, and wakes all waiting threads.
void comm_fail_locked(struct comm *comm, int error);
void comm_release_locked(struct comm *comm); // Removes one holder.

// True if the communicator is aborted: by its own rank, or by another rank under
// FAKE_NCCL_ABORT=all.
bool comm_given_up(struct comm *comm);
// Waits until all ranks of the communicator have called it as often as this one. False: the
// communicator is aborted, or the device is lost.
bool comm_meet(struct comm *comm);

const char *kind_name(int kind);
// Queues tasks in their streams. Runs on the communicator's thread, or on the caller's.
void tasks_launch(struct nccl_task **tasks, uint32_t count);

// Waits until the init of the communicator has ended; returns the communicator's error.
int comm_init_wait_locked(struct comm *comm);
// True if the calling thread is in a group, whose end then waits for the communicator's init
// (nccl_group.c).
bool group_defers_init(struct comm *comm);

#endif
