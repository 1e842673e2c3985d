// SPDX-License-Identifier: Apache-2.0
//
// The leader appends a run for each collective that all ranks of the host have joined. Engine
// thread.

#ifndef WORKER_TRANSPORT_HOST_SEQUENCE_H
#define WORKER_TRANSPORT_HOST_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

struct collective_tag;
struct match;
struct sequence;
struct shared;

void sequence_init(struct sequence *sequence);
void sequence_fini(struct sequence *sequence);
// At the leader: reads joins, and appends runs for the collectives that all ranks have joined. True
// if it appended any.
bool sequence_work(struct shared *shared);
// True if sequence_work would do anything.
bool sequence_pending(const struct shared *shared);
// Adds the join of a seat, by record `index`, to its match. shot: true if the record is a shot.
// Returns the match; NULL: the join is impossible, or there is no memory.
struct match *sequence_join(struct shared *shared, uint32_t seat, uint32_t index, bool shot);
// At the leader: marks a match as ready for a run if all ranks have joined, or if ranks disagree.
void sequence_joined(struct shared *shared, struct match *match);
void sequence_forget(struct sequence *sequence, struct match *match);
// Returns the match of a tag; NULL: none.
struct match *sequence_find(struct sequence *sequence, const struct collective_tag *tag);
// Makes a match for a tag that only another host has joined so far; NULL: too many, or no memory.
struct match *sequence_expect(struct sequence *sequence, const struct collective_tag *tag);

#endif
