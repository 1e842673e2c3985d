// SPDX-License-Identifier: Apache-2.0
//
// Further links, to ranks that are no neighbours: they are made when a collective first wants them
// (peer_want). Engine thread.

#ifndef WORKER_TRANSPORT_FURTHER_H
#define WORKER_TRANSPORT_FURTHER_H

#include <stdbool.h>
#include <stdint.h>

struct peer;
struct peer_link;
struct transport;

// Connects further links whose time has come, and loses peers to which no link can be made.
void further_tick(struct transport *transport, uint64_t now_ms);
// The time in ms at which further_tick or further_report has something to do; UINT64_MAX: never.
uint64_t further_deadline(const struct transport *transport);
// Reports the event reach for links that are wanted since the last call. True if it reported any.
bool further_report(struct transport *transport);
// A member connects over a further link. Returns its struct; NULL: this rank has no room or no
// memory for one more.
struct peer_link *further_admit(struct transport *transport, uint32_t rank);

// Makes the link to a rank, if this rank has none yet and is the side that connects.
void transport_want(struct transport *transport, uint32_t rank);
// The answer to the event reach: the address of one of these ranks. Returns false, and changes
// nothing, if the address of this rank is not awaited. After the end of the generation an answer is
// dropped, and the function returns true.
bool transport_reach(struct transport *transport, const struct peer *peer);
// The owner can ask again: the event reach comes once more for every address that is awaited.
void transport_seek(struct transport *transport);
// Returns true if the address of a rank is still awaited after the event reach; *rank is the lowest
// such rank.
bool transport_awaits_address(const struct transport *transport, uint32_t *rank);
// The host of a rank to which this rank made a further link, for texts; NULL: not known. Borrowed
// until the generation ends.
const char *transport_further_host(struct transport *transport, uint32_t rank);

#endif
