// SPDX-License-Identifier: Apache-2.0
//
// How the board of a host comes to stand, and how it ends. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_SETUP_H
#define WORKER_TRANSPORT_HOST_SETUP_H

#include <stdbool.h>
#include <stdint.h>

struct flows;
struct peer_link;
struct shared;

// The generation begins: nothing is mapped. 0, or -1 without memory.
int host_form(struct flows *flows);
// The link to a mate stands.
void host_proven(struct peer_link *peer);
// True if it is known whether the group shares memory.
bool host_settled(const struct flows *flows);
// True if the group shares memory.
bool host_stands(const struct flows *flows);
// When host_work has to be called for that; UINT64_MAX: never.
uint64_t host_deadline(const struct flows *flows);
// The generation is over.
void host_forget(struct flows *flows);

// For host.c. Goes on with the negotiation while it is not settled.
void host_negotiate(struct shared *shared);
// Takes what a mate has passed.
void host_take(struct shared *shared, uint32_t seat);
// True if a mate has said on the board what the negotiation waits for.
bool host_has_news(const struct shared *shared);

#endif
