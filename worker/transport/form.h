// SPDX-License-Identifier: Apache-2.0
//
// How the links of a generation are made and authenticated. Engine thread.

#ifndef WORKER_TRANSPORT_FORM_H
#define WORKER_TRANSPORT_FORM_H

#include "protos/frame.h"
#include "protos/limits.h"
#include "worker/transport/guests.h"

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct transport;

// The progress of making the links of a generation.
struct forming {
    bool has_world; // True from transport_form to the end of the generation.
    bool failed;
    bool leaving; // True from the goodbyes of this rank on: no guest becomes a peer any more.
    // True if forming failed because a member has another LOCKSTEP_DATA_ENCRYPTION than this rank.
    bool differs;
    uint32_t guest_count;
    uint64_t guest_number; // The `number` that the next guest gets.
    struct guest guests[LOCKSTEP_MAX_UNPROVEN];
};

// Connects to the peer, or ends an attempt that takes too long, if the time for that has come.
void form_tick_peer(struct peer_link *peer, uint64_t now_ms);
// Admits or refuses a guest. Its whole hello has arrived and the generation is known.
void form_decide_guest(struct transport *transport, struct guest *guest);
// Connects to peers whose time has come, and checks the deadlines of forming.
void form_tick(struct transport *transport, uint64_t now_ms);
// The time in ms at which form_tick has something to do; UINT64_MAX: never.
uint64_t form_deadline(const struct transport *transport);
// Sets flows.formed if all links are proven and measured and the memory of the host is shared.
void form_check_complete(struct transport *transport);
void form_peer_ready(struct peer_link *peer);
// The header of a CHALLENGE, HELLO or WELCOME frame has arrived. Returns NULL, or what is
// impossible about the frame.
const char *form_frame_begins(struct peer_link *peer);
const char *form_frame_ended(struct peer_link *peer);
// The link of a peer ended before the peer was proven: this rank tries again later. The text is
// copied.
void form_peer_ended(struct peer_link *peer, const char *text);

#endif
