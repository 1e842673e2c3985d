// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives, described for people and for heartbeats: the functions of work_told.c.

#ifndef WORKER_SESSION_WORK_TOLD_H
#define WORKER_SESSION_WORK_TOLD_H

#include <stddef.h>

struct lockstep_session;
struct lockstep_work;
struct up_heartbeat;

// Writes how the trainer called the collective: "lockstep_allreduce with 4 elements of float32,
// sum"; "" if the library called it. text has room for LOCKSTEP_FORM_BYTES.
void work_told_form(const struct lockstep_work *work, char *text, size_t bytes);
// Writes what a text adds to the name of a collective of any kind: "all_gather of group 'tp0'"; the
// ranks of a group that is being made; "" for a collective that lockstep_allreduce or its like
// began. text has room for LOCKSTEP_DETAIL_BYTES.
void work_told_detail(const struct lockstep_work *work, char *text, size_t bytes);
// Fills in the trainer's collective for which a thread waits, and the trainer's oldest collectives
// that are in flight for longer than LOCKSTEP_OVERDUE_MS. Watch thread.
void work_told_beat(struct lockstep_session *session, struct up_heartbeat *beat);

#endif
