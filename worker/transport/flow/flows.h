// SPDX-License-Identifier: Apache-2.0
//
// What all ways of reducing share: the world, the peers, the collectives in flight, the pools and
// the totals. It is the lower part of the transport. Forming links, measuring them and waiting are
// in the upper part (worker/transport/state.h). Engine thread, except `attention`.

#ifndef WORKER_TRANSPORT_FLOW_FLOWS_H
#define WORKER_TRANSPORT_FLOW_FLOWS_H

#include "base/list.h"
#include "base/thread.h"
#include "protos/frame.h"
#include "worker/link/stream.h"
#include "worker/memory/extents.h"
#include "worker/memory/scratch.h"
#include "worker/memory/units.h"
#include "worker/transport/flow/attention.h"
#include "worker/transport/flow/collective.h"
#include "worker/transport/flow/events.h"
#include "worker/transport/flow/mates.h"
#include "worker/transport/flow/peers.h"
#include "worker/transport/flow/way.h"

#include <stdatomic.h>

#define FLOWS_BUCKETS 1024 // A power of two.
// The driver moves about so many bytes of parts, and then looks at its links and requests again.
#define FLOWS_MOVE_BYTES (512 * 1024)

struct devices;
struct parking;
struct shared;

// One collective in flight, from its launch or from the first frame of a peer for it, whichever is
// first.
struct flow {
    struct list bucket; // In flows.buckets.
    // In flows.early.flows, .active, .local, .done or .mismatched, or in none.
    struct list turn;
    struct collective_tag tag;
    struct collective *collective; // NULL until it is launched here.
    // The peer whose frame came before the launch here; NULL: the launch was first.
    struct peer_link *opener;
    struct parking *parking; // The first parking of this flow (park.h). NULL: no frame is parked.
    struct list feed; // In flows.feed while this rank still has stripes to start.
    struct list held; // Frames that wait for the successor's credit.
    enum plan_algorithm algorithm; // ALGORITHM_RING until it is launched.
    const struct way *way; // The way of its algorithm. NULL until it is launched.
    void *part; // State that the way keeps for it; NULL: none.
    const struct ring_group *group; // The ring that it runs on. Set at the launch.
    // The ring predecessor and successor of this flow. Before the launch: the peers that sent
    // frames or credit as such. NULL: not known yet.
    struct peer_link *before;
    struct peer_link *behind;
    struct extent_map map;
    enum dtype partial; // Dtype of partial sums in frames.
    enum dtype final; // Dtype of final bytes in frames, and of a broadcast.
    uint64_t receives_left;
    uint64_t sends_left;
    uint64_t granted; // The successor has room for the stripes below this one.
    uint64_t granted_signature; // Signature in the credit that came before the launch.
    uint64_t final_elements; // Number of elements, from the first, that are final in user memory.
    // One bit per peer index: the credit of this peer for PAIR frames came before the launch.
    uint32_t paired;
    uint32_t paired_rank; // The rank whose credit in `paired` came first.
    uint64_t paired_signature; // The signature in the credit of paired_rank.
    // True if the credit of another peer carried another signature than paired_signature.
    bool paired_odd;
    uint32_t paired_odd_rank; // The rank that sent this other signature.
    bool mismatched; // True if ranks disagree about this collective: it makes no more progress.
    bool mismatch_reported;
    uint32_t mismatch_rank;
    char mismatch_text[TRANSPORT_TEXT_BYTES];
    _Alignas(8) uint8_t room[]; // State of the way, way.room_bytes long.
};

// Memory for collectives and waves in flight. Each pool has blocks of one size.
struct flow_pools {
    struct scratch chunks; // Partial sums.
    struct scratch frames; // struct out_frame
    struct scratch heads; // Headers of frames with many used bits.
    struct scratch flows; // struct flow, followed by the state of its way.
    struct scratch parts; // State that a way keeps in a separate block: flow.part.
    struct scratch parkings;
    struct scratch wave_blocks;
    struct scratch wave_states;
    struct scratch notes;
};

// `joined` and `done` link struct wave_state, `arrived` links struct wave_block: waves.h.
struct flow_waves {
    struct list joined;
    struct list done;
    struct list arrived;
};

