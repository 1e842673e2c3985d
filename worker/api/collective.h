// SPDX-License-Identifier: Apache-2.0
//
// The functions of collective.c that other files call.

#ifndef WORKER_API_COLLECTIVE_H
#define WORKER_API_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective;
struct lockstep_session;
struct lockstep_work;
struct up_heartbeat;

uint64_t collective_signature(const struct collective *collective);
// Sets the collective of the trainer that a thread waits for, and the oldest ones that are in
// flight for longer than LOCKSTEP_OVERDUE_MS. Watch thread.
void collective_tell(struct lockstep_session *session, struct up_heartbeat *beat);
// How the trainer calls it: "lockstep_allreduce with 4 elements of float32, sum". "": the library
// does. text has room for LOCKSTEP_FORM_BYTES.
void work_form(const struct lockstep_work *work, char *text, size_t bytes);
// Launches what the work consists of; one part of it is done. Driver.
void work_launch(struct lockstep_work *work);
void work_done(struct lockstep_work *work);
// Work that its caller waits for and drives may be complete without a launch; else it is to be
// launched at once. Driver. Then it is done: only its caller knows of it.
bool work_exchange(struct lockstep_work *work);
void work_exchanged_locked(struct lockstep_work *work);
// The public collectives without the checks of the public layer; trainer. kind, dtype, op and root
// are taken from `like`. On success *work is in flight.
int collective_begin(struct lockstep_session *session, const char *name, void *data, uint64_t count,
                     const struct collective *like, struct lockstep_work **work);
int collective_wait(struct lockstep_work *work, uint32_t timeout_ms);
// The tuning has changed.
void collective_forget_form(struct lockstep_session *session);
// Both in one, in which the caller drives where it can. With LOCKSTEP_E_TIMEOUT it is in flight.
int collective_call(struct lockstep_session *session, const char *name, void *data, uint64_t count,
                    const struct collective *like, uint32_t timeout_ms,
                    struct lockstep_work **work);
// Begins work that its caller keeps and has named, over the extents of `like`: the n-th time here
// meets the n-th time on the other ranks. kind, dtype, op, root, extents and elements are taken
// from `like`. Allocates nothing and cannot fail. Trainer; not in a solo session.
void collective_repeat(struct lockstep_work *work, const struct collective *like);

#endif
