// SPDX-License-Identifier: Apache-2.0
//
// The watch of a session: a thread of its own, `lockstep-watch`, that nothing of the trainer can
// hold up, be it a loop, a sleep or the lock of an interpreter. It looks every LOCKSTEP_WATCH_MS
// where the trainer is, sends heartbeats, and answers the coordinator's questions. It decides
// nothing: what is a stall is the coordinator's to say.
//
// It reads the words of progress.h without a lock. What it takes from others stands under a mutex
// of its own, a leaf, which nobody holds while user code runs. What only the driver knows (links,
// names) it asks the driver for, and goes on without when that does not answer.

#ifndef WORKER_WATCH_WATCH_H
#define WORKER_WATCH_WATCH_H

#include "protos/types.h"

#include <stdbool.h>

struct lockstep_session;
struct watch;

// 0, or -1: no memory or no thread. Without a coordinator there is no watch.
int watch_start(struct lockstep_session *session);
// Joins the thread. What comes later from the control thread or the driver is ignored.
void watch_stop(struct lockstep_session *session);
void watch_close(struct lockstep_session *session); // Frees.

// The coordinator has welcomed this worker: from now on there are heartbeats. Any thread.
void watch_interval(struct watch *watch, uint32_t heartbeat_ms);
// Who lives on this host. Any thread.
void watch_formed(struct watch *watch, const struct locality *locality);
// The coordinator asks. A later question takes the place of one that was not answered. Any thread.
void watch_inspect(struct watch *watch, const struct down_inspect *inspect);
// The coordinator asks which of the things that other ranks wait for this rank has not done. The
// list takes the place of the last one. Any thread.
void watch_query(struct watch *watch, const struct down_query *query);
// A call has failed: a heartbeat says so at once, but one in LOCKSTEP_WATCH_MS at most. Then the
// next heartbeat has the newest failure. last: at once in any case. Any thread.
void watch_note(struct watch *watch, bool last);
// True if all that watch_note was called for has been given to the control stream. Any thread.
bool watch_has_told(struct watch *watch);
// Fills in what only the driver knows. Driver, for COMMAND_INSPECT.
void watch_driven(struct lockstep_session *session);

#endif
