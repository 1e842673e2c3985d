// SPDX-License-Identifier: Apache-2.0
//
// Sets up the board of a host, and ends it. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_SETUP_H
#define WORKER_TRANSPORT_HOST_SETUP_H

#include <stdbool.h>
#include <stdint.h>

struct flows;
struct peer_link;
struct shared;

// Called when the generation begins to form; maps nothing yet. 0, or -1 without memory or without a
// peer for a mate.
int host_form(struct flows *flows);
// Called when the link to a peer is proven.
void host_proven(struct peer_link *peer);
// True once it is decided whether the ranks of this host share memory.
bool host_settled(const struct flows *flows);
// True if the ranks of this host share memory.
bool host_stands(const struct flows *flows);
// The time in ms at which this rank goes on without a board; UINT64_MAX: it is decided.
uint64_t host_deadline(const struct flows *flows);
// Called when the generation is over: unmaps the board.
void host_forget(struct flows *flows);

// For host.c. Continues the negotiation of the board until it is settled.
void host_negotiate(struct shared *shared);
// Takes the descriptors that a mate has passed.
void host_take(struct shared *shared, uint32_t seat);
// True if a mate has written to the board what the negotiation waits for.
bool host_has_news(const struct shared *shared);

#endif
