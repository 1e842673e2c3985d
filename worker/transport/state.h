// SPDX-License-Identifier: Apache-2.0
//
// The parts of a transport, put together. Each part belongs to the file of its name; a function
// takes the part that it needs. Only files of this folder and tests include it.

#ifndef WORKER_TRANSPORT_STATE_H
#define WORKER_TRANSPORT_STATE_H

#include "worker/transport/descriptors.h"
#include "worker/transport/device/rendezvous.h"
#include "worker/transport/doors.h"
#include "worker/transport/farewell.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/form.h"
#include "worker/transport/headers.h"
#include "worker/transport/measure.h"
#include "worker/transport/wait.h"

struct transport {
    struct flows flows; // First: what the wings below this one know of the transport.
    // set at open, then constant
    enum transport_kind kind;
    uint32_t torn_bytes;
    bool encrypts; // Links that are not in memory.
    // engine thread only, but for what a part says itself
    struct descriptors descriptors;
    struct doors doors;
    struct forming forming;
    struct measure measure;
    struct patience patience;
    struct step_headers headers;
    struct farewells farewells;
    struct rendezvous rendezvous;
    uint64_t checked_ms; // When the links were last asked whether their peers' hosts are silent.
};

// The transport of a peer.
static inline struct transport *transport_of(const struct peer_link *peer)
{
    return (struct transport *)(void *)peer->flows;
}

#endif
