// SPDX-License-Identifier: Apache-2.0
//
// The device events after which a bucket may be read. Each bucket of a contribution has a *gate*
// for each replica: one event for every stream that produces gradients of it. Each report records
// the event of its stream again. Also the events after which results may be written for gradients
// that were not reported. The transport waits for these events, on the device.
//
// A stream keeps its event from step to step. An event that no stream has used in a window may be
// given to another stream. So events are created in the first steps only. An event covers all work
// that its stream was given before it was recorded. So a later report covers earlier reports of the
// same stream in the window.
//
// A stream may still write to a gradient that was not reported, for example zeros, and no report
// names that stream. So results of such gradients wait for one common event. At lockstep_step_end
// it covers the work of the stream given there. lockstep_call_wait names no stream: there it covers
// the work of the legacy default stream, as it does in a step that ends without a stream.
//
// Any thread may report. A gate's mutex is a leaf, held while an event is recorded. The last report
// of a bucket hands it to the driver, which alone reads the gate from then on.

#ifndef WORKER_SESSION_MODULE_DEVICE_EVENTS_H
#define WORKER_SESSION_MODULE_DEVICE_EVENTS_H

#include "worker/session/session.h"

struct ready_gate {
    struct mutex mutex;
    // guarded by mutex until the bucket is handed over, then driver
    bool taken[LOCKSTEP_READY_STREAMS]; // True if a stream has used the event in this window.
    struct device_ready ready[LOCKSTEP_READY_STREAMS];
};

// Allocates the gates of a contribution, unless the session has no device. False: no memory.
// Trainer.
bool device_events_init(struct contribution *contribution);
void device_events_fini(struct contribution *contribution);
// Resets all gates. Trainer, when the results of the last step are in memory.
void device_events_window_begin(struct contribution *contribution);

// The gradient that a stream of a replica's device produces.
struct ready_report {
    uint32_t replica;
    uint32_t parameter;
    void *stream;
};
// Reserves an event for the stream in the gate of the parameter's bucket. LOCKSTEP_E_INVALID:
// LOCKSTEP_READY_STREAMS other streams use that gate. LOCKSTEP_E_SYSTEM: the device has failed. Any
// thread.
int device_events_reserve(struct contribution *contribution, const struct ready_report *report);
// Records the reserved event: the gradient is complete when all work that the stream has been given
// by now is done. LOCKSTEP_E_SYSTEM: the device has failed. Any thread.
int device_events_record(struct contribution *contribution, const struct ready_report *report);
// [LOCKSTEP_READY_STREAMS]: the events for which a replica's part of a bucket waits. Driver, after
// the bucket was handed over.
const struct device_ready *device_events_of(const struct contribution *contribution,
                                            uint32_t replica, uint32_t bucket);

// Returns LOCKSTEP_E_SYSTEM, with the error of the first failed device in the text. Any thread.
int device_events_failed(const struct lockstep_session *session);

// Creates and frees the session's own events on its devices. Trainer, at open and close.
void device_events_open(struct lockstep_session *session);
void device_events_close(struct lockstep_session *session);
// True if the stream belongs to this device. device: its index in the session. A default stream,
// NULL included, belongs to every device. Any thread.
bool device_events_is_stream_of(const struct lockstep_session *session, uint32_t device,
                                void *stream);
// Returns why the stream of step_end cannot be used now; NULL: it can. See device_stream_trouble.
// Trainer.
const char *device_events_trouble(const struct lockstep_session *session, void *stream);
// True if a bucket on devices has a gradient that this rank has not reported, and for which another
// rank or replica may have a result. The thread that owns the bucket.
bool device_events_leaves_out(const struct contribution *contribution, uint32_t bucket);
// Allows results to be written for gradients that were not reported, after the work that the stream
// has been given by now. For all contributions, unless it was done for them before. Trainer, at
// lockstep_step_end.
void device_events_say_end(struct lockstep_session *session, void *stream);
// The same for the contributions that are handed over by now, with the legacy default stream: a
// thread waits for one of them. Any thread.
void device_events_say_wait(struct lockstep_session *session);

// Solo session: waits until all events of a contribution have happened. Trainer. 0, or
// LOCKSTEP_E_SYSTEM.
int device_events_await(struct contribution *contribution);
// Solo session with replicas: waits for the work that `stream`, with which the step ends, has been
// given (NULL: the legacy default stream). Replicas that have reported nothing may be written then.
int device_events_await_end(struct lockstep_session *session, void *stream);

#endif
