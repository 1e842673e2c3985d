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

struct accord;
struct engine_recovery;

// resume.c: what another coordinator must be told.
#define SESSION_NAMED_PARTS (LOCKSTEP_MAX_MODULES / LOCKSTEP_NAMES_PART + 1)

struct engine_said {
    struct up_start start; // The last UP_START; zeros: none.
    uint32_t named_count;
    struct up_modules named[SESSION_NAMED_PARTS]; // The modules, as rank 0 names them.
};

// engine.c, decisions.c, events.c, messages.c and waits.c
struct engine_state {
    struct order *order;
    char phase[LOCKSTEP_NAME_BYTES]; // Phase of the open step, for texts.
    // Notes have room for all parameters that can be registered; only what is used takes memory.
    struct step_note heard[2]; // The ring predecessor's notes, by step modulo 2.
    struct step_note own_note; // This rank's note while it is sent.
    bool linked; // True if the links to all neighbours are connected.
    // True if, in the first world, ranks with a device launch in one order. Equal on all ranks.
    bool strict;
    bool starting; // True from UP_START until the coordinator has verified the manifests.
    bool verified; // True if it has done so once: all ranks have loaded the same file, or none.
    uint32_t plain_in_flight; // Plain collectives in flight.
    uint32_t buffers_in_flight; // Plain collectives in flight for groups of buffers.
    bool commit_held; // True while the commit wave waits for groups of buffers.
    uint32_t waits; // Waits of lockstep_call_wait that the order core has not answered.
    bool crowd_said; // True if the log says that the session has too many phases or sets.
    struct engine_said said;
    struct wave_bounds wave_bounds; // The bounds of the open step.
    struct wave open_wave;
    struct wave close_wave;
    struct wave commit_wave;
    uint64_t step_bytes_sent; // The session's total at the beginning of the step; so the next two.
    uint64_t step_bytes_received;
    uint64_t step_bytes_copied;
    struct accord *accord; // accord.c; NULL: there was none.
    // recovery.c. NULL: the session does not go on after a death.
    struct engine_recovery *recovery;
};

// tell.c and loss.c: how the session ends.
struct engine_end {
    bool stop; // True if the engine thread is to end.
    bool leave; // True if it then waits until other ranks have received this rank's last frames.
    bool over; // True if the session has failed: no collective is launched any more.
    bool over_abruptly; // True if a rank is lost or gave up: no device waits for another rank.
    bool let_go; // True if all collectives have ended, and all threads know the failure.
    // Until when, by clock_now_ms, the trainer is not told of a lack of this system: the
    // coordinator is to know it first. 0: it knows, or there is no lack.
    uint64_t lack_deadline_ms;
    int over_status; // The status and the text with which the session has failed.
    char over_text[LOCKSTEP_REPORT_BYTES];
    // When a lockstep_call_wait without a coordinator fails the session, by clock_now_ms; 0: never.
    uint64_t halt_deadline_ms;
    // When this rank stops waiting for the coordinator's verdict, by clock_now_ms; 0: it awaits
    // none.
    uint64_t verdict_deadline_ms;
    bool left_held; // True if a verdict waits until no plain collective is in flight.
    char abort_text[LOCKSTEP_TEXT_BYTES]; // Why this rank gave up; "": it did not.
    int abort_status; // The status of every call after this rank gave up.
    uint64_t word_deadline_ms; // Until when a close waits for the coordinator; 0: no close yet.
    bool control_gone; // True if the control stream has ended.
    char control_text[LOCKSTEP_TEXT_BYTES]; // Why the control stream has ended.
    char away_need[LOCKSTEP_TEXT_BYTES]; // What this rank waits for the coordinator for; "":
                                         // nothing.
    bool need_told; // True if the control stream was told that the coordinator is needed.
    uint64_t away_deadline_ms; // When that wait fails the session, by clock_now_ms; 0: never.
    // Ranks whose processes are known to have ended, as a set.
    uint64_t died[LOCKSTEP_RANK_WORDS];
    uint32_t goodbyes_told; // So many goodbyes of peers the coordinator knows from this rank.
    uint64_t goodbyes_of[LOCKSTEP_RANK_WORDS]; // Whose they are, as a set.
    // When it is told of the others, by clock_now_ms; 0: there are none, or that is not decided.
    uint64_t goodbyes_due_ms;
    struct down_halt lost_here; // The verdict that ends the session at verdict_deadline_ms.
    struct losses losses; // Lost ranks that this rank has seen or was told of.
    struct farewell left_seen; // A rank that left although this rank needed it.
};

// landing.c: results on their way in the memory of this rank's devices.
struct landing {
    // True if the trainer has ended the open step by a stream: enqueued buckets count as final.
    bool by_stream;
    bool any_enqueued; // True if a bucket_run is enqueued.
    uint32_t unlanded; // Collectives that are final for the order core and not done.
    uint64_t room[LOCKSTEP_WINDOW]; // Bytes of buckets with pools on the device, largest first.
    uint32_t room_members; // Extents and units of one such bucket, at most.
    uint32_t room_rows; // Rows of replicas of one such bucket, at most.
    uint32_t room_late_rows; // The same for buckets that come back after they were deferred.
    bool landed; // True if unlanded is 0. Guarded by the session's mutex.
};

#endif
