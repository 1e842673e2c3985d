// SPDX-License-Identifier: Apache-2.0
//
// The other ranks to which this rank has a link, and how one of them is lost. How links are made is
// in worker/transport/form.c. Engine thread.
//
// A rank has links to its neighbours (protos/topology.h) from the forming of its generation until
// the end. A *further* link, to another rank, is made when it is first wanted: peer_want. It
// carries frames of ALGORITHM_DIRECT and farewells, and no other frames. It ends with its
// generation.

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
#define PEER_PAUSE_FIRST_MS 1 // Pause after the first attempt to connect that fails.

struct flows;

// Short parts that went one way over this link: worker/transport/direct/ahead.c. The numbers may
// wrap.
struct peer_sends {
    uint32_t sent; // Parts that this rank has sent.
    uint32_t known; // How many of these the peer says it has taken.
    uint32_t taken; // Parts of the peer that this rank has taken.
    uint32_t told; // How many of these this rank has told the peer.
    // While a part waits: when bytes moved between the two last, and what that was found from.
    uint64_t moved_ms;
    uint64_t looked_ms;
    uint64_t received; // Bytes of the peer's stream.
};

// The kind of object that an epoll event points at.
enum endpoint_kind {
    ENDPOINT_WAKE,
    ENDPOINT_LISTENER,
    ENDPOINT_MATES, // The listener for processes of this host.
    ENDPOINT_GUEST,
    ENDPOINT_PEER,
    ENDPOINT_PROCESS, // The process of a mate.
    ENDPOINT_PORT, // An attempt to connect to a data port: ports.h.
};

struct endpoint {
    enum endpoint_kind kind;
};

enum peer_state {
    // No connection yet: this rank connects to the peer at retry_ms, or waits for the peer to
    // connect.
    PEER_WAITING,
    PEER_CONNECTING,
    PEER_MET, // The connection is established; the peer's challenge has not arrived.
    PEER_PROVING, // This rank has sent its hello; the peer's welcome has not arrived.
    PEER_PROVEN, // Both sides have proven membership: the link can be used.
    PEER_GONE,
};

struct peer_link {
    struct endpoint endpoint; // Must be the first field: epoll events point at it.
    struct flows *flows;
    // set when the struct is made, then constant
    uint32_t rank;
    bool further; // True if the peer is no neighbour.
    bool connects; // True if this rank connects to the peer, false if the peer connects.
    // engine thread only
    char address[LOCKSTEP_ADDRESS_BYTES]; // "": not known.
    enum peer_state state;
    bool sought; // A further link: true once this rank has asked for the address, or waits for the
                 // peer.
    char host[LOCKSTEP_HOST_BYTES]; // A further link: host of the peer, for texts. "": not known.
    uint64_t retry_ms;
    // A further link that this rank makes: until this time it tries, in ms.
    uint64_t make_until_ms;
    uint64_t pause_ms; // Pause between two attempts to connect, in ms; grows.
    // Until this time a mate is tried through shared memory, in ms. 0: not tried yet.
    uint64_t mate_until_ms;
    bool left; // True if the peer has sent LEAVE.
    bool frozen; // True if it has, because it has frozen the generation: it is not lost.
    bool lost; // True if the peer is lost, reported or not.
    bool silent; // True if the peer was lost because its host was silent.
    bool impossible; // True if the peer was lost because it sent impossible data.
    bool lack; // True if the peer was lost because this rank lacks memory or descriptors.
    bool reported; // True if the loss was reported.
    // Why the peer was lost, or why the last attempt to connect failed.
    char text[TRANSPORT_TEXT_BYTES];
    // True if the peer is a member with another LOCKSTEP_DATA_ENCRYPTION than this rank.
    bool differs;
    // The last farewell that this peer sent: about itself, or about a rank that was lost.
    struct farewell farewell;
    uint8_t farewell_bytes[FAREWELL_BYTES]; // The farewell that is being received.
    struct hello hello; // What both sides of the connection prove.
    // The proof in the peer's welcome, on a connection that this rank made.
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    uint32_t measured; // Number of MEASURE frames received from this peer.
    uint32_t pinged; // Number of pings of this peer that this rank answered.
    // Number of flows that are not launched here and whose first frame came from this peer.
    uint32_t flows_early;
    uint32_t parkings; // Number of parkings with frames of this peer.
    struct peer_sends sends;
    // State of the link at the last transport_inspect; its still_ms is the time since which it has
    // not changed.
    struct link_state seen;
    struct stream stream;
};

// All links of a rank in this generation.
struct peer_links {
    uint32_t count;
    uint32_t unmade; // Number of further links that are not proven yet.
    // The neighbours come first, in the order of flows.peers. The structs of further links are
    // allocated.
    struct peer_link *all[LOCKSTEP_MAX_LINKS];
    uint16_t places[LOCKSTEP_MAX_WORLD]; // By rank: its index in `all`, plus 1. 0: none.
};

// A ring of ranks: all of the world, or one rank of each host.
struct ring_group {
    uint32_t rank; // This rank's position in the ring.
    uint32_t size;
    struct peer_link *predecessor; // NULL in a ring of one.
    struct peer_link *successor;
};

// The text for a peer that is lost because this rank has no memory for its frames. It is compared
// by address: with this text the peer is not at fault, and the loss is LOSS_HERE.
extern const char peer_no_memory[];
// The same, if this rank has LOCKSTEP_MAX_FURTHER_LINKS.
extern const char peer_no_room[];
// True for these texts.
bool peer_is_own_lack(const char *text);

// Marks the peer as lost. The transport reports the loss once, after the events of all frames that
// had arrived. The text is copied.
void peer_lose(struct peer_link *peer, const char *text);
// As peer_lose, for a peer that sent impossible data (LOSS_IMPOSSIBLE). Its link stays open until
// the job has ended. With one of the texts above the loss is LOSS_HERE.
void peer_lose_impossible(struct peer_link *peer, const char *text);
// This rank has no memory for a collective or a wave: loses the ring successor, or, in a world of
// one, makes the transport report LOSS_HERE of this rank.
void peers_lack(struct flows *flows);
// As peer_lose, for a peer whose host no longer acknowledges data (LOSS_SILENT).
void peer_lose_silent(struct peer_link *peer);
// Returns the link to a rank. NULL: this rank has none.
struct peer_link *peer_of_rank(struct flows *flows, uint32_t rank);
// Returns the link to another rank of the generation, and makes the struct for it if there is none
// yet. The link can be used once peer->state is PEER_PROVEN: frames are queued only from then on,
// and the ways are fed when a link becomes proven. The higher rank connects, so a link is made when
// the higher rank wants it; the lower rank waits for the connection.
//
// NULL: this rank has no memory for the link, or LOCKSTEP_MAX_FURTHER_LINKS of them. Then the loss
// (LOSS_HERE) is recorded already, and the caller does nothing more.
struct peer_link *peer_want(struct flows *flows, uint32_t rank);

// Adds the struct of a neighbour. Neighbours are added before any further link.
struct peer_link *peer_add_neighbour(struct flows *flows, uint32_t rank);
// Adds the struct of a further link. NULL: no memory, or the bound is reached; *text says which.
struct peer_link *peer_add_further(struct flows *flows, uint32_t rank, const char **text);
// True if some link may have data that was not read.
bool peers_readable(const struct flows *flows);
// Forgets all links, whose streams are closed. Pointers to further links are invalid from now on.
void peers_forget(struct flows *flows);

#endif
