// SPDX-License-Identifier: Apache-2.0
//
// The functions of landing.c that other files call.

#ifndef WORKER_ENGINE_LANDING_H
#define WORKER_ENGINE_LANDING_H

#include <stdbool.h>
#include <stddef.h>

struct collective;
struct device_held;
struct lockstep_session;

// All that a bucket does on this rank's device is enqueued: an event of the transport. Driver, like
// all here.
void engine_enqueued(void *context, struct collective *collective);
// The same for a bucket of which only the trainer's part is left.
void engine_summed(void *context, struct collective *collective);
// The trainer ends the step by a stream: what is enqueued counts as final from now on.
void engine_end_by_stream(struct lockstep_session *session);
// The order core has to hear of something that is enqueued.
bool engine_device_is_due(const struct lockstep_session *session);
void engine_device_attend(struct lockstep_session *session);
// A bucket on this rank's device is done. Whether the order core takes it for final already.
bool engine_device_done(struct lockstep_session *session, struct collective *collective);
// The gradients that a stream has not made yet, for a person: "the gradient of 'fc.weight'".
void engine_describe_held(const struct lockstep_session *session, const struct device_held *held,
                          char *text, size_t bytes);
// Makes room for buckets on this rank's device, and for groups of buffers. -1: the device has none.
int engine_reserve(struct lockstep_session *session);
// The same for layouts that have just come into force. Nothing of this rank is in flight.
int engine_reserve_layouts(struct lockstep_session *session);

#endif
