// SPDX-License-Identifier: Apache-2.0
//
// The LEAVE and LOST frames, by which ranks tell each other that a rank ends. Engine thread.

#ifndef WORKER_TRANSPORT_FAREWELL_H
#define WORKER_TRANSPORT_FAREWELL_H

#include "protos/farewell.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct transport;

// A LOST frame that has arrived: the news of a peer that some rank was lost.
struct told_loss {
    uint32_t from;
    struct farewell farewell;
};

#define FAREWELL_RANK_WORDS (LOCKSTEP_MAX_WORLD / 64)

struct farewells {
    struct farewell goodbye; // Payload of this rank's LEAVE frames, valid if has_goodbye.
    bool has_goodbye;
    // Losses that peers told this rank and that no event has reported yet.
    struct told_loss told[LOCKSTEP_LOSSES];
    uint32_t told_count;
    uint32_t losses_told; // Number of ranks in losses_known.
    // One bit per rank: this rank has told its peers that it was lost, or has heard it from a peer.
    uint64_t losses_known[FAREWELL_RANK_WORDS];
    uint32_t goodbyes; // Number of peers that have sent LEAVE.
};

// Queues the LEAVE frame, which is the last frame that this rank sends on a proven link.
void farewell_goodbye(struct peer_link *peer);
// Gives the link the LEAVE frame, behind the frame that has begun, as far as it takes them without
// waiting. Frames that have not begun are dropped.
void farewell_part(struct peer_link *peer);
// The header of a LEAVE or LOST frame has arrived. Returns NULL, or what is impossible about the
// frame.
const char *farewell_begins(struct peer_link *peer);
const char *farewell_ended(struct peer_link *peer);
// Reports one loss that a peer told this rank, by the event `told`. False if there was none.
bool farewell_report(struct transport *transport);
void farewell_forget(struct transport *transport);
// Sets why this rank ends: the payload of its LEAVE frames. Copied.
void transport_goodbye(struct transport *transport, const struct farewell *farewell);
// Queues a LOST frame to every peer, ahead of other frames, unless this rank has told of that loss
// before. Copied.
void transport_tell(struct transport *transport, const struct farewell *farewell);
// The farewell of a peer that has sent LEAVE; NULL: that peer has not sent LEAVE. Borrowed until
// the generation ends.
const struct farewell *transport_farewell(struct transport *transport, uint32_t rank);
// The number of peers that have sent LEAVE in this generation.
uint32_t transport_goodbyes(const struct transport *transport);
// This rank needs a peer that has sent LEAVE: the peer is lost (LOSS_LEFT).
void transport_miss(struct transport *transport, uint32_t rank);

#endif
