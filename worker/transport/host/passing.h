// SPDX-License-Identifier: Apache-2.0
//
// How regions of registered memory get to the mates. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_PASSING_H
#define WORKER_TRANSPORT_HOST_PASSING_H

#include <stdbool.h>
#include <stdint.h>

struct link_note;
struct shared;

// The board stands: this rank's regions go to its mates, and theirs come.
void passing_begin(struct shared *shared);
// A descriptor that a mate has passed, owned from now on.
void passing_take(struct shared *shared, uint32_t seat, const struct link_note *note, int fd);
// Passes what is new, and hears what mates say. For when something is new, or `again` says that a
// link had no room.
void passing_exchange(struct shared *shared);
// True if there is something new to pass or to hear.
bool passing_has_news(const struct shared *shared);

#endif
