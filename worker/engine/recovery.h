// SPDX-License-Identifier: Apache-2.0
//
// How a session goes on after a death (config.on_failure, docs/internals/recovery.md): the driver
// freezes, reports what is final, and goes on in a new generation, in the same step. Driver only.
//
//     DOWN_PREPARE     the transport and the order core freeze; records and UP_REPORT go up
//     DOWN_RECORD_PART, DOWN_DECISION     are kept
//     DOWN_GENERATION  the world of the decision; its links are made, and UP_LINKS goes up
//     DOWN_TUNING      the order core goes on: slots are repeated, and the step ends as ever
//
// A higher ballot may come at any time, and then the rank freezes and reports again.

#ifndef WORKER_ENGINE_RECOVERY_H
#define WORKER_ENGINE_RECOVERY_H

#include "protos/types.h"

#include <stdbool.h>

struct lockstep_session;
struct order_action;

// True if the session goes on after a death.
bool recovery_is_on(const struct lockstep_session *session);
// The first generation has formed. Returns false if memory is missing.
bool recovery_begin(struct lockstep_session *session);
// Fills what a hello says of this rank's generations and promise.
void recovery_describe(const struct lockstep_session *session, struct up_resume *resume);
// Every member of the present generation has started it (rule M3 of membership).
void recovery_established(struct lockstep_session *session);
void recovery_free(struct lockstep_session *session);
// generation: that which the ballot is to end.
void recovery_prepare(struct lockstep_session *session, const struct down_prepare *prepare);
void recovery_record(struct lockstep_session *session, const struct record_part *part);
void recovery_decision(struct lockstep_session *session, const struct down_decision *decision);
void recovery_excluded(struct lockstep_session *session, const struct down_excluded *excluded);
// True if the session waits for this generation, because its decision has arrived. Then the links
// of the generation are to be made.
bool recovery_expects(const struct lockstep_session *session,
                      const struct generation_id *generation);
// True if the rank is frozen for a ballot whose decision it does not obey yet: the present
// generation is over.
bool recovery_has_promised(const struct lockstep_session *session);
// The world of the decision is about to replace the present one. Caller holds the session's mutex.
void recovery_changes_locked(struct lockstep_session *session);
// The world of the decision is set, and its links are about to be made.
void recovery_forms(struct lockstep_session *session);
// The links of the new generation stand and it is tuned: the rank goes on. Does nothing in the
// first generation.
void recovery_goes_on(struct lockstep_session *session);
// Fills in the result of the last wave, for ranks that lack it. The engine has ended. Call it also
// where the session does not go on after a death; it does nothing then.
void recovery_parts(const struct lockstep_session *session, struct up_leave *leave);
// The order core repeats a slot.
void recovery_redo(struct lockstep_session *session, const struct order_action *action);

#endif
