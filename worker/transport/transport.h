// SPDX-License-Identifier: Apache-2.0
//
// The seam between the engine and whatever moves bytes between workers. The engine launches
// collectives and joins waves; a transport completes them and reports what happened. Every
// transport passes one conformance suite (tests/conformance/test_transport.c).
//
// Thread: everything is for one thread at a time, the driver, but for the functions marked "any
// thread". The driver changes by transport_disown here and transport_own there, with a lock
// between. The events are called from inside transport_progress; they may launch more.
//
// What a transport guarantees (docs/internals/data-plane.md says how):
// - Partial sums live in scratch. User memory is written in whole elements, with final bytes only.
// - With units: what no rank has used stays as it was on every rank; what some rank has used is
//   written on every rank.
// - After done() the result is in user memory, bit-identical on every rank, and the transport does
//   not touch that memory for this collective any more, as reader or as writer.
// - Any launched collective may run, in whatever order ranks launch them: frames carry their tag.
//   What arrives for a collective not launched here waits within stated bounds, and a receiver
//   never stops reading a connection.
// - What it holds for a peer that is slower is bounded: a sender needs the receiver's credit above
//   LOCKSTEP_EAGER_BYTES.
// - A step of LOCKSTEP_WINDOW collectives in flight allocates nothing: the pools are reserved when
//   the generation forms. More of them let the pools grow, once; transport_reserve does it before.

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

// What the links are like; after formed().
struct transport_links {
    bool shares; // This rank and its mates share memory; true also when it has no mates.
    uint64_t latency_ns; // One way, of a few bytes; the slowest of the links measured. 0: unknown.
    uint64_t bytes_per_s; // Of the slowest link measured, in one direction while all are busy.
};

// Launch and join never fail by themselves: what goes wrong is an event. Their frames leave in the
// next transport_progress; in a world of one they complete there. An allreduce of no elements is a
// barrier: it is done when every rank has launched it.
void transport_launch(struct transport *transport, struct collective *collective);
// A collective that its caller waits for, just before its launch: a small one whose mates are here
// at the same time may be complete at once. True: it is, nothing else happens, and done() does not
// come for it; its times stay as they are. False: it has to be launched now, before anything else.
bool transport_exchange(struct transport *transport, struct collective *collective);
void transport_wave(struct transport *transport, struct wave *wave);

// Does what can be done and waits at most timeout_ms (-1: no bound) for more. Returns after any
// event, and after transport_wake.
void transport_progress(struct transport *transport, int timeout_ms);

// The caller has found that a peer sent what cannot be. The peer is lost with this text.
void transport_blame(struct transport *transport, uint32_t rank, const char *text);

void transport_statistics(const struct transport *transport, struct transport_statistics *out);

// The table of ways that flows are handed.
extern const struct ways transport_ways;
// True if something launched or joined here waits for a frame of that peer, or to it.
bool transport_needs(struct transport *transport, const struct peer_link *peer);
// True if some wave that was joined here waits for a message of this rank, or has one for it.
bool transport_wave_needs(struct transport *transport, uint32_t rank);

#endif
