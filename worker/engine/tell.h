// SPDX-License-Identifier: Apache-2.0
//
// The functions of tell.c that other files call.

#ifndef WORKER_ENGINE_TELL_H
#define WORKER_ENGINE_TELL_H

#include <stdbool.h>

struct down_halt;
struct down_message;
struct lockstep_session;
struct up_message;

// Marks the session as failed. The driver calls engine_let_go later, outside the present event.
void engine_fail(struct lockstep_session *session, int status, const char *text);
// A message of the coordinator after the failure. It may be the verdict on a lack of this rank.
void engine_hear_of_lack(struct lockstep_session *session, const struct down_message *message);
// True if it is time for engine_let_go.
bool engine_must_let_go(const struct lockstep_session *session);
// Ends the links, so that nothing touches user memory any more, and then fails the session.
void engine_let_go(struct lockstep_session *session);
// This rank saw a failure that ends the job. Sends `message` to the coordinator, unless it is NULL.
// `seen` becomes the verdict if the coordinator sends none in time.
void engine_report(struct lockstep_session *session, struct up_message *message,
                   const struct down_halt *seen);
// The coordinator is gone, so no verdict will come. This rank's own verdict counts after
// LOCKSTEP_LOSS_SETTLE_MS, in which peers can tell of losses that they saw.
void engine_decide_alone(struct lockstep_session *session);
// This rank gives up: its trainer's calls return this status, and the other ranks are told why.
void engine_abort(struct lockstep_session *session, int status, const char *reason);
// Ends the session when the time to wait for a verdict is over, or when a held verdict has nothing
// to wait for any more.
void engine_check_verdict(struct lockstep_session *session);
// Ends the session when a lockstep_call_wait has waited too long without a coordinator.
void engine_check_waits(struct lockstep_session *session);

#endif
