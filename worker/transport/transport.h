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

struct frame_header;
struct out_frame;
struct peer_link;

#include "protos/farewell.h"
#include "protos/types.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum reduce_op {
    REDUCE_SUM = 0,
    REDUCE_MEAN = 1, // sum(w g) / sum(w), one division at the owner. Floating point only.
    REDUCE_MIN = 2,
    REDUCE_MAX = 3,
    REDUCE_OR = 4, // Integers only.
};

enum collective_kind {
    COLLECTIVE_ALLREDUCE = 0,
    COLLECTIVE_BROADCAST = 1,
};

// A run of elements in user memory. in == NULL contributes virtual zeros; out == NULL drops the
// result. Usually both are the same pointer. Any alignment that the dtype allows.
struct extent {
    const void *in;
    void *out;
    uint64_t elements;
};

// Gradients that a stream of the trainer produces: what has to have happened before they are read.
struct device_ready {
    void *event; // Recorded on the stream behind the last of them.
    void *stream; // For a person.
    uint32_t parameter; // The one that was reported last, for a person.
    bool pending; // The event was recorded for this collective.
};

// What results have to come behind where a rank has reported nothing: nobody has named the streams
// that may still write there. The trainer says so late, when it waits for results.
struct device_behind {
    // One for each of this rank's devices. Borrowed until done(). NULL: not said yet.
    _Atomic(const struct device_ready *) ready;
};

// One of several replicas of what a collective on devices reduces: the same elements and units, in
// memory of its own. Of a unit that it does not contribute to, `in` is NULL.
struct collective_replica {
    struct device *device; // Extents are addresses of this device.
    const struct extent *extents; // [extent_count]
    uint32_t extent_count;
    const struct device_ready *ready; // [ready_count], events of that device.
    uint32_t ready_count;
};

// What pairs the frames of one collective across ranks. Unique in its generation.
struct collective_tag {
    uint64_t step;
    uint64_t space; // Hash of the plan, or of a plain collective's name.
    uint32_t slot; // Index in the plan, or the sequence number of that name.
};

struct collective {
    // Set by the caller before the launch, constant until done().
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root; // COLLECTIVE_BROADCAST: the rank whose bytes go to all.
    enum plan_algorithm algorithm; // Equal on all ranks. Broadcasts: RING or SHARED.
    struct collective_tag tag;
    uint64_t signature; // Hash of what must be equal on all ranks; carried by every frame.
    const struct extent *extents; // Borrowed until done().
    uint32_t extent_count;
    uint64_t elements; // Sum over the extents. May be 0: then done() comes all the same.
    uint64_t weight; // REDUCE_MEAN: samples behind the input. 0 contributes nothing.
    bool input_is_sum; // REDUCE_MEAN: the input is already w g; nothing is multiplied.
    bool input_counts; // Of an input_is_sum: it counts with weight 0, too. It is a sum over several
                       // ranks, whose weights they bring themselves.
    // How sums and means travel where that is not as they are: docs/numbers.md. Equal on all ranks.
    // float32 with both bfloat16; a 16-bit float with partial float32. DTYPE_NONE: dtype.
    enum dtype partial; // Of partial sums.
    enum dtype final; // Of final bytes.
    int exponent; // float16 without partial: contributions are multiplied by 2^exponent.
    // Units (worker/memory/units.h): the parameters inside. COLLECTIVE_ALLREDUCE only; equal on all
    // ranks.
    const uint64_t *unit_ends; // [unit_count], borrowed until done().
    uint32_t unit_count; // 0: no units, all outputs are written.
    void *context; // The caller's.
    // Where its memory is. on_devices: agreed, part of the signature; every rank that has a device
    // has it there, and where NCCL carries it all launch it in one order. Else a rank whose memory
    // is on its device is not noticed by the others.
    bool on_devices;
    struct device *device; // Extents are addresses of this device. NULL: memory of the host.
    const struct device_ready *ready; // [ready_count], borrowed until done().
    uint32_t ready_count;
    // Borrowed until done(). On a device nothing is written where there is no input before this is
    // said and has happened; the rest of the collective does not wait. NULL: before that, too.
    const struct device_behind *behind;
    // How many of its elements, from the first, may be read and written; it grows up to `elements`,
    // and flow_landed is told. Only where flow_follows says so (worker/transport/flow/flows.h).
    // NULL: all.
    const uint64_t *landed;
    // Replicas on this rank's devices, the first one too: what they contribute is added up, from
    // the first to the last, divided by replica_divisor, and travels; all of them get the result.
    // Of the extents above it only counts then what is NULL: no replica has an input.
    const struct collective_replica *replicas; // [replica_count], borrowed until done().
    uint32_t replica_count; // 0: there is only what the extents say.
    uint64_t replica_divisor;

    // [units_words(unit_count)], borrowed until done(). In: the units for which this rank has an
    // input; those of the others are NULL. Out: those for which some rank has one. Between launch
    // and done() the transport may set bits that it has learned. Bits behind the last unit are 0.
    uint64_t *used;

    // Results, set before done().
    uint64_t weight_total; // REDUCE_MEAN: 0 means that nobody contributed; memory is untouched.
    uint64_t first_sent_us; // clock_now_us() of the first byte handed to a link; 0: none.
    uint64_t last_received_us;

