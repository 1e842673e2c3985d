// SPDX-License-Identifier: Apache-2.0
//
// The status of a call and its error text. A function returns the status; the text is kept for the
// calling thread until lockstep_error_text() reads it. Any thread.

#ifndef WORKER_SUPPORT_ERROR_H
#define WORKER_SUPPORT_ERROR_H

#include "protos/types.h"

#include <lockstep/lockstep.h>

// Sets this thread's error text and returns status, so that a function can return the result of
// this call.
int error_set(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// From now on failures of this thread's calls are noted in this session, if it is open. The
// session's goodbye gives the noted failure as the reason. NULL: failures are noted in no session.
void error_of(struct lockstep_session *session);
// Sets the function that notes a failure in a session. Every caller in the process passes the same
// function.
void error_note_by(void (*note)(struct lockstep_session *session, int status, const char *text));

// Return the status of a call that ends because of a verdict of the coordinator.
int error_status_of_halt(enum halt_kind kind);
int error_status_of_refusal(enum refusal refusal);

#endif
