// SPDX-License-Identifier: Apache-2.0
//
// How links come to stand. Engine thread.

#ifndef WORKER_TRANSPORT_FORM_H
#define WORKER_TRANSPORT_FORM_H

#include "protos/frame.h"
#include "protos/limits.h"
#include "worker/transport/flow/peers.h"

#include <stdbool.h>
#include <stdint.h>

struct listener;
struct peer_link;
struct transport;

// A connection that has not proven membership.
struct guest {
    struct endpoint endpoint; // First.
    struct link *link; // NULL: this place is free.
    uint64_t since_ms;
    uint64_t number; // Order of arrival.
    uint8_t challenge[LOCKSTEP_NONCE_BYTES]; // That it was sent.
    uint32_t received;
    bool heard; // A whole hello, to be examined when the generation is known.
    uint8_t bytes[LOCKSTEP_HELLO_BYTES];
};

// How far the links of a generation are.
struct forming {
    bool has_world; // True from transport_form to the end of the generation.
    bool failed;
    bool differs; // True if it failed because a member is configured otherwise.
    uint32_t guest_count;
    uint64_t guest_number; // Number of the next guest.
    struct guest guests[LOCKSTEP_MAX_UNPROVEN];
};

void form_accept(struct transport *transport, struct listener *listener);
void form_guest_ready(struct transport *transport, struct guest *guest);
// Attempts, deadlines, and guests that wait for too long.
void form_tick(struct transport *transport, uint64_t now_ms);
// When form_tick has something to do; UINT64_MAX: never.
uint64_t form_deadline(const struct transport *transport);
// Looks whether all that forming waits for is there.
void form_check_complete(struct transport *transport);
void form_peer_ready(struct peer_link *peer);
// A frame of kind CHALLENGE, HELLO or WELCOME. NULL, or what is impossible about it.
const char *form_frame_begins(struct peer_link *peer);
const char *form_frame_ended(struct peer_link *peer);
// The link ended before it was proven.
void form_peer_ended(struct peer_link *peer, const char *text);
void form_forget_guests(struct transport *transport);

#endif
