// SPDX-License-Identifier: Apache-2.0
//
// The life of a transport: open, close, and a generation from forming to its end. Engine thread,
// except functions marked "any thread".

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
// Forgets the generation, without events. Its links must be closed.
void transport_forget(struct transport *transport);
// Opens a transport, which listens from now on. Any thread. Returns 0; -2 if this process lacks
// memory or descriptors; -1 for any other failure. After a failure `error` holds one sentence and
// *transport is NULL.
int transport_open(const struct transport_config *config, struct transport **transport, char *error,
                   size_t error_bytes);
// The address that peers connect to: "tcp:127.0.0.1:40123;unix:0123..." or "loopback:911". Any
// thread. Borrowed until transport_close; it never changes.
const char *transport_address(const struct transport *transport);
// Begins to build the links of a generation; the event formed, form_failed or peer_lost (LOSS_HERE)
// follows. The caller may launch nothing before formed(). Sizes every table for the generation.
// Returns 0, or -1 if memory is missing or the world has no valid peers.
int transport_form(struct transport *transport, const struct transport_world *world);
// Ends the generation after a failure. Forgets all launched collectives and joined waves without
// events, and closes all links at once (a peer sees a reset). After the return the transport does
// not touch user memory, except as worker/transport/device/teardown.h says of devices. May be
// called from an event. transport_form may follow, for another generation.
void transport_abandon(struct transport *transport);
// Ends the generation with a goodbye: sends the queued frames and LEAVE on every link, then waits
// until each peer has closed its side. Blocks until no peer has taken bytes for still_ms, or for
// four round trips of the slowest link if these are longer. Drops what arrives, makes no events,
// and forgets collectives and waves that are not done. Must not be called from an event.
void transport_leave(struct transport *transport, uint64_t still_ms);
// As transport_leave, but for linger_ms at most. lost: true after a rank was lost: NCCL is aborted,
// so devices wait for no other rank.
void transport_retreat(struct transport *transport, uint64_t linger_ms, bool lost);
// Closes the transport and frees it. Any thread, when no thread drives.
void transport_close(struct transport *transport);

#endif
