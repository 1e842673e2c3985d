// SPDX-License-Identifier: Apache-2.0
//
// struct control, and what grpc.c needs of the life of streams (streams.c). Only these two files
// include this header.

#ifndef WORKER_CONTROL_STREAMS_H
#define WORKER_CONTROL_STREAMS_H

#include "base/thread.h"
#include "protos/codec/down.h"
#include "worker/control/addresses.h"
#include "worker/control/ask.h"
#include "worker/control/call.h"
#include "worker/control/channel.h"
#include "worker/control/control.h"
#include "worker/control/mailbox.h"
#include "worker/control/pause.h"
#include "worker/control/sentences.h"

#include <stdbool.h>
#include <stdint.h>

#define STREAMS_NEVER UINT64_MAX

enum stage {
    CONNECTING,
    STANDING,
    ENDED
};

struct control {
    // set at open, then constant
    struct control_events events;
    uint64_t connect_timeout_ms;
    uint64_t connect_deadline;
    struct thread thread;

    // control thread only
    enum stage stage;
    struct channel channel;
    struct addresses addresses;
    struct call call;
    struct pause pause; // Until the next attempt.
    struct ask ask; // Whether the coordinator answers, while it is needed.
    char ended_text[LOCKSTEP_TEXT_BYTES]; // Also the last words of broke().
    char tried[LOCKSTEP_TEXT_BYTES]; // What addresses_say has said.
    struct down_message message;
    enum ending_status status; // The last call's status.
    bool answered; // True if the coordinator has sent more than a welcome: no new stream is begun.
    char later[LOCKSTEP_TEXT_BYTES]; // Text of a refusal that asks to come later; "": none came.
    bool kept; // True once the world has formed.
    bool again; // True from the first end of a kept stream on.
    bool sent_away; // True if the coordinator has refused the present stream.
    bool skips; // True if the present attempt was given up for the next one.
    uint64_t attempt_until; // When the present attempt is given up, if it is limited.
    uint8_t bytes[LOCKSTEP_MESSAGE_BYTES]; // The message that came last.

    struct mailbox mailbox; // Used by any thread.
};

// The control thread. Ends when the stream has ended for good.
void streams_run(void *control);
// Wakes the control thread. Caller holds the mailbox's mutex.
void streams_wake_locked(struct control *control);
void streams_release(struct control *control);

#endif
