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

// The driver calls all functions of this header.

// Event of the transport: all work of a bucket on this rank's device is enqueued.
void engine_enqueued(void *context, struct collective *collective);
// Event of the transport: the bucket's sum is complete, and only this rank's trainer is awaited.
void engine_summed(void *context, struct collective *collective);
// The trainer ends the step by a stream: enqueued buckets count as final from now on.
void engine_end_by_stream(struct lockstep_session *session);
// True if the order core has to be told that enqueued buckets are final.
bool engine_device_is_due(const struct lockstep_session *session);
// Tells the order core that every enqueued bucket is final.
void engine_device_attend(struct lockstep_session *session);
// A bucket on this rank's device is done. True if the order core was told before that it is final.
bool engine_device_done(struct lockstep_session *session, struct collective *collective);
// Writes what a stream has not produced yet, for a person: "the gradient of 'fc.weight'".
void engine_describe_held(const struct lockstep_session *session, const struct device_held *held,
                          char *text, size_t bytes);
// Reserves memory of this rank's devices for buckets and for groups of buffers. -1: a device has
// too little memory.
int engine_reserve(struct lockstep_session *session);
// Reserves memory for the buckets of layouts that have just come into force. No bucket of this rank
// is in flight.
int engine_reserve_layouts(struct lockstep_session *session);

#endif
