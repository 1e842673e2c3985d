// SPDX-License-Identifier: Apache-2.0
//
// Passes regions of registered memory to the mates. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_PASSING_H
#define WORKER_TRANSPORT_HOST_PASSING_H

#include <stdbool.h>
#include <stdint.h>

struct link_note;
struct shared;

// Called when the board stands: begins to pass this rank's regions to its mates.
void passing_begin(struct shared *shared);
// Takes over the descriptor of a region that a mate has passed, and maps the region. fd -1: this
// process had no free descriptor for it; the mate is told that the region is not mapped.
void passing_take(struct shared *shared, uint32_t seat, const struct link_note *note, int fd);
// Passes new regions, and reads the news of mates. Called when there is news, or when
// `registered.again` says that a link had no room.
void passing_exchange(struct shared *shared);
// True if there are new regions to pass, or news of mates to read.
bool passing_has_news(const struct shared *shared);

#endif
