// SPDX-License-Identifier: Apache-2.0
//
// The listeners of a rank, and the resource (descriptors, memory) that this rank lacks to make
// links. Engine thread.

#ifndef WORKER_TRANSPORT_DOORS_H
#define WORKER_TRANSPORT_DOORS_H

#include "protos/limits.h"
#include "worker/transport/flow/peers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct transport;

// The listeners, and the resource that this rank lacks to make links.
struct doors {
    struct listener *listener;
    struct listener *mates; // The unix listener for ranks of this host; NULL: none is open.
    char address[LOCKSTEP_ADDRESS_BYTES]; // The address of both listeners, as peers get it.
    struct endpoint listener_endpoint;
    struct endpoint mates_endpoint;
    uint64_t listen_ms; // When epoll watches the listeners again, in ms; 0: it watches them now.
    // The errno with which this rank last failed to make a link; 0: the last link was made.
    int lack;
    uint64_t lack_ms; // Since when `lack` is not 0, in ms.
};

// True if the errno says that this process or host lacks descriptors or memory.
bool doors_is_lack(int number);
// Called when a link could not be made; `number` is the errno. If doors_is_lack(number), remembers
// the errno and returns true; otherwise returns false.
bool doors_lack(struct transport *transport, int number);
// Called when a link was made: forgets the errno of doors_lack.
void doors_have(struct transport *transport);
// True if this rank has lacked descriptors or memory for so long that forming the generation fails.
bool doors_despair(const struct transport *transport, uint64_t now_ms);
// The time in ms from which doors_despair is true; UINT64_MAX: this rank lacks nothing.
uint64_t doors_despair_ms(const struct transport *transport);
// Writes one sentence about the resource that this rank lacks.
void doors_text(const struct transport *transport, char *text, size_t bytes);
// Epoll does not watch the listeners for DOORS_REST_MS. Connections wait in the kernel.
void doors_rest(struct transport *transport);
// Epoll watches the listeners from now on. False: epoll refused them.
bool doors_open(struct transport *transport);
void doors_tick(struct transport *transport, uint64_t now_ms);
uint64_t doors_deadline(const struct transport *transport);
// Called when the generation did not form. If this rank lacked descriptors or memory for its links,
// reports that as a peer_lost event (LOSS_HERE) and returns true.
bool doors_report(struct transport *transport);
// Called when the generation has formed. Closes the listener for ranks of this host, which all are
// neighbours. The TCP listener stays open until the session ends or fails: links to further ranks
// come through it, and a refusal of its port proves that this rank takes part no more.
void transport_settle_doors(struct transport *transport);
// Closes the listeners: no rank can connect from now on, and no later generation can form.
void transport_close_doors(struct transport *transport);

#endif
