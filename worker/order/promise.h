// SPDX-License-Identifier: Apache-2.0
//
// What a worker has promised to coordinators about the change of its generation. A ballot is the id
// of the generation that it decides: ballots are ordered by number, then by incarnation. Pure. The
// rules are in docs/internals/recovery.md.
//
// - A rank answers a ballot above its promise: it freezes and reports (R5). It reports again when
//   it is asked again. It refuses every other ballot.
// - A rank obeys only the decision of the ballot that it promised last (R5).
// - Only a decision excludes. A rank that is among the suspects of a ballot freezes and reports as
//   every other one (R6).
// - A rank obeys EXCLUDED only if its ballot is not below the promise (M6).

#ifndef WORKER_ORDER_PROMISE_H
#define WORKER_ORDER_PROMISE_H

#include <stdbool.h>

#include "protos/types.h"

struct promise {
    struct generation_id ballot; // The highest ballot that was promised, or the present generation.
    bool frozen; // True from the promise to the decision.
    bool excluded; // True if this rank is a member of no generation any more.
};

enum promise_answer {
    PROMISE_FREEZE, // Freeze, and report.
    PROMISE_REPORT, // The rank is frozen for this ballot: report again.
    PROMISE_REFUSE, // Answer with the promised ballot.
    PROMISE_SILENCE, // The rank is excluded, and answers nothing.
};

void promise_init(struct promise *promise, struct generation_id generation);
// A coordinator asks the rank to freeze for a ballot.
enum promise_answer promise_prepare(struct promise *promise, struct generation_id ballot);
// A decision arrived. True: it is in force, and the rank runs in the generation `ballot`.
bool promise_decided(struct promise *promise, struct generation_id ballot);
// A coordinator says that this rank is excluded. True: it is so.
bool promise_excluded(struct promise *promise, struct generation_id ballot);

#endif
