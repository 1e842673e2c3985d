// SPDX-License-Identifier: Apache-2.0
//
// The registry of live handles. With it the public API returns an error for a NULL, stale or
// foreign pointer, and never crashes. There is one registry for the process. The registry stores
// only addresses: it never reads the memory of a handle and does not keep a handle alive. So a
// trainer that closes a handle while another thread uses it still has a race. If the memory of a
// closed handle is reused for a newer handle of the same kind, the stale pointer counts as the
// newer handle.
//
// handle_is is lock-free and for any thread, also in a forked child. The other functions take a
// mutex, under which no other lock is taken. They are not for a forked child, because the child may
// have inherited the mutex locked. No function allocates.

#ifndef WORKER_SUPPORT_HANDLE_H
#define WORKER_SUPPORT_HANDLE_H

#include <stdbool.h>

enum handle_kind {
    HANDLE_SESSION = 1,
    HANDLE_MODULE = 2,
    HANDLE_CALL = 3,
    HANDLE_WORK = 4,
    HANDLE_GROUP = 5,
};

// Registers a handle, before any other code has it. The address must be a multiple of 8, as
// malloc's addresses are, and must not be live already. Returns 0; -1: LOCKSTEP_MAX_HANDLES handles
// are live.
int handle_add(enum handle_kind kind, const void *handle);

// Removes a handle, before its memory is freed. Does nothing if the handle is not live.
void handle_remove(const void *handle);

// True if this is a live handle of this kind. Any pointer is allowed.
bool handle_is(enum handle_kind kind, const void *handle);

#endif
