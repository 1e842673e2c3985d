// SPDX-License-Identifier: Apache-2.0
//
// The life of a transport: open, close, and a generation from forming to its end. Engine thread,
// but for what is marked "any thread".

#ifndef WORKER_TRANSPORT_LIFECYCLE_H
#define WORKER_TRANSPORT_LIFECYCLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct peer_link;
struct transport;
struct transport_config;
struct transport_world;

void transport_close_stream(struct peer_link *peer, bool reset);
// Starts to listen. Any thread. 0, or with a sentence in error -1, or -2 when memory or descriptors
// are missing here.
int transport_open(const struct transport_config *config, struct transport **transport, char *error,
                   size_t error_bytes);
// "tcp:127.0.0.1:40123;unix:0123...", "loopback:911". Any thread, constant.
const char *transport_address(const struct transport *transport);
// Begins to build the links of a generation; formed() or form_failed() follows. Before formed()
// nothing may be launched. Sizes every table for the generation.
int transport_form(struct transport *transport, const struct transport_world *world);
// Forgets everything launched and joined, without events; user memory is not touched any more when
// it returns, but for what worker/transport/device/devices.h says of devices. Links are closed at
// once (a peer sees a reset). For failures; also from an event. transport_form may follow, for
// another generation.
void transport_abandon(struct transport *transport);
// Says goodbye: sends what is queued and a last frame on every link, then waits until the peers
// have taken it and ended their side. Blocks for linger_ms at most, drops what arrives, makes no
// events, and forgets what was not done. Not from an event.
void transport_leave(struct transport *transport, uint64_t linger_ms);
// The same after a rank was lost: peers are told why, and devices wait for no rank.
void transport_retreat(struct transport *transport, uint64_t linger_ms);
void transport_close(struct transport *transport); // Frees. Any thread, when no thread drives.

#endif
