// SPDX-License-Identifier: Apache-2.0
//
// Small payloads in memory, without a run. Engine thread.

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
// Most bytes of a payload: what the leader decides for all, and, when the board stands, has
// decided.
uint64_t shots_most_bytes(const struct flows *flows);
void shots_begin(struct shared *shared);
// True if a collective is small enough.
bool shots_fits(const struct shared *shared, const struct flow *flow);
// Puts a payload into the record or a block. False: there is none, so it becomes no shot.
bool shots_fill(struct shared *shared, const struct flow *flow, uint32_t index);
void shots_announce(struct shared *shared, uint32_t index, uint64_t bytes);
// The record is a shot from now on. Where its payload of so many bytes is to be put; NULL: there is
// no room, and it is none.
uint8_t *shots_load(struct shared *shared, uint32_t index, uint64_t bytes);
// Where a payload of so many bytes is; NULL: it cannot be there.
uint8_t *shots_place(const struct shared *shared, uint32_t seat, uint32_t index, uint32_t payload,
                     uint64_t bytes);
// The record is at rest when all have read it. False: it is no shot.
bool shots_spend(struct shared *shared, uint32_t index);
// True if a record can be had; moves those that all have read to the ones at rest.
bool shots_refill(struct shared *shared);
// True if shots_refill would find some.
bool shots_may_refill(const struct shared *shared);
// Tells the mates whether this rank waits for a record.
void shots_starve(struct shared *shared, bool starves);
// Takes shots and computes what all have joined. True if it did anything.
bool shots_work(struct shared *shared);
bool shots_pending(const struct shared *shared);
// What all have joined becomes a run after all: their shots are read.
void shots_read(struct shared *shared, const struct match *match);
// A run of this tag was seen: no shots of it are waited for.
void shots_run_seen(struct shared *shared, const struct collective_tag *tag);

#endif
