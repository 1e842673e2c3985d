// SPDX-License-Identifier: Apache-2.0
//
// The functions of loss.c that other files call.

#ifndef WORKER_ENGINE_LOSS_H
#define WORKER_ENGINE_LOSS_H

#include "worker/transport/transport.h"

#include <stdint.h>

struct down_halt;
struct farewell;
struct lockstep_session;

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

#endif
