// SPDX-License-Identifier: Apache-2.0
//
// Waves: small allreduces of opaque payloads, beside the collectives. Driver thread.

#ifndef WORKER_TRANSPORT_FLOW_WAVES_H
#define WORKER_TRANSPORT_FLOW_WAVES_H

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct stream;
struct transport;
struct wave;

void wave_join(struct transport *transport, struct wave *wave);
const char *wave_begin(struct peer_link *peer, struct stream *stream);
const char *wave_end(struct peer_link *peer, struct stream *stream);
struct wave *wave_next_done(struct transport *transport);
bool wave_needs(struct transport *transport, const struct peer_link *peer);
void wave_forget(struct transport *transport);
// Whether some wave that was joined here waits for a message of this rank, or has one for it.
bool transport_wave_needs(struct transport *transport, uint32_t rank);

#endif
