// SPDX-License-Identifier: Apache-2.0
//
// Two levels: an allreduce inside each host, then between hosts. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_TWO_LEVEL_H
#define WORKER_TRANSPORT_HOST_TWO_LEVEL_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct flow;
struct frame_header;
struct match;
struct peer_link;
struct shared;
struct host_run;
struct flows;

// Handles a RUN frame from the leader of another host. Returns NULL, or what is impossible about
// the frame.
const char *two_level_hear(struct peer_link *peer, const struct frame_header *header);
// Returns the collective whose inner allreduce `collective` is; NULL: it is no inner allreduce.
struct collective *two_level_outer(struct flows *flows, struct collective *collective);
void two_level_done(struct flows *flows, struct collective *collective);
// Allocates the state if there are several hosts. 0, or -1 without memory.
int two_level_begin(struct shared *shared);
void two_level_end(struct shared *shared);
// At the leader: called when a seat, or the next host, has joined a collective. Passes the join on,
// or marks the match as ready, once all have joined.
void two_level_joined(struct shared *shared, struct match *match);
// At the leader: called when a run was appended here. Tells the next host.
void two_level_appended(struct shared *shared, const struct match *match);
// True if this rank still needs that neighbour in the ring between hosts.
bool two_level_needs(struct shared *shared, const struct peer_link *peer);
// Number of parts of a piece, most bytes of a piece, and bytes of a slot, with two levels.
uint32_t two_level_rings(const struct shared *shared);
uint64_t two_level_piece_bytes(const struct shared *shared, const struct flow *flow);
uint64_t two_level_slot_bytes(const struct shared *shared);
// The two stages of a piece that differ from pieces.c: reduce, which publishes its result only
// after the inner allreduce, and copy out.
void two_level_reduce(struct shared *shared, struct host_run *run, uint64_t piece);
void two_level_copy_out(struct shared *shared, struct host_run *run, uint64_t piece);

#endif
