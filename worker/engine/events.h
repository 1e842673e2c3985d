// SPDX-License-Identifier: Apache-2.0
//
// The functions of events.c that other files call.

#ifndef WORKER_ENGINE_EVENTS_H
#define WORKER_ENGINE_EVENTS_H

#include "worker/transport/transport.h"

struct await_key;
struct commit_wave;
struct lockstep_session;
struct open_wave;

struct transport_events engine_events(struct lockstep_session *session);
// The open wave of `world_size` ranks has this result: the trainer gets it.
void engine_opened(struct lockstep_session *session, uint64_t step, const struct open_wave *result,
                   uint32_t world_size);
// The commit wave of the open step has this result: counters and metrics have it, too.
void engine_committed(struct lockstep_session *session, const struct commit_wave *outcome);
// Tells the coordinator how this rank calls a collective that another rank calls differently.
void engine_say_form(struct lockstep_session *session, const struct await_key *key);

#endif
