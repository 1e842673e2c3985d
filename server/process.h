// SPDX-License-Identifier: Apache-2.0
//
// What a daemon owes its system: descriptors, signals, its parent, the port file. It knows nothing
// of jobs or streams.

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

// Sets the soft limit of open files to the hard one, but to no more than `most`: who connects and
// says nothing costs memory until his time is over, and this bounds how many do so at once. What is
// open above it stays open. Returns what it is then, 0 if unknown.
uint64_t process_limit_descriptors(uint64_t most);

// Main thread, before any other thread: the signals of struct process_signals are blocked in all.
void process_block_signals(void);

// Waits for SIGTERM and SIGINT on a thread of its own. The first one calls drain; a second one ends
// the process at once with 128 + its number. With a parent to watch, the parent's end counts as a
// signal.
struct process_signals {
    // set at start, then constant
    void (*drain)(void *context, const char *why);
    void *context;
    struct log *log; // Borrowed until stop.
    pid_t parent; // 0: not watched.
    struct thread thread;
    // atomic
    atomic_bool stopping;
    // signal thread only
    bool draining;
};

// drain runs on the signal thread. parent: see process_watch_parent. Returns 0 or an errno value.
int process_signals_start(struct process_signals *signals);
void process_signals_stop(struct process_signals *signals); // Main thread; blocks shortly.

// Asks the kernel to tell when the parent ends. parent 0: whoever it is now. Returns its id, or -1:
// it has ended already.
pid_t process_watch_parent(pid_t parent);

// Writes "grpc=PORT http=PORT\n" under another name and renames it, so that a reader sees all or
// nothing. Returns 0, or -1 with a sentence in error.
int process_write_ports(const char *path, uint16_t grpc, uint16_t http, char *error,
                        size_t error_bytes);

#define PROCESS_TOKEN_BYTES 257 // With its NUL.

// The first line of a file, which must be 16 to 256 visible characters. Returns 0, or -1 with a
// sentence in error.
int process_read_token(const char *path, char *token, size_t token_bytes, char *error,
                       size_t error_bytes);

#endif
