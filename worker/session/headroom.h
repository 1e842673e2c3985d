// SPDX-License-Identifier: Apache-2.0
//
// The check that the limits of this process have room for a session: file descriptors, threads,
// address space, data and the size of files. It is made before gRPC is used for the first time,
// because gRPC aborts the process, or waits without end, when one of these runs out while it
// starts.
//
// Asking proves: descriptors are opened and closed, threads are started and joined, address space
// is mapped and unmapped. Other threads of the trainer may take the room afterwards; nothing
// prevents that. What is asked for is derived in protos/limits.h.

#ifndef WORKER_SESSION_HEADROOM_H
#define WORKER_SESSION_HEADROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;

// Checks that a session with this configuration has room. 0, or LOCKSTEP_E_SYSTEM with the error
// text set, which names the limit as the shell does. Blocks: for a moment, until its threads have
// ended. Any thread.
int headroom_check(const struct config *config);

// True if `count` more descriptors can be had. False: `text` says for what they are needed, how
// many can be had, and which limit is in the way. Any thread.
bool headroom_descriptors(uint32_t count, const char *what, char *text, size_t text_bytes);

#endif