// Collectives that peers have begun and that this rank has not launched.
struct flow_early {
    struct list flows; // In the order in which their first frames arrived.
    bool asked; // True if the event `arrived` was asked for.
    bool changed; // True if a flow was added, or a peer has left, since flow_arrivals looked.
};

struct flows {
    // set at open, then constant
    const struct ways *ways; // The ways of reducing.
    struct transport_events events;
    struct regions *regions; // Borrowed; NULL: none.
    bool recovers; // True if a generation may be frozen, and its collectives go on in the next one.
    uint64_t fence_ms; // How long a freeze waits for a mate that is writing to this rank's memory.
    enum slot_fill slot_fill;
    uint32_t processors; // Number of processors that this process may run on.
    // set at transport_form, then constant for the generation
    struct transport_world world; // peers and further are NULL.
    struct ring_group ring; // The ring of the world.
    struct ring_group hosts; // The ring between hosts. Size 0: this rank has no place in it.
    uint32_t peer_count; // Number of neighbours.
    uint64_t form_deadline_ms;
    bool crowded; // True if there are more ranks than cores here: then a waiting rank yields.
    // any thread
    struct attention attention;
    // engine thread only
    struct thread_id_check thread;
    bool formed; // True once all links are proven and measured.
    bool formed_reported; // True once formed() or form_failed() was reported.
    bool lacks; // True until it is reported that this rank, alone in its world, lacks memory.
    uint64_t agreed_bytes_per_s; // Bandwidth of the slowest link of all; 0: not agreed yet.
    struct list buckets[FLOWS_BUCKETS];
    uint32_t frames_parked;
    struct flow_early early;
    struct list active; // Launched and not done.
    // The flows of `active` that have stripes to start, in the order of their launch.
    struct list feed;
    struct list local; // In a world of one: launched, not computed yet.
    struct list done;
    struct list mismatched;
    struct flow_waves waves;
    struct transport_statistics totals; // Totals, without the counts of links that are still open.
    struct shared *shared; // State of host/, for this generation; NULL: this rank shares no memory.
    struct devices *devices; // State of device/; NULL: this rank has no device.
    uint32_t directs; // Number of launched flows by direct_way that are not done.
    // Bytes of parts that this rank has copied or read since the driver looked at its links. From
    // FLOWS_MOVE_BYTES on there may be more to move.
    uint64_t moved_bytes;
    bool pairs_queued; // True if PAIR frames were queued since the last call of pair_feed.
    uint32_t reserved; // Number of collectives in flight for which pools are reserved.
    struct flow_pools pools;
    struct peer_links links;
    struct mates mates; // The processes of the mates.
    struct peer_link peers[LOCKSTEP_MAX_NEIGHBOURS]; // The neighbours.
};

// Number of elements whose memory may be used: all, unless the caller set collective.landed.
static inline uint64_t flow_landed_elements(const struct flow *flow)
{
    const struct collective *collective = flow->collective;
    return collective->landed ? *collective->landed : collective->elements;
}

static inline enum dtype flow_partial(const struct collective *collective)
{
    return collective->partial == DTYPE_NONE ? collective->dtype : collective->partial;
}
static inline enum dtype flow_final_dtype(const struct collective *collective)
{
    return collective->final == DTYPE_NONE ? collective->dtype : collective->final;
}

// Initializes flows without world and peers. The caller has zeroed it before.
void flows_init(struct flows *flows, const struct ways *ways);
void flows_fini(struct flows *flows);
// Reserves pools for flows->reserved collectives in flight in the present world. Until the trainer
// has said what it needs, and beyond that, pools grow when they are used.
void flows_reserve(struct flows *flows);
// Resizes the blocks of pools.chunks to world.chunk_bytes, and those of pools.parts to the size of
// the world. Nothing may be in flight.
void flows_size_pools(struct flows *flows);
// Makes an urgent frame without a block; NULL: no memory.
struct out_frame *flows_frame(struct flows *flows, const struct frame_header *header);
void flows_statistics(const struct flows *flows, struct transport_statistics *out);

#endif
