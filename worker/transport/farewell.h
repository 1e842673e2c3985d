// SPDX-License-Identifier: Apache-2.0
//
// What ranks say to each other when one of them ends. Engine thread.

#ifndef WORKER_TRANSPORT_FAREWELL_H
#define WORKER_TRANSPORT_FAREWELL_H

#include "protos/farewell.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct transport;

// What a peer has told of a rank that was lost.
struct told_loss {
    uint32_t from;
    struct farewell farewell;
};

#define FAREWELL_RANK_WORDS (LOCKSTEP_MAX_WORLD / 64)

struct farewells {
    struct farewell goodbye; // What this rank's LEAVE frames say, if it has_goodbye.
    bool has_goodbye;
    struct told_loss told[LOCKSTEP_LOSSES]; // Losses that others told of and that are not reported.
    uint32_t told_count;
    uint32_t losses_told; // Ranks in losses_known.
    uint64_t losses_known[FAREWELL_RANK_WORDS]; // By rank: its loss was told, or heard of.
};

// The last frame on a link that stands.
void farewell_goodbye(struct peer_link *peer);
// A frame of kind LEAVE or LOST. NULL, or what is impossible about it.
const char *farewell_begins(struct peer_link *peer);
const char *farewell_ended(struct peer_link *peer);
// Reports one loss that a peer has told of. True if there was one.
bool farewell_report(struct transport *transport);
void farewell_forget(struct transport *transport);
// Why this rank ends, for its goodbyes. Copied.
void transport_goodbye(struct transport *transport, const struct farewell *farewell);
// Tells every peer at once that a rank was lost, unless they were told of it before. Copied.
void transport_tell(struct transport *transport, const struct farewell *farewell);
// What a peer gave as the reason of its goodbye; NULL: it has not said goodbye. Borrowed for now.
const struct farewell *transport_farewell(struct transport *transport, uint32_t rank);

#endif
