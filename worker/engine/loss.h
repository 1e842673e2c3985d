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

// Event of the transport: the link to a peer has ended.
void engine_peer_lost(void *context, uint32_t rank, enum peer_loss how, const char *text);
// Event of the transport: the process of a mate is gone.
void engine_mate_gone(void *context, uint32_t rank);
// Event of the transport: the data port of a rank refuses connections.
void engine_port_closed(void *context, uint32_t rank);
// Event of the transport: peer `from` has told of a loss.
void engine_told(void *context, uint32_t from, const struct farewell *loss);
// This rank gives up, and tells its peers why. step: the first step that no rank can complete
// without this rank; 0: the present step.
void engine_resign(struct lockstep_session *session, uint64_t step, const char *text);
// Replaces the loss in *halt, which this rank saw first, by the loss that losses_first chooses.
void engine_choose_loss(struct lockstep_session *session, struct down_halt *halt);
// Hands the transport the reason for which this rank ends; the transport sends it to the peers.
void engine_goodbye(struct lockstep_session *session);

#endif
