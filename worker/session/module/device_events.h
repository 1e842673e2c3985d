// SPDX-License-Identifier: Apache-2.0
//
// The events on a device that must have happened before a bucket may be read: for each bucket of a
// contribution, and each replica of it, one event for every stream that produces gradients of it,
// recorded again by each report of that stream. And what before it may be written, where gradients
// of it were not reported. Not the waiting: that is the transport's, on the device.
//
// A stream keeps its event from step to step, and an event that no stream of a window has used may
// be given to another one. So what is made is made once, in the first steps. An event stands for
// all that its stream was given before it was recorded, so a later report covers earlier ones of
// the same stream, in whatever call or step of the window they came.
//
// A stream that still writes to a gradient which was not reported (with zeros, say) has no report
// that names it. So such results come behind one event for all of them: what the stream of
// lockstep_step_end had been given by then. Who waits for a call names no stream: what has ended by
// then comes behind what the legacy default stream had been given, and so do the results of a step
// that is ended without a stream.
//
// Threads: any may report. A gate's mutex is a leaf, held while an event is recorded. The last
// report of a bucket hands it to the driver, which reads the gate from then on.

#ifndef WORKER_SESSION_MODULE_DEVICE_EVENTS_H
#define WORKER_SESSION_MODULE_DEVICE_EVENTS_H

#include "worker/session/session.h"

struct ready_gate {
    struct mutex mutex;
    // guarded by mutex until the bucket is handed over, then driver
    bool taken[LOCKSTEP_READY_STREAMS]; // True if a stream has used it in this window.
    struct device_ready ready[LOCKSTEP_READY_STREAMS];
};

// The gates of a contribution; none where the session has no device. False without memory. Trainer.
bool device_events_init(struct contribution *contribution);
void device_events_fini(struct contribution *contribution);
// Nothing is pending. Trainer, when results of the last step are in memory.
void device_events_window_begin(struct contribution *contribution);

// What a stream of a replica's device produces.
struct ready_report {
    uint32_t replica;
    uint32_t parameter;
    void *stream;
};
// Takes a place in the gate of the parameter's bucket for the stream. LOCKSTEP_E_INVALID: there are
// LOCKSTEP_READY_STREAMS other ones. LOCKSTEP_E_SYSTEM: the device has failed. Any thread.
int device_events_reserve(struct contribution *contribution, const struct ready_report *report);
// Records that the parameter is complete when all that the stream was given is done. The place was
// reserved. LOCKSTEP_E_SYSTEM: the device has failed. Any thread.
int device_events_record(struct contribution *contribution, const struct ready_report *report);
// [LOCKSTEP_READY_STREAMS]: what a replica's part of a bucket waits for. Driver, from when the
// bucket was handed over.
const struct device_ready *device_events_of(const struct contribution *contribution,
                                            uint32_t replica, uint32_t bucket);

// LOCKSTEP_E_SYSTEM, with what the session's device has said. Any thread.
int device_events_failed(const struct lockstep_session *session);

// The events of a session with a device. Trainer, at open and close.
void device_events_open(struct lockstep_session *session);
void device_events_close(struct lockstep_session *session);
// True if a stream of the trainer is one of that device of the session, by its place. The default
// streams, NULL too, are those of all. Any thread.
bool device_events_is_stream_of(const struct lockstep_session *session, uint32_t device,
                                void *stream);
// True if a bucket has a gradient on devices that was not reported here, and that others may have.
// The thread that has the bucket.
bool device_events_leaves_out(const struct contribution *contribution, uint32_t bucket);
// Results may be written also where nothing was reported, behind what the stream was given until
// now: for all contributions that no thread waits for. Trainer, at lockstep_step_end.
void device_events_say_end(struct lockstep_session *session, void *stream);
// The same for those that were handed over by now: a thread waits for one of them. Any thread.
void device_events_say_wait(struct lockstep_session *session);

// World of one: waits until all of this has happened. Trainer. 0, or LOCKSTEP_E_SYSTEM.
int device_events_await(struct contribution *contribution);
// The same for what the stream was given that ends the step (NULL: the legacy default stream),
// where replicas may be written that have reported nothing.
int device_events_await_end(struct lockstep_session *session, void *stream);

#endif
