// SPDX-License-Identifier: Apache-2.0
//
// Connections that have come in and have proven nothing yet (guests). Engine thread.

#ifndef WORKER_TRANSPORT_GUESTS_H
#define WORKER_TRANSPORT_GUESTS_H

#include "protos/frame.h"
#include "protos/limits.h"
#include "worker/transport/flow/peers.h"

#include <stdbool.h>
#include <stdint.h>

struct listener;
struct transport;

// A guest: an accepted connection whose other side has not proven membership yet.
struct guest {
    struct endpoint endpoint; // Must be the first field: epoll events point at it.
    struct link *link; // NULL: this place is free.
    uint64_t since_ms;
    uint64_t number; // Guests are numbered in the order of their arrival.
    uint8_t challenge[LOCKSTEP_NONCE_BYTES]; // The challenge that this rank sent to the guest.
    uint32_t received;
    bool heard; // True if the whole hello has arrived. It is examined once the generation is known.
    uint8_t bytes[LOCKSTEP_HELLO_BYTES];
};

// Accepts all connections that wait.
void guests_accept(struct transport *transport, struct listener *listener);
// Bytes, or the end of the connection, have arrived from a guest.
void guests_ready(struct transport *transport, struct guest *guest);
// Decides on guests that waited for the generation, and refuses those that are too slow.
void guests_tick(struct transport *transport, uint64_t now_ms);
// The time in ms at which guests_tick has something to do; UINT64_MAX: never.
uint64_t guests_deadline(const struct transport *transport);
// Closes the connection of a guest, and counts it as a stranger.
void guest_refuse(struct transport *transport, struct guest *guest);
// Closes the connections of all guests.
void guests_forget(struct transport *transport);

#endif
