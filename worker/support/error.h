// SPDX-License-Identifier: Apache-2.0
//
// The status of a call and its sentence: the code is returned, the sentence waits in the calling
// thread for lockstep_error_text(). Any thread.

#ifndef WORKER_SUPPORT_ERROR_H
#define WORKER_SUPPORT_ERROR_H

#include "protos/types.h"

#include <lockstep/lockstep.h>

// Sets this thread's error text and returns status, so that a function can end with it.
int error_set(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The session that this thread has called: its failures are noted there, for its goodbye. NULL:
// none.
void error_of(struct lockstep_session *session);

// What a verdict of the coordinator means for the caller.
int error_status_of_halt(enum halt_kind kind);
int error_status_of_refusal(enum refusal refusal);

#endif
