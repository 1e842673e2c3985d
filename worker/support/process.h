// SPDX-License-Identifier: Apache-2.0
//
// Other processes of this host, held by a descriptor (a pidfd) that becomes readable when the
// process is gone: then no thread of it has its memory any more. Any thread; allocates nothing.

#ifndef WORKER_SUPPORT_PROCESS_H
#define WORKER_SUPPORT_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

// When a process started, and in which namespace of pids. It tells the processes of a host apart
// that have the same pid: those of two containers often start in the same clock tick. 0: there is
// no such process in this namespace.
uint64_t process_started(uint32_t pid);
// The same, from the clock ticks in the process's /proc/PID/stat; 0 for 0.
uint64_t process_started_at(uint64_t ticks);

// Returns a descriptor of the process with this pid and process_started, which the process itself
// says (struct up_hello). -1: there is no such process in this namespace of pids, the kernel has no
// pidfds, or descriptors are missing.
int process_open(uint32_t pid, uint64_t started);
// True if the process of a descriptor is gone. False for -1.
bool process_is_gone(int descriptor);

#endif
