// SPDX-License-Identifier: Apache-2.0
//
// A wave as its caller describes it: a payload that all ranks merge. Driver thread.

#ifndef WORKER_TRANSPORT_FLOW_WAVE_H
#define WORKER_TRANSPORT_FLOW_WAVE_H

#include "protos/limits.h"

#include <stdint.h>

struct wave_origin; // worker/transport/flow/wave_schedule.h

// A wave: a small allreduce of an opaque payload whose merge is exact, commutative and
// associative. Runs beside the collectives and ahead of their queued frames.
struct wave {
    // Set by the caller, constant until wave_done().
    uint64_t step;
    // enum wave_kind of worker/order/order.h; (step, kind) is unique in a generation.
    uint32_t kind;
    uint32_t size; // Bytes of payload, at most LOCKSTEP_WAVE_BYTES, equal on all ranks.
    void (*merge)(void *into, const void *from); // Pure.
    // Says what is impossible about a payload of a peer; NULL: it can be. Pure. Asked before the
    // payload is used. `origin` names the ranks whose contributions it holds, `own` is what this
    // rank holds so far. Of two payloads that can be, of different ranks, the merged one can be:
    // so the peer that sent an impossible one is the one that lies. NULL: no payload is impossible.
    const char *(*check)(const void *context, const struct wave_origin *origin, const void *payload,
                         const void *own);
    const void *context; // Of check; borrowed until wave_done().
    const char *name; // For a person.
    // In: this rank's contribution. Out: the merged payload of all ranks.
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
    void *state; // The transport's, while joined.
};

#endif
