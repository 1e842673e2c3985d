// SPDX-License-Identifier: Apache-2.0
//
// The other ranks that this one has a link to, and how one of them is lost. It is not how links
// come to stand, which is in worker/transport/form.c. Engine thread.

#ifndef WORKER_TRANSPORT_FLOW_PEERS_H
#define WORKER_TRANSPORT_FLOW_PEERS_H

#include "protos/farewell.h"
#include "protos/frame.h"
#include "worker/link/hello.h"
#include "worker/link/link.h"
#include "worker/link/stream.h"

#include <stdbool.h>
#include <stdint.h>

#define TRANSPORT_TEXT_BYTES 192

struct flows;

// What an epoll event points at.
enum endpoint_kind {
    ENDPOINT_WAKE,
    ENDPOINT_LISTENER,
    ENDPOINT_MATES, // The listener for processes of this host.
    ENDPOINT_GUEST,
    ENDPOINT_PEER,
};

struct endpoint {
    enum endpoint_kind kind;
};

enum peer_state {
    PEER_WAITING, // This rank connects to it at retry_ms, or it connects to this rank.
    PEER_CONNECTING,
    PEER_MET, // The connection stands; the peer's challenge has not come.
    PEER_PROVING, // This rank's hello is on its way; the peer's welcome has not come.
    PEER_PROVEN, // The link stands in both directions.
    PEER_GONE,
};

struct peer_link {
    struct endpoint endpoint; // First.
    struct flows *flows;
    // set at transport_form, then constant
    uint32_t rank;
    bool connects; // True if this rank connects to the peer, false if the peer connects.
    char address[LOCKSTEP_ADDRESS_BYTES];
    // engine thread only
    enum peer_state state;
    uint64_t retry_ms;
    uint64_t pause_ms; // Between attempts; grows.
    uint64_t mate_until_ms; // A mate is tried through memory until then. 0: no attempt yet.
    bool left; // True if the peer said goodbye.
    bool lost; // True if the peer is lost, reported or not.
    bool silent; // True if it was lost because its host was silent.
    bool impossible; // True if it was lost because it sent what cannot be.
    bool lack; // True if it was lost because this rank lacks something.
    bool reported; // True if the loss was reported.
    char text[TRANSPORT_TEXT_BYTES]; // Why it was lost, or the last attempt failed.
    bool differs; // True if it is a member that is configured otherwise than this rank.
    struct farewell farewell; // The last one received: about the peer's end, or another rank's.
    uint8_t farewell_bytes[FAREWELL_BYTES]; // The one that is being received.
    struct hello hello; // What both sides of the connection prove.
    uint8_t proof[LOCKSTEP_PROOF_BYTES]; // The peer's, on a connection that this rank made.
    uint32_t measured; // Frames by which the peer measured, or was measured.
    uint32_t pinged; // Pings among them that were answered.
    uint32_t flows_early; // Flows that this peer announced first and that are not launched here.
    uint32_t parkings; // Parkings that hold its frames.
    struct link_state seen; // At the last transport_inspect; still_ms: since when it is so.
    struct stream stream;
};

// A ring of ranks: all of the world, or one rank of each host.
struct ring_group {
    uint32_t rank; // Position in it.
    uint32_t size;
    struct peer_link *predecessor; // NULL in a ring of one.
    struct peer_link *successor;
};

// The text, by its address, when this rank has no memory for what a peer needs: the peer is not at
// fault then, and the loss is LOSS_HERE.
extern const char peer_no_memory[];

// Marks the peer as lost. The transport reports it once, after the events of all that had arrived.
// The text is copied.
void peer_lose(struct peer_link *peer, const char *text);
// The same for a peer that sent what cannot be. Its link stays open until the job has ended. With
// peer_no_memory as text nothing is wrong with the peer.
void peer_lose_impossible(struct peer_link *peer, const char *text);
// The same for a peer whose host acknowledges nothing.
void peer_lose_silent(struct peer_link *peer);
// NULL: this rank has no link to that rank.
struct peer_link *peer_of_rank(struct flows *flows, uint32_t rank);

#endif
