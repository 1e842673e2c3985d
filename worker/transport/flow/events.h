// SPDX-License-Identifier: Apache-2.0
//
// What the transport reports to its owner, and what the owner tells it: the configuration, the
// world. Pure: types, no functions. The driver thread calls the events from inside
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
    TRANSPORT_TCP = 0, // And shared memory between mates, where `shares` allows it.
    TRANSPORT_LOOPBACK = 1, // In-process pipes, for tests: ranks are threads of one process.
};

// How a peer was lost.
enum peer_loss {
    LOSS_ENDED, // Its link ended.
    LOSS_LEFT, // It said goodbye first.
    LOSS_SILENT, // Its host acknowledges nothing any more: it, or the network between.
    LOSS_IMPOSSIBLE, // It sent what cannot be; its link stands.
    LOSS_HERE, // Nothing is wrong with it: this rank lacks memory or descriptors, as the text says.
};

struct transport_events {
    // Every link of the generation stands in both directions, and was measured.
    void (*formed)(void *context);
    void (*done)(void *context, struct collective *collective);
    void (*wave_done)(void *context, struct wave *wave);
    // From the ring predecessor (from this rank itself in a world of one: not reported). note:
    // note_bytes that it sent along, borrowed for the call.
    void (*header)(void *context, const struct step_header *header, const uint8_t *note,
                   uint32_t note_bytes);
    // A link ended, or the peer broke the protocol ("sent an impossible frame (reduce): ...").
    // After a goodbye (LOSS_LEFT) this is reported only when something launched or
    // joined here waits for a frame of that peer or to that peer. Of a collective that can never
    // end because a rank has left, the successor of that rank always finds out; other ranks may
    // not. text is a short fact: "connection reset by peer". LOSS_HERE: this rank itself lacks what
    // the text names, and rank may be any, also its own. At most once per peer, and after the
    // events of everything that had arrived before.
    void (*peer_lost)(void *context, uint32_t rank, enum peer_loss loss, const char *text);
    // Rank `from` tells that some rank was lost, which this one may not even know. Once for each
    // rank; it was passed on to all other peers. May be NULL.
    void (*told)(void *context, uint32_t from, const struct farewell *farewell);
    // A frame for this collective carries another signature: ranks disagree. Once per collective,
    // which is never done() after that. Of two neighbours that disagree one at least is told.
    void (*mismatch)(void *context, struct collective *collective, uint32_t rank, const char *text);
    // Forming failed: a peer could not be reached in time. Of this rank itself: the device or NCCL
    // could not do its part.
    void (*form_failed)(void *context, uint32_t rank, const char *text);
    // All that a collective on devices does on this rank's device is enqueued: what is enqueued
    // behind device_stream_follow from now on finds its results. done() follows, with the used bits
    // and the weight. May be NULL.
    void (*enqueued)(void *context, struct collective *collective);
    // Every rank has done its part of a collective with `behind`, and its result waits only for
    // what that is told: it is in no other one's way until then. done() follows. May be NULL.
    void (*summed)(void *context, struct collective *collective);
    // This rank's device, or NCCL on it, has failed: collectives on it are never done. At most once
    // in a generation. The text is a fact: "cuLaunchKernel: an illegal memory access was
    // encountered". Another rank's death can be its cause, and is not told first.
    void (*device_failed)(void *context, const char *text);
    void *context;
};

struct transport_world {
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    uint32_t chunk_bytes; // Payload of a ring frame: a multiple of 8, at most LOCKSTEP_FRAME_BYTES.
    struct locality locality; // All zero: no rank shares a host with another.
    uint32_t core_ranks; // Ranks that may use the cores of this one; 0: those of its host.
    uint64_t devices[LOCKSTEP_MAX_WORLD / 64]; // By rank: it has a device.
    bool devices_meet; // Where some ranks have none: the others sum by NCCL first. Equal on all.
    uint8_t secret[LOCKSTEP_SECRET_BYTES]; // Members prove to each other that they know it.
    uint32_t peer_count;
    const struct peer *peers; // Copied. The neighbours of topology.h.
    uint64_t form_timeout_ms;
};

struct transport_statistics {
    uint64_t bytes_sent; // On the wire, headers included.
    uint64_t bytes_received;
    uint64_t payload_bytes_sent; // Collectives only.
    uint64_t bytes_copied; // Results copied from scratch to user memory; 0 when all of it is used,
                           // and final bytes travel as they are.
    uint64_t frames_sent;
    uint64_t frames_parked_max; // Highest number of frames that waited for a launch.
    uint64_t scratch_bytes; // Held in the scratch pool, in use or not.
    uint64_t strangers_refused; // Connections that did not prove membership.
    uint64_t allocations; // Calls to the allocator so far.
    uint64_t core_moves; // This rank went to another core, away from others of its host.
    uint64_t runs_filled[2]; // Through slots: those filled through the caches, and past them.
    uint32_t memory_links; // Links of this generation that go through memory.
};

struct transport_config {
    enum transport_kind kind;
    const char *host; // TCP: numeric address to listen on and to advertise; borrowed.
    uint16_t port_first; // 0: any port.
    uint16_t port_last;
    struct regions *regions; // Regions of the caller's memory; borrowed. NULL: none.
    struct device *device; // This rank's, the first of them; borrowed. NULL: none.
    struct device *const *further; // [further_count]: the others, for replicas; borrowed.
    uint32_t further_count;
    uint64_t abort_ms; // How long NCCL may take to give up a communicator. 0: 5000.
    uint64_t
        segment_bytes; // Segment of a row that goes from a device to the host and back. 0: 2 MiB.
    bool shares; // TCP: links to mates go through memory where that is possible.
    uint32_t torn_bytes; // Loopback: at most so many bytes per read and write, 0: no limit. For
                         // tests of the rule that memory is written in whole elements.
    // What the links are taken for instead of measuring them. 0: they are measured.
    uint64_t latency_ns;
    uint64_t bytes_per_s;
    enum slot_fill slot_fill; // The lowest rank's counts.
    bool encrypts; // Links that are not in memory. Equal on all ranks.
    struct transport_events events;
};

#endif
