// SPDX-License-Identifier: Apache-2.0
//
// What the files of the engine share, which engine.c lists. Nobody else includes it. Whoever drives
// calls all of it.

#ifndef WORKER_ENGINE_PARTS_H
#define WORKER_ENGINE_PARTS_H

#include "worker/session/session.h"

// ---- tell.c -------------------------------------------------------------------------------------

// The session has failed; engine_let_go does the rest, outside of whatever event this came from.
void engine_fail(struct lockstep_session *session, int status, const char *text);
// Ends the links, so that user memory is not touched any more, and then says why.
void engine_let_go(struct lockstep_session *session);
// This rank saw something that ends the job: tells the coordinator, unless message is NULL. `seen`
// is used when the coordinator's own sentence does not come.
void engine_report(struct lockstep_session *session, struct up_message *message,
                   const struct down_halt *seen);
// No sentence will come: the own one is used when others have had time to tell what they saw.
void engine_decide_alone(struct lockstep_session *session);
// This rank gives up, with this status for its trainer: the others are told why.
void engine_abort(struct lockstep_session *session, int status, const char *reason);
// Whether the time for that sentence is over, and a wait that nobody answers is overdue.
void engine_check_verdict(struct lockstep_session *session);
void engine_check_waits(struct lockstep_session *session);

// ---- loss.c -------------------------------------------------------------------------------------

// Events of the data plane: a link has ended; a peer has told of a loss.
void engine_peer_lost(void *context, uint32_t rank, enum peer_loss how, const char *text);
void engine_told(void *context, uint32_t from, const struct farewell *loss);
// This rank gives itself up, and tells the others why.
// step: the first one that no rank can complete without it; 0: the present one.
void engine_resign(struct lockstep_session *session, uint64_t step, const char *text);
// The loss that this rank names without a coordinator, in place of the one that came first.
void engine_choose_loss(struct lockstep_session *session, struct down_halt *halt);
// Why this rank ends, for its goodbyes.
void engine_goodbye(struct lockstep_session *session);

// ---- decisions.c --------------------------------------------------------------------------------

// A decision of the order core; context: the session.
void engine_action(void *context, const struct order_action *action);
// Joins the wave which says that all results of the step are final here, unless buffers are not.
void engine_join_commit(struct lockstep_session *session, uint64_t step);

// ---- events.c -----------------------------------------------------------------------------------

struct transport_events engine_events(struct lockstep_session *session);
// Another rank calls this collective differently: the coordinator is told how this one calls it.
void engine_say_form(struct lockstep_session *session, const struct await_key *key);

// ---- messages.c ---------------------------------------------------------------------------------

void engine_send(struct lockstep_session *session, struct up_message *message);
const char *engine_peer_host(const struct lockstep_session *session, uint32_t rank);
void engine_message(struct lockstep_session *session, const struct down_message *message);
void engine_control_ended(struct lockstep_session *session, const char *why);

// ---- landing.c ----------------------------------------------------------------------------------

extern const char engine_no_room[]; // Why a session fails whose buckets have no room on a device.

#endif
