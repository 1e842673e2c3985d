// SPDX-License-Identifier: Apache-2.0
//
// The functions of engine.c that other files call.

#ifndef WORKER_ENGINE_ENGINE_H
#define WORKER_ENGINE_ENGINE_H

#include <stdbool.h>

struct lockstep_session;
struct up_leave;

int engine_start(struct lockstep_session *session);
// Ends the engine thread. leave: true if the session waits until the other ranks have received its
// last frames; false if it ends its links at once. Afterwards nothing touches user memory.
void engine_stop(struct lockstep_session *session, bool leave);
// The engine thread has ended: fills in what other ranks may need to know of this one's last steps,
// if the session goes on after a death.
void engine_last_word(const struct lockstep_session *session, struct up_leave *leave);

// Sends UP_START, after the names of the modules if this is rank 0. The session is in
// lockstep_start. Driver, as the next two.
void engine_start_again(struct lockstep_session *session);
// Sends the layouts that this rank proposes in a learning step.
void engine_propose_layouts(struct lockstep_session *session);
// Another coordinator, or this one again, does not know what this rank had said in its learning
// step.
void engine_learn_again(struct lockstep_session *session);

#endif
