// SPDX-License-Identifier: Apache-2.0
//
// The events that the transport reports to its owner, and its configuration and world, which the
// owner sets. Pure: types, no functions. The driver thread calls the events from inside
// transport_progress.

#ifndef WORKER_TRANSPORT_FLOW_EVENTS_H
#define WORKER_TRANSPORT_FLOW_EVENTS_H

#include "protos/farewell.h"
#include "protos/tuning.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct device;
struct regions;
struct step_header;
struct wave;

enum transport_kind {
    TRANSPORT_TCP = 0, // TCP, and shared memory between mates if transport_config.shares is true.
    TRANSPORT_LOOPBACK = 1, // In-process pipes, for tests: ranks are threads of one process.
};

// How a peer was lost.
enum peer_loss {
    LOSS_ENDED, // Its link ended without a LEAVE frame.
    LOSS_LEFT, // It sent LEAVE before its link ended.
    LOSS_SILENT, // Its host no longer acknowledges data: the host or the network is down.
    LOSS_IMPOSSIBLE, // It sent impossible data. Its link stays open.
    LOSS_HERE, // The peer is not at fault: this rank lacks memory or descriptors, as the text says.
};

struct transport_events {
    // Every link of the generation is proven in both directions and measured.
    void (*formed)(void *context);
    void (*done)(void *context, struct collective *collective);
    void (*wave_done)(void *context, struct wave *wave);
    // A step header of the ring predecessor has arrived. A world of one has no predecessor and no
    // such event. note: note_bytes of it came with the header; borrowed for the call.
    void (*header)(void *context, const struct step_header *header, const uint8_t *note,
                   uint32_t note_bytes);
    // A link ended, or the peer broke the protocol ("sent an impossible frame (reduce): ...").
    // After a goodbye (LOSS_LEFT) this is reported only when a collective or wave of this rank
    // waits for a frame from that peer or to it. If a collective can never end because a rank has
    // left, the successor of that rank always gets this event; other ranks may not. text is a short
    // fact: "connection reset by peer". LOSS_HERE: this rank lacks what the text names; `rank` may
    // be any rank, also this one. At most once per peer, and after the events of everything that
    // arrived before.
    void (*peer_lost)(void *context, uint32_t rank, enum peer_loss loss, const char *text);
    // The process of a mate is gone, by its pidfd. This rank had no link to it, or has reported the
    // loss before the proof came. May be NULL.
    void (*mate_gone)(void *context, uint32_t rank);
    // The data port of a rank refuses connections, and was reached before: its process is gone, or
    // it has left if it is no neighbour. May be NULL.
    void (*port_closed)(void *context, uint32_t rank);
    // Rank `from` tells that some rank was lost, to which this rank may have no link. Once for each
    // lost rank; this rank has already passed the news on to its other peers. May be NULL.
    void (*told)(void *context, uint32_t from, const struct farewell *farewell);
    // A frame for this collective carries another signature: ranks disagree. Once per collective,
    // which is never done() after that. At least one of two neighbours that disagree gets this
    // event.
    void (*mismatch)(void *context, struct collective *collective, uint32_t rank, const char *text);
    // Forming failed: `rank` could not be reached in time. If `rank` is this rank, its device or
    // NCCL failed.
    void (*form_failed)(void *context, uint32_t rank, const char *text);
    // Forming failed: `rank` is a member, and its LOCKSTEP_DATA_ENCRYPTION is not this rank's.
    // Reported instead of form_failed.
    void (*encryption_differs)(void *context, uint32_t rank);
    // Further links to these ranks are wanted, and the transport does not know their addresses: the
    // owner passes each to transport_reach, now or later. At most LOCKSTEP_REACH_RANKS ranks, and
    // no rank twice in a generation. May be NULL.
    void (*reach)(void *context, const uint32_t *ranks, uint32_t count);
    // A peer has begun a collective that this rank has not launched, or a peer has left. Once after
    // each call of transport_arrivals that asked for it. May be NULL.
    void (*arrived)(void *context);
    // All work of a collective on this rank's device is enqueued: work that the caller enqueues
    // after device_stream_follow from now on sees the results. done() follows, with the used bits
    // and the weight. May be NULL.
    void (*enqueued)(void *context, struct collective *collective);
    // Every rank has done its part of a collective with `behind`, and the result waits only for the
    // events that `behind` names. Until then the collective delays no other one. done() follows.
    // May be NULL.
    void (*summed)(void *context, struct collective *collective);
    // This rank's device, or NCCL on it, has failed: collectives on it are never done. At most once
    // in a generation. The text is a fact: "cuLaunchKernel: an illegal memory access was
    // encountered". The death of another rank can be the cause, even if no event has reported it.
    void (*device_failed)(void *context, const char *text);
    void *context;
};

