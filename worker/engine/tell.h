// SPDX-License-Identifier: Apache-2.0
//
// The functions of tell.c that other files call.

#ifndef WORKER_ENGINE_TELL_H
#define WORKER_ENGINE_TELL_H

struct down_halt;
struct lockstep_session;
struct up_message;

// The session has failed; engine_let_go does the rest, outside of whatever event this came from.
void engine_fail(struct lockstep_session *session, int status, const char *text);
// Ends the links, so that user memory is not touched any more, and then says why.
void engine_let_go(struct lockstep_session *session);
// This rank saw something that ends the job: tells the coordinator, unless message is NULL. `seen`
// is used when the coordinator's own sentence does not come.
void engine_report(struct lockstep_session *session, struct up_message *message,
                   const struct down_halt *seen);
// No sentence will come: the own one is used when others have had time to tell what they saw.
void engine_decide_alone(struct lockstep_session *session);
// This rank gives up, with this status for its trainer: the others are told why.
void engine_abort(struct lockstep_session *session, int status, const char *reason);
// Ends the session when the time for that sentence is over.
void engine_check_verdict(struct lockstep_session *session);
// Ends the session when a wait without an answer is overdue.
void engine_check_waits(struct lockstep_session *session);

#endif
