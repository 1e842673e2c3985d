// SPDX-License-Identifier: Apache-2.0
//
// Short parts that go one way, and how far their senders may be ahead: ahead.c. Engine thread.

#ifndef WORKER_TRANSPORT_DIRECT_AHEAD_H
#define WORKER_TRANSPORT_DIRECT_AHEAD_H

#include "protos/frame.h"

#include <stdbool.h>

struct direct_member;
struct flow;
struct flows;
struct peer_link;

// Sets member->paced and what follows from it, when all parts of the member are known.
void ahead_launch(const struct flow *flow, struct direct_member *member);
// Lets a part that waits go, if there is room, or announces it; asks for a part that was announced.
// True if it queued a frame. Of paced members only, as the next three.
bool ahead_feed(struct flows *flows, const struct flow *flow, struct direct_member *member);
// Returns NULL, or what is impossible about a frame with DIRECT_ASK.
const char *ahead_check(const struct direct_member *member, const struct frame_header *header);
// The member has asked for this rank's part.
void ahead_asked(const struct flow *flow, struct direct_member *member);
// The part of the member has arrived whole.
void ahead_taken(struct flows *flows, const struct direct_member *member);

// True if a frame with DIRECT_ASK is for a part that is gone.
bool ahead_is_late(struct flows *flows, const struct frame_header *header);
// Handles a CREDIT frame with FRAME_CREDIT_SENDS. Returns NULL, or what is impossible about it.
const char *ahead_credit(struct peer_link *peer, const struct frame_header *header);

#endif
