// SPDX-License-Identifier: Apache-2.0
//
// What this rank tells the coordinator of a ballot: records of what it knows, and then the report.
// See recovery.h. Driver only.

#ifndef WORKER_ENGINE_RECOVERY_REPORT_H
#define WORKER_ENGINE_RECOVERY_REPORT_H

#include "protos/down.h"
#include "worker/order/ancestry.h"
#include "worker/order/promise.h"
#include "worker/order/recover.h"

#include <stdbool.h>
#include <stdint.h>

struct lockstep_session;

// A record of a decision.
struct held_record {
    enum record_kind kind;
    uint32_t position;
    uint32_t total; // Number of words.
    uint32_t have; // Number of words that have arrived.
    uint64_t *words; // [total]
};

// What a rank keeps from a ballot until it goes on.
struct engine_recovery {
    struct promise promise;
    struct ancestry ancestry;
    bool decided; // True from the decision of the promised ballot until the rank goes on.
    struct down_decision decision;
    struct order_facts facts; // As reported for the promised ballot.
    uint32_t record_count;
    uint32_t record_room;
    struct held_record *records; // [record_count], of the promised ballot.
    uint32_t redo_low; // Lowest position that was repeated in redo_step.
    uint64_t redo_step;
};

// Fills in the facts, and sends the records and the report. Returns NULL, or why this rank cannot
// go on.
const char *recovery_report(struct lockstep_session *session);

#endif
