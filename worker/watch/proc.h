// SPDX-License-Identifier: Apache-2.0
//
// What the kernel says of this process and its neighbours: whether a process runs, since when it
// exists, whether a debugger is attached to it, whether its control group throttles it. Texts of
// /proc in, facts out; needs no rights. What cannot be read is not known. Any thread; allocates
// nothing.

#ifndef WORKER_WATCH_PROC_H
#define WORKER_WATCH_PROC_H

#include <stdbool.h>
#include <stdint.h>

#define WATCH_PROC_DIRECTORY "/proc" // But in tests.
#define WATCH_CGROUP_DIRECTORY "/sys/fs/cgroup"

struct watch_process {
    char state; // The letter of /proc/PID/stat.
    uint64_t started; // In clock ticks since the host's start: with the pid it names one process.
};

// pid: a number as text, or "self". False: there is no such process, or it cannot be read.
bool watch_proc_process(const char *proc, const char *pid, struct watch_process *process);
// 0: not known.
uint64_t watch_proc_started(const char *proc, const char *pid);
// The process id of the debugger that is attached to a process; 0: none, or not known. pid: a
// number as text, or "self".
uint32_t watch_proc_tracer(const char *proc, const char *pid);
// How often the control group of this process was throttled, since it exists; 0: never, or not
// known. Version 2 of control groups, or version 1.
uint64_t watch_proc_throttled(const char *proc, const char *cgroup);

#endif
