// SPDX-License-Identifier: Apache-2.0
//
// What this rank needs the coordinator for while it is away, and how long it waits for it
// (LOCKSTEP_AWAY_TIMEOUT_MS). The control stream comes back by itself. Driver only.

#ifndef WORKER_ENGINE_ABSENCE_H
#define WORKER_ENGINE_ABSENCE_H

#include <stdint.h>

struct lockstep_session;

// Begins to wait if the coordinator is away, and is needed to go on: after a death, or in
// lockstep_start.
void absence_begin(struct lockstep_session *session);
// Tells the control stream whether this rank needs the coordinator: control_need.
void absence_tell_need(struct lockstep_session *session);
// Tells the coordinator which peers have said goodbye: at once if this rank needs the coordinator,
// or if another stream stands, and otherwise after LOCKSTEP_GOODBYE_MS, so that ranks that leave
// together say nothing. Without that the coordinator may wait for such a peer, or take it for dead:
// the coordinator may have been silent, the network between them may be cut, or the peer's last
// word may have been lost with the coordinator before.
void absence_tell_goodbyes(struct lockstep_session *session);
// The coordinator is back.
void absence_end(struct lockstep_session *session);
// Fails the session if it has waited for too long.
void absence_check(struct lockstep_session *session);
// The status of a session that fails because the coordinator is away.
int absence_status(const struct lockstep_session *session);
// When absence_check or absence_tell_goodbyes is due (clock_now_ms); 0: never.
uint64_t absence_deadline(const struct lockstep_session *session);

#endif
