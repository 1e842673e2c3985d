// SPDX-License-Identifier: Apache-2.0
//
// What becomes of plain collectives that a death has hit. Driver only.

#ifndef WORKER_ENGINE_ACCORD_H
#define WORKER_ENGINE_ACCORD_H

#include <stdbool.h>

struct collective;
struct lockstep_session;
struct lockstep_work;

// The generation ends. Returns NULL, or why the rank cannot go on.
const char *accord_freeze(struct lockstep_session *session);
// The rank goes on in a new generation.
void accord_begin(struct lockstep_session *session);
// The command of the work has come. True if the work is not to be launched now: the accord launches
// it, or a death has ended it.
bool accord_holds(struct lockstep_session *session, struct lockstep_work *work);
// True while this rank does not know the outcomes. It joins no commit wave before: a rank that has
// settled its last step may close, and the others may still need it.
bool accord_is_open(const struct lockstep_session *session);
// A collective is done. True if it is the one of the accord.
bool accord_done(struct lockstep_session *session, const struct collective *collective);
void accord_free(struct lockstep_session *session);

#endif
