// SPDX-License-Identifier: Apache-2.0
//
// Waves: small allreduces of opaque payloads, independent of the collectives. Driver thread.

#ifndef WORKER_TRANSPORT_FLOW_WAVES_H
#define WORKER_TRANSPORT_FLOW_WAVES_H

#include "base/list.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct stream;
struct flows;
struct wave;

// One payload of a wave that has arrived or is being sent.
struct wave_block {
    struct list arrived; // In flow_waves.arrived.
    uint64_t step;
    uint32_t kind;
    uint32_t round;
    uint32_t rank; // Sender.
    uint32_t size;
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
};

struct wave_state {
    struct list joined; // In flow_waves.joined or .done.
    struct wave *wave;
    uint32_t move;
    bool sent; // True if this rank has sent its value in the present move.
};

void wave_join(struct flows *flows, struct wave *wave);
const char *wave_begin(struct peer_link *peer, struct stream *stream);
const char *wave_end(struct peer_link *peer, struct stream *stream);
struct wave *wave_next_done(struct flows *flows);
bool wave_needs(struct flows *flows, const struct peer_link *peer);
void wave_forget(struct flows *flows);
#endif
