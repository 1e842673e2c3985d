// SPDX-License-Identifier: Apache-2.0
//
// The watch of a session: a separate thread, `lockstep-watch`, that the trainer cannot block,
// neither by a loop, nor by a sleep, nor by the lock of an interpreter. Every LOCKSTEP_WATCH_MS the
// thread looks where the trainer is. It sends heartbeats and answers the coordinator's questions.
// The watch decides nothing: the coordinator decides what is a stall.
//
// The watch reads the words of progress.h without a lock. What other threads give to the watch is
// guarded by the watch's own mutex, a leaf that no thread holds while user code runs. The watch
// asks the driver for facts that only the driver knows (links, names). If the driver does not
// answer, the watch goes on without them.

#ifndef WORKER_WATCH_WATCH_H
#define WORKER_WATCH_WATCH_H

#include "protos/types.h"
#include "worker/support/callers.h"
#include "worker/watch/progress.h"

#include <stdbool.h>

struct watch;

// The functions outside this wing that the watch calls. The watch thread calls them.
struct watch_events {
    // Completes a heartbeat: the trainer's blocking wait, the awaited things of `query` that this
    // rank has not done, overdue collectives, and the last failure of a call. *stood is 0 at the
    // first call; it keeps a value of this function from call to call.
    void (*fill)(void *context, const struct down_query *query, uint64_t *stood,
                 struct up_message *beat);
    // Gives a message to the control stream. Returns 0 if the stream has taken the message.
    int (*send)(void *context, const struct up_message *message);
    // Makes the driver call watch_driven soon.
    void (*ask_driver)(void *context);
    void *context;
};

// Facts that only the driver knows.
struct watch_driven {
    struct answer_place place;
    enum device_hold held;
    uint32_t link_count;
    struct link_state links[LOCKSTEP_LINKS_NAMED];
};

// Starts the thread. events is copied; tracker and callers are borrowed until watch_close. *started
// is set before the thread runs. Returns 0, or -1: no memory or no thread; then *started is NULL,
// or a watch that the caller must close. A session without a coordinator has no watch.
int watch_start(const struct watch_events *events, const struct tracker *tracker,
                const struct callers *callers, struct watch **started);
// The program may have loaded a Python interpreter since watch_start; captures of stacks then have
// its frames. watch may be NULL. Trainer.
void watch_find_python(struct watch *watch);
// Sends a last heartbeat, and joins the thread. Later calls of the control thread and of the driver
// have no effect. watch may be NULL in this function and in watch_close.
void watch_stop(struct watch *watch);
void watch_close(struct watch *watch); // Frees the watch.

// The coordinator has welcomed this worker: from now on the watch sends a heartbeat every
// heartbeat_ms. Any thread.
void watch_interval(struct watch *watch, uint32_t heartbeat_ms);
// The world has formed; locality lists the mates. Any thread.
void watch_formed(struct watch *watch, const struct locality *locality);
// The coordinator asks for an answer. A later question replaces a question that was not answered.
// Any thread.
void watch_inspect(struct watch *watch, const struct down_inspect *inspect);
// The coordinator asks which of the things that other ranks wait for this rank has not done. The
// list replaces the previous list. Any thread.
void watch_query(struct watch *watch, const struct down_query *query);
// A call has failed. A heartbeat with the failure is sent at once, but at most one in
// LOCKSTEP_WATCH_MS; otherwise the next heartbeat has the newest failure. last: true if the
// heartbeat must be sent at once in any case. Any thread.
void watch_note(struct watch *watch, bool last);
// True if the control stream has taken a heartbeat for every watch_note that asked for one. Any
// thread.
bool watch_has_told(struct watch *watch);
// The driver answers the question of ask_driver. driven is copied. Driver.
void watch_driven(struct watch *watch, const struct watch_driven *driven);

#endif
