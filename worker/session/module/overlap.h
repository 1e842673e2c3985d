// SPDX-License-Identifier: Apache-2.0
//
// The functions of overlap.c that other files call.

#ifndef WORKER_SESSION_MODULE_OVERLAP_H
#define WORKER_SESSION_MODULE_OVERLAP_H

#include <stddef.h>

struct lockstep_module;
struct lockstep_session;
struct overlap_place;

// Refuses tensors that overlap in memory, among those of the session and of a module that is being
// registered. further: NULL, no such module. Trainer, when the owners are known.
int overlap_check(const struct lockstep_session *session, const struct lockstep_module *further);
// The same when something was registered or has moved since it was last right; keeps the list for
// worker/session/module/places.c. Trainer, outside a step.
int overlap_check_moved(struct lockstep_session *session);
// What the list has is not there any more. Trainer, outside a step.
void overlap_forget(struct lockstep_session *session);
// "the gradient of parameter 'w' (replica 1) of module 'net'". Returns text.
const char *overlap_name(const struct overlap_place *place, char *text, size_t bytes);

#endif
