// SPDX-License-Identifier: Apache-2.0
//
// Other processes of this host, held by a descriptor (a pidfd) that becomes readable when the
// process is gone: then no thread of it has its memory any more. Any thread; allocates nothing.

#ifndef WORKER_SUPPORT_PROCESS_H
#define WORKER_SUPPORT_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

// Returns a descriptor of the process with this pid that started at this time (clock ticks since
// the host booted, as in struct up_hello). -1: there is no such process in this namespace of pids,
// the kernel has no pidfds, or descriptors are missing.
int process_open(uint32_t pid, uint64_t started);
// True if the process of a descriptor is gone. False for -1.
bool process_is_gone(int descriptor);

#endif
