// SPDX-License-Identifier: Apache-2.0
//
// The functions of engine.c that other files call.

#ifndef WORKER_ENGINE_ENGINE_H
#define WORKER_ENGINE_ENGINE_H

#include <stdbool.h>

struct command;
struct lockstep_session;

int engine_start(struct lockstep_session *session);
// Ends the thread; leave: in good order. Afterwards nothing touches user memory.
void engine_stop(struct lockstep_session *session, bool leave);
// What a driver does. Driver only.
void engine_command(struct lockstep_session *session, const struct command *command);
// Carries out a command whose caller waits for it if that is possible at once and without leaving
// anything in flight. False: it is for engine_command, before anything else.
bool engine_exchange(struct lockstep_session *session, const struct command *command);
// Carries out what is in the inbox, and what its time or a failure brings with it. Whether anything
// was done that somebody may wait for.
bool engine_attend(struct lockstep_session *session);
// Whether engine_attend has something to look at with an empty inbox.
bool engine_is_due(const struct lockstep_session *session);
// For how many milliseconds it has not; -1: for ever.
int engine_patience(const struct lockstep_session *session);
// Something is in flight, so that somebody has to drive.
bool engine_busy(const struct lockstep_session *session);
// The session is being closed. A close right after an abort waits for the answer to it.
bool engine_stops(const struct lockstep_session *session);
// The last that is driven: user memory is not touched any more.
void engine_finish(struct lockstep_session *session);

#endif