struct transport_world {
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    uint32_t chunk_bytes; // Payload of a ring frame: a multiple of 8, at most LOCKSTEP_FRAME_BYTES.
    struct locality locality; // All zero: no rank shares a host with another.
    // Number of ranks that may use this rank's cores; 0: all ranks of this host.
    uint32_t core_ranks;
    uint64_t devices[LOCKSTEP_MAX_WORLD / 64]; // One bit per rank: it has a device.
    // True if, in a world where some ranks have no device, the ranks with one sum by NCCL first.
    // Equal on all ranks.
    bool devices_meet;
    // True if the hosts reduce all collectives on devices, never NCCL. A later generation has it if
    // the first one had no NCCL: plans were made for that. Equal on all ranks.
    bool by_hosts;
    uint8_t secret[LOCKSTEP_SECRET_BYTES]; // Ranks authenticate each other by this secret.
    uint32_t peer_count;
    const struct peer *peers; // The neighbours of this rank (protos/topology.h); copied.
    // [further_count]: data ports of other ranks, if the caller may freeze a generation; copied.
    const struct data_port *further;
    uint32_t further_count;
    uint64_t form_timeout_ms;
};

struct transport_statistics {
    uint64_t bytes_sent; // Bytes on the wire, with frame headers.
    uint64_t bytes_received;
    uint64_t payload_bytes_sent; // Payload bytes of collectives only.
    // Result bytes copied from scratch to user memory; 0 if all units are used and final bytes have
    // the dtype of memory.
    uint64_t bytes_copied;
    uint64_t frames_sent;
    uint64_t frames_parked_max; // Highest number of frames that waited for a launch.
    uint64_t scratch_bytes; // Bytes of the scratch pool, in use or free.
    // Number of connections refused because they did not prove membership.
    uint64_t strangers_refused;
    uint64_t allocations; // Number of allocations so far.
    // How often this rank moved to another core because a mate shared its core.
    uint64_t core_moves;
    // Collectives through shared slots: filled through the caches [0], and past them [1].
    uint64_t runs_filled[2];
    uint32_t memory_links; // Number of links of this generation that go through shared memory.
};

struct transport_config {
    enum transport_kind kind;
    const char *host; // TCP: numeric address to listen on and to advertise; borrowed.
    uint16_t port_first; // 0: any port.
    uint16_t port_last;
    struct regions *regions; // Registered regions of the caller's memory; borrowed. NULL: none.
    // True if the caller may freeze a generation. Equal on all ranks.
    bool recovers;
    // How long transport_freeze waits for a rank that is inside of this rank's memory, in ms. Then
    // this rank makes its memory private. 0: 1000 ms.
    uint64_t fence_ms;
    struct device *device; // This rank's first device; borrowed. NULL: none.
    // [further_count]: this rank's other devices, for replicas; borrowed.
    struct device *const *further;
    uint32_t further_count;
    uint64_t abort_ms; // How many ms NCCL may take to abort a communicator. 0: 5000.
    uint64_t
        // Bytes of one segment of the copies from a device to the host and back. 0: 2 MiB.
        segment_bytes;
    bool shares; // TCP: true if links to mates go through shared memory where possible.
    // Loopback: most bytes of one read or write; 0: no limit. For tests of the rule that user
    // memory is written in whole elements.
    uint32_t torn_bytes;
    // The latency and bandwidth that the links are assumed to have. latency_ns 0: links are
    // measured.
    uint64_t latency_ns;
    uint64_t bytes_per_s;
    enum slot_fill slot_fill; // The value of the lowest rank of the host is used.
    bool encrypts; // True if links other than shared memory are encrypted. Equal on all ranks.
    struct transport_events events;
};

#endif
