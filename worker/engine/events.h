// SPDX-License-Identifier: Apache-2.0
//
// The functions of events.c that other files call.

#ifndef WORKER_ENGINE_EVENTS_H
#define WORKER_ENGINE_EVENTS_H

#include "worker/transport/transport.h"

struct await_key;
struct lockstep_session;

struct transport_events engine_events(struct lockstep_session *session);
// Tells the coordinator how this rank calls a collective that another rank calls differently.
void engine_say_form(struct lockstep_session *session, const struct await_key *key);

#endif
