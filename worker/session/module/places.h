// SPDX-License-Identifier: Apache-2.0
//
// The functions of places.c that other files call.

#ifndef WORKER_SESSION_MODULE_PLACES_H
#define WORKER_SESSION_MODULE_PLACES_H

#include <stdbool.h>

struct lockstep_session;
struct placed;

// Forgets the places that were given in the last window. Trainer, before a window.
void places_window_begin(struct lockstep_session *session);
// Refuses a place that overlaps that of another gradient which travels in the window, or a value or
// buffer, and a second place for a shared parameter. Any thread, with places_mutex held.
int places_check_locked(struct lockstep_session *session, const struct placed *placed);
// The place was looked at, and the report is taken. Any thread, in the same critical section.
void places_take_locked(struct lockstep_session *session, const struct placed *placed);
// Whether the registered memory of a gradient that this rank has not used is another one's in this
// window. Any thread.
bool places_is_lost(struct lockstep_session *session, const struct placed *placed);

#endif
