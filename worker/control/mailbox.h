// SPDX-License-Identifier: Apache-2.0
//
// The mailbox of the control stream: the messages that wait to be sent, and the requests of threads
// to the control thread. It knows no gRPC. Any thread, except functions marked below.

#ifndef WORKER_CONTROL_MAILBOX_H
#define WORKER_CONTROL_MAILBOX_H

#include "base/cond.h"
#include "base/list.h"
#include "base/mutex.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One encoded message that waits to be sent.
struct outgoing {
    struct list link;
    bool heartbeat;
    size_t size;
    uint8_t bytes[];
};

struct mailbox {
    // guarded by mutex
    struct mutex mutex;
    struct cond changed; // Signalled when `finished` or `reporting` changes.
    struct list queue; // of struct outgoing
    struct up_message hello; // The first message of each stream; kind UP_NONE: not known yet.
    unsigned queued; // Messages in the queue.
    bool sends; // True while gRPC has not taken the message that left the queue last.
    bool heartbeat_queued; // True while a heartbeat waits; then further heartbeats are refused.
    // True from the end of a kept stream until a hello has begun another one; `stands` is true from
    // the moment at which this other one takes a hello.
    bool broken;
    bool stands;
    bool kept; // True after the first end of a kept stream.
    bool waking; // True while a wake-up of the control thread is outstanding.
    bool ended; // True if the mailbox accepts no message and no call wakes the thread.
    bool needed; // As control_need said last.
    bool renews; // True from control_renew until the control thread has looked.
    bool closing; // True after control_close was called; then no event is reported.
    bool reporting; // True while an event function runs; control_close waits for its end.
    // Valid while closing. All times are clock_now_ms.
    uint64_t linger_ms; // As control_close said.
    uint64_t moved_ms; // When the control thread noticed the close, or gRPC took a message since.
    uint64_t wait_until; // When control_close waits no longer.
    bool given_up; // True once the control thread has ended the stream for want of time.
    // True if the control thread has ended, except for freeing the control if `abandoned` is set.
    bool finished;
    // True if control_close has returned before the control thread has ended; then the control
    // thread frees the control.
    bool abandoned;
    uint8_t scratch[LOCKSTEP_MESSAGE_BYTES];
};

void mailbox_init(struct mailbox *mailbox);
void mailbox_fini(struct mailbox *mailbox);

// Queues an encoded copy. Returns the same codes as control_send. Caller holds the mutex.
int mailbox_push_locked(struct mailbox *mailbox, const struct up_message *message);
// Returns the next message, to be freed by the caller; NULL: the queue is empty. Control thread.
struct outgoing *mailbox_pop(struct mailbox *mailbox);
// gRPC has taken the message that left the queue last. Control thread.
void mailbox_sent(struct mailbox *mailbox);
// True if no message waits to be sent, or the stream has ended.
bool mailbox_is_idle(struct mailbox *mailbox);
// Empties the queue and queues the hello again, with this timeout. Returns false if there is no
// hello yet. Control thread.
bool mailbox_begin_again(struct mailbox *mailbox, uint32_t open_timeout_ms);
// A kept stream has ended: empties the queue, and takes no message until mailbox_stand. Control
// thread.
void mailbox_break(struct mailbox *mailbox);
// Another stream stands: the mailbox takes a hello, and then all messages. Control thread.
void mailbox_stand(struct mailbox *mailbox);
// From here on the mailbox accepts no message, no call wakes the control thread, and only the
// control thread uses gRPC's objects. Control thread.
void mailbox_close(struct mailbox *mailbox);

bool mailbox_is_closing(struct mailbox *mailbox);
bool mailbox_is_needed(struct mailbox *mailbox);
// Returns true once after each control_renew. Control thread.
bool mailbox_take_renewal(struct mailbox *mailbox);
// Returns the end of the time that control_close gives the stream, linger_ms after moved_ms;
// UINT64_MAX before control_close is called. While messages wait for a stream that stands, that is
// UNSENT_MS later, because a process that gets little of the processor sends late.
uint64_t mailbox_linger_until(struct mailbox *mailbox, bool stands);
// The time is over: control_close waits CANCEL_MS more. Control thread.
void mailbox_give_up(struct mailbox *mailbox);
// Begins to close the stream. Caller holds the mutex.
void mailbox_begin_close_locked(struct mailbox *mailbox, uint64_t linger_ms);
// Called before and after every event function. Returns false if no event may be reported any more.
// Control thread.
bool mailbox_report_begin(struct mailbox *mailbox);
void mailbox_report_end(struct mailbox *mailbox);
// The control thread has been woken. Control thread.
void mailbox_woken(struct mailbox *mailbox);
// Waits for the end of the control thread, until CANCEL_MS after mailbox_give_up or as long after
// the stream should have ended, and for the end of a running event function. Returns false if the
// thread has not ended; then the thread frees the control itself. Caller holds the mutex. gRPC
// completes a cancelled call only when the kernel has taken the bytes that were being written. A
// stopped coordinator with a full socket prevents that until TCP gives up (KEEPALIVE_TIMEOUT_MS in
// channel.c). control_close does not wait so long, because the thread reports no event any more.
bool mailbox_await_end_locked(struct mailbox *mailbox);
// All that is left to the control thread is to shut gRPC down, which takes milliseconds, or for
// ever if gRPC could not start all of its threads. mailbox_await_end_locked waits for two seconds
// more. Control thread.
void mailbox_ends(struct mailbox *mailbox);
// The control thread has ended. Returns true if control_close has already returned; then the thread
// frees the control. Control thread.
bool mailbox_finish(struct mailbox *mailbox);

#endif
