// SPDX-License-Identifier: Apache-2.0
//
// The functions of form.c that other files call.

#ifndef WORKER_TRANSPORT_FORM_H
#define WORKER_TRANSPORT_FORM_H

#include <stdint.h>

struct guest;
struct listener;
struct peer_link;
struct transport;

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
struct peer_link *transport_peer(struct transport *transport, uint32_t rank);

#endif
