// SPDX-License-Identifier: Apache-2.0
//
// The interface between the engine and the transport, which moves bytes between workers. The engine
// launches collectives and joins waves; a transport completes them and reports what happened. Every
// transport passes one conformance suite (tests/conformance/test_transport.c).
//
// Thread: one thread at a time, the driver, may call these functions, except those marked "any
// thread". Another thread becomes the driver when the old one calls transport_disown and the new
// one transport_own, with a lock between. The events are called from inside transport_progress;
// they may launch collectives.
//
// What a transport guarantees (docs/internals/data-plane.md says how):
// - Partial sums are kept in scratch. User memory is written in whole elements, with final bytes
//   only.
// - With units: a unit that no rank has used stays as it was on every rank; a unit that some rank
//   has used is written on every rank.
// - After done() the result is in user memory, bit-identical on every rank, and the transport does
//   not touch that memory for this collective any more, as reader or as writer.
// - Ranks may launch collectives in different orders: frames carry the tag of their collective.
//   Frames for a collective that is not launched here wait, and their number is bounded; a receiver
//   never stops reading a connection.
// - The memory held for a slower peer is bounded: above LOCKSTEP_EAGER_BYTES a sender needs the
//   receiver's credit.
// - A step of LOCKSTEP_WINDOW collectives in flight allocates nothing: the pools are reserved when
//   the generation forms. More collectives let the pools grow once; transport_reserve grows them in
//   advance.

#ifndef WORKER_TRANSPORT_TRANSPORT_H
#define WORKER_TRANSPORT_TRANSPORT_H

#include "protos/frame.h"
#include "protos/tuning.h"
#include "protos/types.h"
#include "worker/transport/flow/collective.h"
#include "worker/transport/flow/events.h"
#include "worker/transport/flow/wave.h"

#include <stdbool.h>
#include <stddef.h>

struct peer_link;
struct transport; // Opaque.

// How fast the links are; valid after formed().
struct transport_links {
    bool shares; // True if this rank shares memory with its mates, or has no mates.
    // One-way latency of a few bytes, on the slowest link measured. 0: unknown.
    uint64_t latency_ns;
    // Bandwidth of the slowest link measured, in one direction while all links are busy. 0:
    // unknown.
    uint64_t bytes_per_s;
};

// Launches a collective. Cannot fail: later failures are events. The frames leave in the next
// transport_progress; in a world of one the collective completes there. An allreduce of no elements
// is a barrier: it is done when every rank has launched it.
void transport_launch(struct transport *transport, struct collective *collective);
// Called just before the launch of a collective that its caller waits for: a small collective can
// be exchanged with mates that call this at the same time. True: the collective is complete,
// without a launch and without done(), and its first_sent_us and last_received_us are unchanged.
// False: the caller must launch it next, before any other call.
bool transport_exchange(struct transport *transport, struct collective *collective);
void transport_wave(struct transport *transport, struct wave *wave);
// Calls take for each collective that a peer has begun and that this rank has not launched, in the
// order in which their first frames arrived, until take returns true. `rank` has sent the first
// frame. take must not launch. Returns true if take did. Else the event `arrived` follows once.
bool transport_arrivals(struct transport *transport,
                        bool (*take)(void *context, uint32_t rank,
                                     const struct collective_tag *tag),
                        void *context);

// Sends, receives and reduces what it can, and waits at most timeout_ms (-1: no bound) for more.
// Returns after any event, and after transport_wake.
void transport_progress(struct transport *transport, int timeout_ms);

// Called when the caller finds that a peer sent impossible data. The peer is lost (LOSS_IMPOSSIBLE)
// with this text, which is copied.
void transport_blame(struct transport *transport, uint32_t rank, const char *text);

void transport_statistics(const struct transport *transport, struct transport_statistics *out);

// The ways of reducing of this transport; struct flows gets a pointer to them.
extern const struct ways transport_ways;
// True if a collective or wave of this rank waits for a frame from that peer, or has one to send to
// it.
bool transport_needs(struct transport *transport, const struct peer_link *peer);
// Reports the end of a collective on devices. False: none has ended.
bool transport_report_devices(struct transport *transport);
// True if a wave that this rank has joined waits for a message from `rank`, or has one to send to
// it.
bool transport_wave_needs(struct transport *transport, uint32_t rank);

#endif
