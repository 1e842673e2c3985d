// SPDX-License-Identifier: Apache-2.0
//
// The parts of a session that only its driver touches. The files of worker/engine/ own them.

#ifndef WORKER_SESSION_DRIVEN_H
#define WORKER_SESSION_DRIVEN_H

#include "worker/order/order.h"
#include "worker/session/losses.h"
#include "worker/session/step.h"
#include "worker/transport/transport.h"

#include <stdbool.h>
#include <stdint.h>

// engine.c, decisions.c, events.c, messages.c and waits.c
struct engine_state {
    struct order *order;
    char phase[LOCKSTEP_NAME_BYTES]; // Phase of the open step, for texts.
    struct step_note heard[2]; // The ring predecessor's notes, by step modulo 2.
    bool linked; // True if all links stand.
    bool starting; // True from the message of lockstep_start until its answer.
    uint32_t plain_in_flight; // Plain collectives.
    uint32_t buffers_in_flight; // Plain collectives of groups of buffers.
    bool commit_held; // True while the commit wave waits for those.
    uint32_t waits; // Waits of which the order core knows.
    struct wave_bounds wave_bounds; // The bounds of the open step.
    struct wave open_wave;
    struct wave close_wave;
    struct wave commit_wave;
    uint64_t step_bytes_sent; // Total at the beginning of the step.
    uint64_t step_bytes_received;
    uint64_t step_bytes_copied;
};

// tell.c and loss.c: how the session ends.
struct engine_end {
    bool stop;
    bool leave;
    bool over; // True if the session has failed: no collective is launched any more.
    bool over_abruptly; // True if a rank is lost: no device waits for the others.
    bool let_go; // True if all collectives have ended, and all threads know the failure.
    int over_status;
    char over_text[LOCKSTEP_REPORT_BYTES];
    uint64_t halt_deadline_ms; // How long collectives go on without a coordinator; 0: for ever.
    uint64_t verdict_deadline_ms; // How long a verdict on a lost peer is waited for; 0: it is not.
    bool left_held; // True while a verdict waits until no plain collective is in flight.
    char abort_text[LOCKSTEP_TEXT_BYTES]; // Why this rank gave up; "": it did not.
    int abort_status; // The status of its calls then.
    bool control_gone;
    char control_text[LOCKSTEP_TEXT_BYTES];
    struct down_halt lost_here; // What this rank saw, used when no verdict comes.
    struct losses losses; // Ranks that are gone, as far as this one has seen or was told.
    struct farewell left_seen; // A rank that left and was needed; used when no verdict comes.
};

// landing.c: results on their way in the memory of this rank's devices.
struct landing {
    bool by_stream; // True if the trainer has ended the open step by a stream: enqueued is final.
    bool any_enqueued; // True if a bucket_run is enqueued.
    uint32_t unlanded; // Collectives that are final for the order core and not done.
    uint64_t room[LOCKSTEP_WINDOW]; // Bytes of buckets with pools on the device, largest first.
    uint32_t room_members; // Extents and units of each of them.
    uint32_t room_rows; // Rows of replicas of each of them.
    uint32_t room_late_rows; // The same for buckets that come back after they were deferred.
    bool landed; // True if unlanded is 0. Guarded by the session's mutex.
};

#endif
