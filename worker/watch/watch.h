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
#include "worker/support/callers.h"
#include "worker/watch/progress.h"

#include <stdbool.h>

struct watch;

// Everything that the watch calls outside of its wing. The watch thread calls these functions.
struct watch_events {
    // Completes a heartbeat: what the trainer is blocked in, what other ranks wait for according to
    // the query, overdue collectives, and the last failure of a call. *stood is 0 at first and
    // belongs to this function from look to look.
    void (*fill)(void *context, const struct down_query *query, uint64_t *stood,
                 struct up_message *beat);
    // Gives a message to the control stream. 0: it was taken.
    int (*send)(void *context, const struct up_message *message);
    // Has the driver call watch_driven soon.
    void (*ask_driver)(void *context);
    void *context;
};

// Everything that only the driver knows.
struct watch_driven {
    struct answer_place place;
    enum device_hold held;
    uint32_t link_count;
    struct link_state links[LOCKSTEP_LINKS_NAMED];
};

// Starts the thread. events is copied, tracker and callers are borrowed until watch_close. *started
// is set before the thread runs; -1, no memory or no thread, leaves one to be closed, or NULL.
// Without a coordinator there is no watch.
int watch_start(const struct watch_events *events, const struct tracker *tracker,
                const struct callers *callers, struct watch **started);
// Joins the thread. Later calls of the control thread and of the driver have no effect. The watch
// may be NULL here and in watch_close.
void watch_stop(struct watch *watch);
void watch_close(struct watch *watch); // Frees.

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
// The driver's answer. Driver.
void watch_driven(struct watch *watch, const struct watch_driven *driven);

#endif
