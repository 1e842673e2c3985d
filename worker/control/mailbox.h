// SPDX-License-Identifier: Apache-2.0
//
// The mailbox of the control stream: the messages that wait to be sent, and the wishes of the
// threads that call the control. It knows no gRPC. Any thread, but for the functions marked below.

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
    struct cond changed; // `finished` or `reporting`
    struct list queue; // of struct outgoing
    struct up_message hello; // The first message of the stream, each time; kind UP_NONE: not known.
    unsigned queued; // Messages in the queue.
    bool sends; // True while gRPC has not taken the message that left the queue last.
    bool heartbeat_queued; // True while a heartbeat waits: further ones are refused.
    bool waking; // True while the control thread is being woken.
    bool ended; // True if nothing is accepted, and nothing wakes the thread.
    bool closing; // True once control_close was called: no event is reported any more.
    bool reporting; // True while an event function runs: control_close waits for its end.
    uint64_t linger_until; // While closing.
    bool finished; // True if the thread is done with everything but `abandoned`.
    bool abandoned; // True if control_close has returned: the thread frees the control.
    uint8_t scratch[LOCKSTEP_MESSAGE_BYTES];
};

void mailbox_init(struct mailbox *mailbox);
void mailbox_fini(struct mailbox *mailbox);

// Queues an encoded copy. Returns what control_send returns. Caller holds the mutex.
int mailbox_push_locked(struct mailbox *mailbox, const struct up_message *message);
// The next message, to be freed by the caller; NULL: the queue is empty. Control thread.
struct outgoing *mailbox_pop(struct mailbox *mailbox);
// gRPC has taken the message that left the queue last. Control thread.
void mailbox_sent(struct mailbox *mailbox);
// True if nothing waits to be sent, or the stream has ended.
bool mailbox_is_idle(struct mailbox *mailbox);
// Drops the queue and puts the hello into it, with this timeout. False: there is no hello yet.
// Control thread.
bool mailbox_begin_again(struct mailbox *mailbox, uint32_t open_timeout_ms);
// From here on nothing is accepted, nothing wakes, and the control thread alone has gRPC's objects.
// Control thread.
void mailbox_close(struct mailbox *mailbox);

bool mailbox_is_closing(struct mailbox *mailbox);
// The end of the time that control_close gives the stream; UINT64_MAX before it is called.
uint64_t mailbox_linger_until(struct mailbox *mailbox);
// Both surround every event function. False: nothing may be reported any more. Control thread.
bool mailbox_report_begin(struct mailbox *mailbox);
void mailbox_report_end(struct mailbox *mailbox);
// The control thread has been woken. Control thread.
void mailbox_woken(struct mailbox *mailbox);
// Waits until CANCEL_MS after linger_until for the end of the control thread, and for the end of an
// event function. False: the thread is not done, and frees the control itself. Caller holds the
// mutex.
//
// gRPC gives a cancelled call back only when the kernel has taken what was being written. A
// stopped coordinator with a full socket prevents that until TCP gives up (KEEPALIVE_TIMEOUT_MS in
// channel.c). control_close does not wait for that: the thread reports nothing any more.
bool mailbox_await_end_locked(struct mailbox *mailbox);
// The control thread is done. True: control_close has given up on it, so the thread frees. Control
// thread.
bool mailbox_finish(struct mailbox *mailbox);

#endif
