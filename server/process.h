// SPDX-License-Identifier: Apache-2.0
//
// The daemon as a process: signals, its parent, the port file. It knows nothing of jobs or streams.
// Main thread, except for the signal thread.

#ifndef LOCKSTEP_SERVER_PROCESS_H
#define LOCKSTEP_SERVER_PROCESS_H

#include "base/log.h"
#include "base/thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Blocks the signals of struct process_signals. Main thread, before any other thread starts, so
// that all threads inherit the mask.
void process_block_signals(void);

// Waits for SIGTERM and SIGINT on a thread of its own. The first one calls drain; a second one ends
// the process at once with 128 + its number. If a parent is watched, its end also calls drain,
// unless drain was called already. With orphaned its end calls orphaned instead.
//
// While a parent is watched, only the parent's signals and Ctrl-C count: Slurm and other
// supervisors send SIGTERM to all processes of a job, whose workers may need the coordinator to
// save.
struct process_signals {
    // set at start, then constant
    void (*drain)(void *context, const char *why);
    void (*orphaned)(void *context); // NULL: not given.
    void *context;
    struct log *log; // Borrowed until stop.
    pid_t parent; // 0: not watched.
    struct thread thread;
    // atomic
    atomic_bool stopping;
    // signal thread only
    bool draining;
};

// Starts the signal thread, which calls drain. parent: see process_watch_parent. Returns 0 or an
// errno value.
int process_signals_start(struct process_signals *signals);
void process_signals_stop(struct process_signals *signals); // Main thread; blocks shortly.

// Asks the kernel for a signal when the parent ends, and ignores SIGHUP, SIGQUIT and SIGUSR2, which
// would end this process. parent 0: the current parent. Returns the parent's process id, or -1 if
// the parent has ended already.
pid_t process_watch_parent(pid_t parent);

// Writes "grpc=PORT http=PORT\n" to a temporary file and renames it, so that a reader sees either
// the whole file or none. Returns 0, or -1 with a sentence in error.
int process_write_ports(const char *path, uint16_t grpc, uint16_t http, char *error,
                        size_t error_bytes);

#endif
