// SPDX-License-Identifier: Apache-2.0
//
// An allreduce inside each host and between hosts. Engine thread.

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

// What the leader of another host says of runs. NULL, or what is impossible about it.
const char *two_level_hear(struct peer_link *peer, const struct frame_header *header);
// The collective that this one is a part of; NULL: it is one by itself.
struct collective *two_level_outer(struct flows *flows, struct collective *collective);
void two_level_done(struct flows *flows, struct collective *collective);
// 0, or -1 without memory.
int two_level_begin(struct shared *shared);
void two_level_end(struct shared *shared);
// The leader: all seats, or the host behind this one, have joined this.
void two_level_joined(struct shared *shared, struct match *match);
// The leader: its run was appended here.
void two_level_appended(struct shared *shared, const struct match *match);
// True if anything is to come from that neighbour between hosts.
bool two_level_needs(struct shared *shared, const struct peer_link *peer);
// Parts of a piece; most bytes of a piece; and those of a slot of such a board.
uint32_t two_level_rings(const struct shared *shared);
uint64_t two_level_piece_bytes(const struct shared *shared, const struct flow *flow);
uint64_t two_level_slot_bytes(const struct shared *shared);
// The stages of a piece that differ: reducing, which publishes later, and copying out.
void two_level_reduce(struct shared *shared, struct host_run *run, uint64_t piece);
void two_level_copy_out(struct shared *shared, struct host_run *run, uint64_t piece);

#endif