    void *state; // The transport's, while launched. NULL otherwise.
};

struct wave_origin; // worker/transport/flow/wave_schedule.h

// A wave: a small allreduce of an opaque payload whose merge is exact, commutative and
// associative. Runs beside the collectives and ahead of their queued frames.
struct wave {
    // Set by the caller, constant until wave_done().
    uint64_t step;
    // enum wave_kind of worker/order/order.h; (step, kind) is unique in a generation.
    uint32_t kind;
    uint32_t size; // Bytes of payload, at most LOCKSTEP_WAVE_BYTES, equal on all ranks.
    void (*merge)(void *into, const void *from); // Pure.
    // Says what is impossible about a payload of a peer; NULL: it can be. Pure. Asked before the
    // payload is used. `origin` names the ranks whose contributions it holds, `own` is what this
    // rank holds so far. Of two payloads that can be, of different ranks, the merged one can be:
    // so the peer that sent an impossible one is the one that lies. NULL: no payload is impossible.
    const char *(*check)(const void *context, const struct wave_origin *origin, const void *payload,
                         const void *own);
    const void *context; // Of check; borrowed until wave_done().
    const char *name; // For a person.
    // In: this rank's contribution. Out: the merged payload of all ranks.
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
    void *state; // The transport's, while joined.
};

// Sent to the ring successor at step_begin (order protocol, R1).
struct step_header {
    uint64_t step;
    uint64_t phase; // Hash of the phase and of what it trains.
    uint64_t plan_number; // 0 when learning.
    uint64_t plan_hash;
    uint32_t starts; // How often its rank has called lockstep_start.
    bool opening; // Its rank joins the open wave of the step; phase and plan are not known yet.
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
    uint64_t bytes_copied; // Of results, from scratch to user memory; 0 when all of it is used, and
                           // final bytes travel as they are.
    uint64_t frames_sent;
    uint64_t frames_parked_max; // Highest number of frames that waited for a launch.
    uint64_t scratch_bytes; // Held in the scratch pool, in use or not.
    uint64_t strangers_refused; // Connections that did not prove membership.
    uint64_t allocations; // Calls to the allocator so far.
    uint64_t core_moves; // This rank went to another core, away from others of its host.
    uint64_t runs_filled[2]; // Through slots: those filled through the caches, and past them.
    uint32_t memory_links; // Links of this generation that go through memory.
};

enum transport_kind {
    TRANSPORT_TCP = 0, // And shared memory between mates, where `shares` allows it.
    TRANSPORT_LOOPBACK = 1, // In-process pipes, for tests: ranks are threads of one process.
};

// How the ranks of a host fill the slots of their board (worker/transport/host/fill.c).
enum slot_fill {
    FILL_MEASURED = 0, // As it is faster; found out now and then.
    FILL_CACHED = 1,
    FILL_PAST = 2, // Past the caches.
};

struct regions; // worker/memory/region.h

struct transport_config {
    enum transport_kind kind;
    const char *host; // TCP: numeric address to listen on and to advertise; borrowed.
    uint16_t port_first; // 0: any port.
    uint16_t port_last;
    struct regions *regions; // Of the caller's memory; borrowed. NULL: none.
    struct device *device; // This rank's, the first of them; borrowed. NULL: none.
    struct device *const *further; // [further_count]: the others, for replicas; borrowed.
    uint32_t further_count;
    uint64_t abort_ms; // How long NCCL may take to give up a communicator. 0: 5000.
    uint64_t segment_bytes; // Of what comes from a device to the host and goes back. 0: 2 MiB.
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

struct transport; // Opaque.

// What the links are like; after formed().
struct transport_links {
    bool shares; // This rank and its mates share memory; true also when it has no mates.
    uint64_t latency_ns; // One way, of a few bytes; the slowest of the links measured. 0: unknown.
    uint64_t bytes_per_s; // Of one link in one direction while all are busy; the same.
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
// note: at most LOCKSTEP_NOTE_BYTES, copied.
void transport_header(struct transport *transport, const struct step_header *header,
                      const uint8_t *note, uint32_t note_bytes);

// Does what can be done and waits at most timeout_ms (-1: no bound) for more. Returns after any
// event, and after transport_wake.
void transport_progress(struct transport *transport, int timeout_ms);

// What the first collective that was launched here waits for of this rank's device; the rest is set
// for DEVICE_HOLD_STREAM only.
struct device_held {
    enum device_hold hold;
    const struct collective *collective; // It, ...
    const struct device_ready *ready; // ... and the first stream that has not made its part.
};

// The caller has found that a peer sent what cannot be. The peer is lost with this text.
void transport_blame(struct transport *transport, uint32_t rank, const char *text);

void transport_statistics(const struct transport *transport, struct transport_statistics *out);

// Reports the peer, once, and closes its link. The text is copied.
void transport_lose(struct peer_link *peer, const char *text);
// The same for a peer that sent what cannot be. Its link stays open until the job has ended. With
// transport_no_memory as text nothing is wrong with the peer.
void transport_lose_impossible(struct peer_link *peer, const char *text);
// An urgent frame without block; NULL when memory is short.
struct out_frame *transport_frame(struct transport *transport, const struct frame_header *header);
// Whether something launched or joined here waits for a frame of that peer, or to it.
bool transport_needs(struct transport *transport, const struct peer_link *peer);

#endif
