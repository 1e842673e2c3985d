// SPDX-License-Identifier: Apache-2.0
//
// The leader makes runs of what all ranks of the host have joined. Engine thread.

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
// At the leader: appends runs for what all have joined. True if it did anything.
bool sequence_work(struct shared *shared);
// True if somebody has joined something since.
bool sequence_pending(const struct shared *shared);
// A record of a seat is a join, and a shot. What is known of its tag now; NULL: it is impossible.
struct match *sequence_join(struct shared *shared, uint32_t seat, uint32_t index, bool shot);
// The leader: appends a run for it when all have joined it, or differ.
void sequence_joined(struct shared *shared, struct match *match);
void sequence_forget(struct sequence *sequence, struct match *match);
// What is known of a tag; NULL: nothing.
struct match *sequence_find(struct sequence *sequence, const struct collective_tag *tag);
// The same for a tag that no rank here has joined yet; NULL: they are too many.
struct match *sequence_expect(struct sequence *sequence, const struct collective_tag *tag);

#endif
