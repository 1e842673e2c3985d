// SPDX-License-Identifier: Apache-2.0
//
// Shots: small payloads in shared memory, reduced without a run. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_SHOTS_H
#define WORKER_TRANSPORT_HOST_SHOTS_H

#include <stdbool.h>
#include <stdint.h>

struct collective_tag;
struct flow;
struct match;
struct shared;
struct flows;

void shots_init(struct shared *shared);
// shots_most_bytes: the largest payload of a shot, which the leader decides for all ranks.
// shots_begin: called when the board stands, takes the leader's decision.
uint64_t shots_most_bytes(const struct flows *flows);
void shots_begin(struct shared *shared);
// True if a collective is small enough for a shot.
bool shots_fits(const struct shared *shared, const struct flow *flow);
// Puts the payload into the record or into a block, and makes the record a shot. False: no block is
// free, so the record is no shot.
bool shots_fill(struct shared *shared, const struct flow *flow, uint32_t index);
void shots_announce(struct shared *shared, uint32_t index, uint64_t bytes);
// Makes the record a shot, and returns where to put its payload of `bytes`; NULL: no block is free,
// and the record is no shot.
uint8_t *shots_load(struct shared *shared, uint32_t index, uint64_t bytes);
// Returns where a payload of `bytes` is; NULL: `payload` is impossible.
uint8_t *shots_place(const struct shared *shared, uint32_t seat, uint32_t index, uint32_t payload,
                     uint64_t bytes);
// Called when a record is done here: it becomes free when all mates have read it. False: the record
// is no shot.
bool shots_spend(struct shared *shared, uint32_t index);
// Frees the spent records that all mates have read. True if a record is free.
bool shots_refill(struct shared *shared);
// True if shots_refill would free a record.
bool shots_may_refill(const struct shared *shared);
// Tells the mates whether this rank waits for a record.
void shots_starve(struct shared *shared, bool starves);
// Reads shots of all ranks, and computes the collectives that all have joined. True if it read any.
bool shots_work(struct shared *shared);
bool shots_pending(const struct shared *shared);
// Marks the shots of a match as read.
void shots_read(struct shared *shared, const struct match *match);
// Called when a run of this tag was seen: forgets its shots.
void shots_run_seen(struct shared *shared, const struct collective_tag *tag);

#endif
