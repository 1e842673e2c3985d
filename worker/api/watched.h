// SPDX-License-Identifier: Apache-2.0
//
// Connects a session with its watch and its tracker: which parts of the session these see.

#ifndef WORKER_API_WATCHED_H
#define WORKER_API_WATCHED_H

struct lockstep_session;

// Opens the tracker of a session whose trace is open. 0, or -1: no memory. Trainer.
int watched_track(struct lockstep_session *session);
// Starts the watch. 0, or -1: no memory or no thread. Trainer.
int watched_start(struct lockstep_session *session);

#endif
