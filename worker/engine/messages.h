// SPDX-License-Identifier: Apache-2.0
//
// The functions of messages.c that other files call.

#ifndef WORKER_ENGINE_MESSAGES_H
#define WORKER_ENGINE_MESSAGES_H

#include <stdint.h>

struct down_message;
struct lockstep_session;
struct up_message;

void engine_send(struct lockstep_session *session, struct up_message *message);
const char *engine_peer_host(const struct lockstep_session *session, uint32_t rank);
void engine_message(struct lockstep_session *session, const struct down_message *message);

#endif
