// SPDX-License-Identifier: Apache-2.0
//
// The functions of farewell.c that other files call.

#ifndef WORKER_TRANSPORT_FAREWELL_H
#define WORKER_TRANSPORT_FAREWELL_H

#include <stdbool.h>
#include <stdint.h>

struct farewell;
struct peer_link;
struct transport;

// The last frame on a link that stands.
void farewell_goodbye(struct peer_link *peer);
// A frame of kind LEAVE or LOST. NULL, or what is impossible about it.
const char *farewell_begins(struct peer_link *peer);
const char *farewell_ended(struct peer_link *peer);
// Reports one loss of which a peer has told. Whether there was one.
bool farewell_report(struct transport *transport);
void farewell_forget(struct transport *transport);
// Why this rank ends, for its goodbyes. Copied.
void transport_goodbye(struct transport *transport, const struct farewell *farewell);
// Tells every peer at once that a rank was lost, unless they were told of it before. Copied.
void transport_tell(struct transport *transport, const struct farewell *farewell);
// What a peer gave as the reason of its goodbye; NULL: it has not said goodbye. Borrowed for now.
const struct farewell *transport_farewell(struct transport *transport, uint32_t rank);

#endif
