// SPDX-License-Identifier: Apache-2.0
//
// The listeners of a rank, and what it lacks for links. Engine thread.

#ifndef WORKER_TRANSPORT_DOORS_H
#define WORKER_TRANSPORT_DOORS_H

#include "protos/limits.h"
#include "worker/transport/flow/peers.h"

#include <stdbool.h>
#include <stdint.h>

struct transport;

// The listeners, and what this rank lacks for links.
struct doors {
    struct listener *listener;
    struct listener *mates; // For processes of this host; NULL: there is none.
    char address[LOCKSTEP_ADDRESS_BYTES]; // Of both listeners.
    struct endpoint listener_endpoint;
    struct endpoint mates_endpoint;
    uint64_t listen_ms; // When the listeners are heard again; 0: they are.
    int lack; // The errno for which the last link could not be made here; 0: it could.
    uint64_t lack_ms; // Since when, while there is one.
};

bool doors_is_lack(int number); // True if the errno says that this process or host lacks something.
// A link could not be made, with this errno. Remembers it if this rank lacks something. Returns
// whether that is so.
bool doors_lack(struct transport *transport, int number);
void doors_have(struct transport *transport); // A link was made.
// True if this rank has lacked something for so long that the generation is given up.
bool doors_despair(const struct transport *transport, uint64_t now_ms);
// The listeners are not heard for a while.
void doors_rest(struct transport *transport);
// The listeners are heard from now on. False: they cannot be.
bool doors_open(struct transport *transport);
void doors_tick(struct transport *transport, uint64_t now_ms);
uint64_t doors_deadline(const struct transport *transport);
// The generation did not form. True if this rank lacked something for it: then that was reported.
bool doors_report(struct transport *transport);
// No rank can connect from now on, and no later generation can form. Engine thread.
void transport_close_doors(struct transport *transport);

#endif
