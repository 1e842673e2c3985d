// SPDX-License-Identifier: Apache-2.0
//
// The functions of events.c that other files call.

#ifndef WORKER_ENGINE_EVENTS_H
#define WORKER_ENGINE_EVENTS_H

#include "worker/transport/transport.h"

struct await_key;
struct lockstep_session;

struct transport_events engine_events(struct lockstep_session *session);
// Another rank calls this collective differently: the coordinator is told how this one calls it.
void engine_say_form(struct lockstep_session *session, const struct await_key *key);

#endif
