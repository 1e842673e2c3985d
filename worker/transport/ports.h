// SPDX-License-Identifier: Apache-2.0
//
// The data ports of neighbours, and of some further ranks. A rank listens until its session ends or
// fails, so a refusal proves that it takes part no more (rule M4 of membership). Only ranks that go
// on after a death look, and only over TCP. Engine thread.

#ifndef WORKER_TRANSPORT_PORTS_H
#define WORKER_TRANSPORT_PORTS_H

#include "protos/limits.h"
#include "worker/transport/flow/peers.h"

#include <stdbool.h>
#include <stdint.h>

struct transport;
struct transport_world;

#define PORTS_AT_ONCE 8 // Attempts to connect at the same time.

struct port {
    struct endpoint endpoint; // Must be the first field: epoll events point at it.
    uint32_t rank;
    bool further; // True if the rank is no neighbour.
    char address[LOCKSTEP_ADDRESS_BYTES];
    bool reached; // True if a connection to it has come to stand.
    bool doubted; // True if the rank may be dead: it is asked again and again.
    bool gone; // True if it has refused a connection after it was reached.
    bool told; // True if that was reported.
    struct link *link; // The present attempt; NULL: none.
    uint64_t due_ms; // When the next attempt begins, or the present one is given up.
    uint64_t pause_ms; // Pause before the next attempt; grows.
};

// The ports of the last generation that formed: a rank that is frozen still looks at them.
struct ports {
    bool met; // True once the generation has formed: each port is reached once.
    uint32_t count;
    uint32_t untold; // Number of ports that are gone and not told.
    uint32_t open; // Number of attempts.
    uint64_t due_ms; // The earliest due_ms.
    struct port all[LOCKSTEP_MAX_NEIGHBOURS + LOCKSTEP_MAX_FURTHER_PORTS];
};

// A generation forms. Ports of the last one are doubted until it has formed. Comes after
// deaths_form: a mate with a pidfd needs no look at its port.
void ports_form(struct transport *transport, const struct transport_world *world);
// The end of the transport: gives all attempts up.
void ports_close(struct transport *transport);
// The link to this rank has ended without a goodbye. Further ranks are doubted soon, too: other
// deaths at the same time have ended no link of this rank.
void ports_doubt(struct transport *transport, uint32_t rank);
// The generation is being frozen: soon all ranks are doubted that have not left in order.
void ports_doubt_all(struct transport *transport);
// epoll has an event for an attempt.
void ports_event(struct transport *transport, struct port *port);
void ports_tick(struct transport *transport, uint64_t now_ms);
uint64_t ports_deadline(const struct transport *transport);
// Makes the event port_closed. Returns false if there is none to make.
bool ports_report(struct transport *transport);

#endif
