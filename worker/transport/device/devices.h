// SPDX-License-Identifier: Apache-2.0
//
// Collectives whose memory is on devices, as the rest of the transport sees them, and the ways in
// which they go. Only files of the transport include it. docs/internals/data-plane.md, "Devices",
// says why it is so.

#ifndef WORKER_TRANSPORT_DEVICE_DEVICES_H
#define WORKER_TRANSPORT_DEVICE_DEVICES_H

#include "worker/transport/transport.h"

#include <stdbool.h>
#include <stdint.h>

// How a collective goes on this rank. Whether NCCL carries it is a function of what all ranks know
// alike, so that none has to ask; whether its memory goes through the host is this rank's own
// matter, and the others do not notice.
enum device_way {
    DEVICE_WAY_HOST, // Its memory is on this host.
    // Ranks with a device copy to the host, take part in a collective of all hosts, and copy back.
    // Any kind, dtype, operation and world; the bits are those of a job without devices.
    DEVICE_WAY_STAGED,
    // Every rank has a device: NCCL between them. Sums and means of floats. These are launched in
    // one order on all ranks.
    DEVICE_WAY_NCCL,
    // Two or more ranks have a device, others have none: NCCL sums between devices, each of which
    // takes a share of the sum to its host, and all hosts reduce that as STAGED. Launched in one
    // order on the ranks that have a device.
    DEVICE_WAY_MIXED,
};

enum device_way device_way_of(const struct transport_world *world,
                              const struct collective *collective);
// How many ranks of the world have a device.
uint32_t device_ranks(const struct transport_world *world);

// ---- for worker/transport/transport.c -----------------------------------------------------------

struct transport;
struct peer_link;

// With transport->devices NULL, on a rank without a device, none of these does anything.
int devices_open(struct transport *transport, const struct transport_config *config);
void devices_close(struct transport *transport);
// A generation begins.
void devices_form(struct transport *transport);
// Whether the communicator stands, or none is needed. All links stand.
bool devices_formed(const struct transport *transport);
// Why it never will; NULL.
const char *devices_form_failed(const struct transport *transport);
// The wave that tells how to meet. Whether it was that one.
bool devices_wave_done(struct transport *transport, const struct wave *wave);

void devices_launch(struct transport *transport, struct collective *collective,
                    enum device_way way);
// Looks at what devices have done since, without waiting.
void devices_work(struct transport *transport);
// One event. Whether there was one.
bool devices_report(struct transport *transport);
// The collective of which this one is the part that hosts carry; NULL: it is one by itself.
struct collective *devices_outer(struct transport *transport, const struct collective *collective);
void devices_travelled(struct transport *transport, const struct collective *collective);
// Whether something launched here waits for what that peer, which has said goodbye, may not have
// done.
bool devices_needs(struct transport *transport, const struct peer_link *peer);
bool devices_idle(const struct transport *transport);
// When to look again although nobody wakes the driver; UINT64_MAX: not before that.
uint64_t devices_deadline(const struct transport *transport, uint64_t now_ms);
// Forgets what was launched. in_order: the other ranks leave, too; else NCCL is given up. User
// memory is not written any more when it returns, and not read, unless a stream of the trainer has
// not made its gradients yet: what waits for that may read them when it has.
void devices_forget(struct transport *transport, bool in_order);

#endif
