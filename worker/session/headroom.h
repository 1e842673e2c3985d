// SPDX-License-Identifier: Apache-2.0
//
// The check that the limits of this process have room for a session: file descriptors, threads,
// address space, data and the size of files. It runs before gRPC is used for the first time,
// because gRPC aborts the process, or waits without end, when a limit is reached while gRPC starts.
//
// The check uses what it asks for: it opens and closes descriptors, starts and joins threads, maps
// and unmaps address space. Nothing prevents other threads of the trainer from taking the room
// afterwards. protos/limits.h derives the amounts.

#ifndef WORKER_SESSION_HEADROOM_H
#define WORKER_SESSION_HEADROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;

// Checks that a session with this configuration has room. 0, or LOCKSTEP_E_SYSTEM; the error text
// then names the limit as the shell does (ulimit -n). Blocks for a moment, until the threads that
// it started have ended. Any thread.
int headroom_check(const struct config *config);

// True if this process can open `count` more descriptors. False: `text` says what needs them, how
// many the process can open, and which limit is reached, or that the system refuses more. Any
// thread.
bool headroom_descriptors(uint32_t count, const char *what, char *text, size_t text_bytes);

#endif
