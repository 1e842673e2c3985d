// SPDX-License-Identifier: Apache-2.0
//
// Parts of an exchange that the receiver reads in the memory of the sender: pull.c. Engine thread.

#ifndef WORKER_TRANSPORT_DIRECT_PULL_H
#define WORKER_TRANSPORT_DIRECT_PULL_H

#include "protos/frame.h"

#include <stdbool.h>

struct direct_member;
struct flow;
struct flows;

// Announces this rank's part for a member, if that is of use. True if it queued a frame.
bool pull_announce(struct flows *flows, const struct flow *flow, struct direct_member *member);
// True if this rank may still read the member's part itself.
bool pull_may_come(const struct direct_member *member);
// Reads some of the member's part, if the member has said where it is. True if there is more to do
// at once. May end the flow, and then `member` is no more.
bool pull_some(struct flows *flows, struct flow *flow, struct direct_member *member);

// Check a frame of an exchange. Return NULL, or what is impossible about the frame.
const char *pull_check_announcement(const struct direct_member *member,
                                    const struct frame_header *header);
const char *pull_check_taken(const struct direct_member *member, const struct frame_header *header);
// The member has announced its part. block: the payload, which returns to its pool; NULL: none.
void pull_hear(struct flows *flows, struct direct_member *member, void *block);
// The member has read this rank's part. May end the flow.
void pull_end(struct flows *flows, struct flow *flow, struct direct_member *member);

#endif
