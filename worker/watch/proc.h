// SPDX-License-Identifier: Apache-2.0
//
// Facts that the kernel reports about this process and its mates: the state of a process, its start
// time, whether a debugger is attached to it, and whether its control group throttles it. The
// functions read texts of /proc and need no privileges. A fact that cannot be read counts as not
// known. Any thread; allocates nothing.

#ifndef WORKER_WATCH_PROC_H
#define WORKER_WATCH_PROC_H

#include <stdbool.h>
#include <stdint.h>

#define WATCH_PROC_DIRECTORY "/proc" // The directory in production; tests use another one.
#define WATCH_CGROUP_DIRECTORY "/sys/fs/cgroup"

struct watch_process {
    // The state letter of /proc/PID/stat. If the main thread has ended and others go on: that of
    // another thread.
    char state;
    // Start time in clock ticks since the host's start. The pid and the start time identify a
    // process.
    uint64_t started;
};

// Reads a process. pid: a number as text, or "self". Returns false if the process does not exist or
// cannot be read.
bool watch_proc_process(const char *proc, const char *pid, struct watch_process *process);
// Returns the process id of the debugger that is attached to a process; 0: none, or not known. pid:
// a number as text, or "self".
uint32_t watch_proc_tracer(const char *proc, const char *pid);
// Returns how many times the control group of this process was throttled since the group was made;
// 0: never, or not known. Works with version 1 and version 2 of control groups.
uint64_t watch_proc_throttled(const char *proc, const char *cgroup);

#endif
