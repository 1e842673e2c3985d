// SPDX-License-Identifier: Apache-2.0
//
// The functions of resume.c that other files call.

#ifndef WORKER_ENGINE_RESUME_H
#define WORKER_ENGINE_RESUME_H

#include <stdbool.h>

struct down_refused;
struct lockstep_session;
struct up_message;

// Keeps what a coordinator must be told again on another stream. Called for every message.
void engine_remember(struct lockstep_session *session, const struct up_message *message);
// True if the coordinator need not get a message now: the session goes on without an answer, or
// waits for it.
bool engine_can_wait(const struct lockstep_session *session);
// The control stream has ended. why: a sentence.
void engine_control_ended(struct lockstep_session *session, const char *why);
// Says which modules have a group, and which of them this rank does not have, once more. names: and
// the names of all modules.
void resume_say_modules(struct lockstep_session *session, bool names);
// Another control stream stands: says who this rank is, and what the coordinator may not know.
void engine_control_stands(struct lockstep_session *session);
// The coordinator has taken this rank back.
void engine_control_back(struct lockstep_session *session);
// The coordinator does not take this rank back. The session goes on alone.
void engine_control_refused(struct lockstep_session *session, const struct down_refused *refused);

#endif
