// SPDX-License-Identifier: Apache-2.0
//
// The functions of note.c that other files call.

#ifndef WORKER_SESSION_NOTE_H
#define WORKER_SESSION_NOTE_H

#include <stddef.h>

struct lockstep_session;

// A call has failed, which the session may survive: what it said is the reason when the session is
// closed next. Any thread.
void session_note(struct lockstep_session *session, int status, const char *text);
// What a session that is closed gives as its reason: "LOCKSTEP_E_INVALID: ...", or "".
void session_read_note(struct lockstep_session *session, char *text, size_t bytes);

#endif
