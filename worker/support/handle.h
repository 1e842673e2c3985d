// SPDX-License-Identifier: Apache-2.0
//
// Which pointers are live handles, so that a NULL, stale or foreign pointer given to the public API
// is an error and never a crash. There is one registry for the process. It knows addresses only: it
// never reads the memory behind them and does not keep it alive, so a trainer that closes a handle
// while another thread uses it still has a race. If the memory of a closed handle was given to a
// newer handle of the same kind, the stale pointer is that newer handle.
//
// handle_is is lock-free and for any thread, also in a forked child. The others take a mutex that
// nothing else is locked under, and are not for a forked child, which may have inherited it locked.
// Allocates nothing.

#ifndef WORKER_SUPPORT_HANDLE_H
#define WORKER_SUPPORT_HANDLE_H

#include <stdbool.h>

enum handle_kind {
    HANDLE_SESSION = 1,
    HANDLE_MODULE = 2,
    HANDLE_CALL = 3,
    HANDLE_WORK = 4,
};

// Registers a handle, before any other code has it. The address is a multiple of 8, as malloc's
// are, and is not live already. 0, or -1: LOCKSTEP_MAX_HANDLES are live.
int handle_add(enum handle_kind kind, const void *handle);

// Removes a handle, before its memory is freed. Does nothing if the handle is not live.
void handle_remove(const void *handle);

// True if this is a live handle of this kind. Any pointer is allowed.
bool handle_is(enum handle_kind kind, const void *handle);

#endif
