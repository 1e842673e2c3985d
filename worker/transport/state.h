// SPDX-License-Identifier: Apache-2.0
//
// struct transport: all parts of a transport. Each part belongs to the file of its name. Only files
// of this folder and tests include this header.

#ifndef WORKER_TRANSPORT_STATE_H
#define WORKER_TRANSPORT_STATE_H

#include "worker/transport/descriptors.h"
#include "worker/transport/device/rendezvous.h"
#include "worker/transport/doors.h"
#include "worker/transport/farewell.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/form.h"
#include "worker/transport/freeze.h"
#include "worker/transport/headers.h"
#include "worker/transport/measure.h"
#include "worker/transport/ports.h"
#include "worker/transport/redo.h"
#include "worker/transport/wait.h"

struct transport {
    // First: the part of the transport that flow/, ring/, pair/, host/ and device/ may use.
    struct flows flows;
    // set at open, then constant
    enum transport_kind kind;
    uint32_t torn_bytes;
    bool encrypts; // True if links other than shared memory are encrypted.
    // engine thread only, except where a part says otherwise
    struct descriptors descriptors;
    struct doors doors;
    struct forming forming;
    struct measure measure;
    struct patience patience;
    struct step_headers headers;
    struct farewells farewells;
    struct rendezvous rendezvous;
    struct freezer freezer;
    struct redos redos;
    struct ports ports;
    // Number of ranks on this rank's cores if host_leads was true when the engine thread fell
    // asleep last; else 0. Any thread may read it.
    _Atomic uint32_t unawaited_ranks;
    uint64_t checked_ms; // When this rank last checked its links for silent hosts, in ms.
};

static inline struct transport *transport_of(const struct peer_link *peer)
{
    return (struct transport *)(void *)peer->flows;
}

#endif
