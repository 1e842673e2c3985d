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
// registered. further: that module, or NULL. Trainer, after owner_find.
int overlap_check(const struct lockstep_session *session, const struct lockstep_module *further);
// Checks the session again if a tensor was registered or has moved since the last check. Keeps the
// sorted list of registered memory for places.c. Trainer, outside a step.
int overlap_check_moved(struct lockstep_session *session);
// Drops that list, because a module in it was closed. Trainer, outside a step.
void overlap_forget(struct lockstep_session *session);
// Writes the name of a tensor: "the gradient of parameter 'w' (replica 1) of module 'net'". Returns
// text.
const char *overlap_name(const struct overlap_place *place, char *text, size_t bytes);

#endif
