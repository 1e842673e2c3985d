// SPDX-License-Identifier: Apache-2.0
//
// The functions of note.c that other files call.

#ifndef WORKER_SESSION_NOTE_H
#define WORKER_SESSION_NOTE_H

#include "base/mutex.h"
#include "protos/limits.h"

#include <stdatomic.h>
#include <stddef.h>

struct lockstep_session;

struct note {
    struct mutex mutex; // A leaf in the lock order.
    char text[LOCKSTEP_FAREWELL_TEXT_BYTES]; // The last failure of a call, with its status.
    atomic_bool noted; // True if text is in force. progress_leave clears it.
};

// Notes the failure of a call after which the session may go on. If the session is closed next, its
// goodbye gives this failure as the reason. Any thread.
void session_note(struct lockstep_session *session, int status, const char *text);
// Copies the reason that a session gives when it is closed: "LOCKSTEP_E_INVALID: ...", or "".
void session_read_note(struct lockstep_session *session, char *text, size_t bytes);

#endif
