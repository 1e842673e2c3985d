// SPDX-License-Identifier: Apache-2.0
//
// What the files of the stream transport share: worker/transport/transport.c (events, progress),
// worker/transport/life.c, worker/transport/wait.c (waiting, waking), worker/transport/form.c (who
// may connect, links), flow.c (collectives), worker/transport/ring/ring.c (those on a ring),
// reduce.c (their arithmetic), waves.c and those of the other algorithms. Nobody else includes it.
//
// Thread: the engine's, but for the descriptors below and the wake-up.

#ifndef WORKER_TRANSPORT_FLOW_FLOWS_H
#define WORKER_TRANSPORT_FLOW_FLOWS_H

#include "base/list.h"
#include "base/thread.h"
#include "protos/farewell.h"
#include "protos/frame.h"
#include "worker/link/hello.h"
#include "worker/link/link.h"
#include "worker/link/stream.h"
#include "worker/memory/extents.h"
#include "worker/memory/scratch.h"
#include "worker/memory/units.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/flow/way.h"
#include "worker/transport/transport.h"

#include <stdatomic.h>

#define TRANSPORT_TEXT_BYTES 192
#define TRANSPORT_FLOW_BUCKETS 1024 // A power of two.
#define TRANSPORT_OWNER_WORDS (LOCKSTEP_MAX_WORLD / 64)
// Two listeners, wake-up, epoll, the peers and the unproven.
#define TRANSPORT_DESCRIPTORS (4 + LOCKSTEP_MAX_NEIGHBOURS + LOCKSTEP_MAX_UNPROVEN + 1)

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

// ---- peers and strangers ------------------------------------------------------------------------

enum peer_state {
    PEER_WAITING, // To be connected to at retry_ms, or to come by itself.
    PEER_CONNECTING,
    PEER_MET, // Connected to; its challenge is awaited.
    PEER_PROVING, // Our hello is on its way, its welcome is awaited.
    PEER_PROVEN, // The link stands in both directions.
    PEER_GONE,
};

struct peer_link {
    struct endpoint endpoint; // First.
    struct transport *transport;
    // set at transport_form, then constant
    uint32_t rank;
    bool connects; // This rank connects to that one.
    char address[LOCKSTEP_ADDRESS_BYTES];
    // engine thread only
    enum peer_state state;
    uint64_t retry_ms;
    uint64_t pause_ms; // Between attempts; grows.
    uint64_t
        mate_until_ms; // So long it is tried to reach a mate through memory. 0: no attempt yet.
    bool left; // It said goodbye.
    bool lost; // To be reported.
    bool silent; // Because its host was.
    bool impossible; // Because it sent what cannot be.
    bool lack; // Because this rank lacks something.
    bool reported;
    char text[TRANSPORT_TEXT_BYTES]; // Why it was lost, or the last attempt failed.
    bool differs; // It is a member, and configured otherwise than this rank.
    struct farewell farewell; // What it said last about its end, or another rank's.
    uint8_t farewell_bytes[FAREWELL_BYTES]; // The one that is being received.
    struct hello hello; // What both sides of the connection prove.
    uint8_t proof[LOCKSTEP_PROOF_BYTES]; // The peer's, on a connection that this rank made.
    uint32_t measured; // Frames by which the peer measured, or was measured.
    uint32_t pinged; // Pings among them that were answered.
    uint32_t flows_early; // Flows that it was the first to speak of, and that are not launched.
    uint32_t parkings; // Of its frames.
    struct link_state seen; // When transport_inspect looked last; still_ms: since when it is so.
    struct stream stream;
};

// A connection that has not proven membership.
struct guest {
    struct endpoint endpoint; // First.
    struct link *link; // NULL: this place is free.
    uint64_t since_ms;
    uint64_t number; // Order of arrival.
    uint8_t challenge[LOCKSTEP_NONCE_BYTES]; // That it was sent.
    uint32_t received;
    bool heard; // A whole hello, to be examined when the generation is known.
    uint8_t bytes[LOCKSTEP_HELLO_BYTES];
};

// ---- collectives --------------------------------------------------------------------------------

// Frames that arrived before their collective was launched here.
struct parked_frame {
    struct frame_header header;
    uint32_t offset; // Of the payload in bytes.
    uint32_t used_offset; // Of the used bits in used.
    bool complete;
};

// Neighbouring chunks may both meet one unit, and each chunk rounds its bits up to a byte.
#define PARKING_USED_BYTES LOCKSTEP_USED_BYTES
static_assert(PARKING_USED_BYTES >=
                  (LOCKSTEP_MAX_PARAMETERS + LOCKSTEP_EAGER_FRAMES) / 8 + LOCKSTEP_EAGER_FRAMES,
              "the used bits of the eager frames of one collective fit");

// Of one collective and one peer.
struct parking {
    struct parking *next; // Of the same collective.
    struct peer_link *peer;
    uint32_t count;
    uint32_t consumed;
    uint32_t bytes_filled;
    uint32_t used_filled;
    struct parked_frame frames[LOCKSTEP_EAGER_FRAMES];
    uint8_t used[PARKING_USED_BYTES];
    _Alignas(8) uint8_t bytes[LOCKSTEP_EAGER_BYTES + 8 * LOCKSTEP_EAGER_FRAMES];
};

// A ring of ranks: all of the world, or one rank of each host.
struct ring_group {
    uint32_t rank; // Position in it.
    uint32_t size;
    struct peer_link *predecessor; // NULL in a ring of one.
    struct peer_link *successor;
};

// One collective, or what is known of one that is not launched here yet.
struct flow {
    struct list bucket; // In transport.flows.
    struct list turn; // In transport.active, .local, .done or .mismatched, or nowhere.
    struct collective_tag tag;
    struct collective *collective; // NULL: not launched here.
    struct peer_link *opener; // The first peer that spoke of it; NULL: it was launched before that.
    struct parking *parking; // The first of those that it has. NULL: nothing is parked.
    struct list feed; // In transport.feed while stripes are to be started.
    struct list held; // Frames that wait for the successor's credit.
    enum plan_algorithm algorithm; // ALGORITHM_RING until it is launched.
    const struct way *way; // Of the algorithm. NULL until it is launched.
    void *part; // What the way keeps of it. The way's own; NULL otherwise.
    const struct ring_group *group; // The ring that it runs on; set at the launch.
    struct peer_link *before; // Its predecessor and successor; before the launch, those that have
    struct peer_link *behind; // taken these places for themselves. NULL: nobody yet.
    struct extent_map map;
    enum dtype partial; // In reduce frames.
    enum dtype final; // In gather frames, and those of a broadcast.
    uint64_t receives_left;
    uint64_t sends_left;
    uint64_t granted; // Stripes below may be sent: the successor said so.
    uint64_t granted_signature; // Of the early credit.
    uint64_t final_elements; // From the first: all of them are final in user memory, and stay.
    uint32_t
        paired; // Peers, by index, whose credit for frames of kind PAIR came before the launch.
    uint32_t paired_rank; // The first of them, ...
    uint64_t paired_signature; // ... and its signature; ...
    bool paired_odd; // ... this one's was another one.
    uint32_t paired_odd_rank;
    bool mismatched; // Nothing more happens to it.
    bool mismatch_reported;
    uint32_t mismatch_rank;
    char mismatch_text[TRANSPORT_TEXT_BYTES];
    _Alignas(8) uint8_t room[]; // Of the way: way.h.
};

// ---- waves --------------------------------------------------------------------------------------

// A payload of a wave: arrived, or on its way out.
struct wave_block {
    struct list arrived; // In transport.wave_arrived.
    uint64_t step;
    uint32_t kind;
    uint32_t round;
    uint32_t rank; // Sender.
    uint32_t size;
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
};

struct wave_state {
    struct list joined; // In transport.waves or transport.waves_done.
    struct wave *wave;
    uint32_t move;
    bool sent; // This move's part.
};

// ---- step headers -------------------------------------------------------------------------------

// One that has arrived and is not reported.
struct early_header {
    struct step_header header;
    uint32_t note_bytes;
    uint8_t note[LOCKSTEP_NOTE_BYTES];
};

// ---- losses -------------------------------------------------------------------------------------

// What a peer has told of a rank that was lost.
struct told_loss {
    uint32_t from;
    struct farewell farewell;
};

// ---- waiting ------------------------------------------------------------------------------------

enum transport_attention {
    ATTENTION_AWAKE, // Nobody asks for anything.
    ATTENTION_ASLEEP, // The engine is blocked or about to be: a write to `wake` is needed.
    ATTENTION_ASKED, // transport_wake was called.
};

// How long to look again and again before blocking; see worker/transport/wait.c.
struct transport_patience {
    bool crowded; // The ranks on these cores have none each: others are let run.
    uint32_t credit; // Grows when looking helped, shrinks when it did not.
    uint32_t waits; // Waits without looking since the last one with.
    uint32_t probe; // Without credit one wait in so many looks.
    uint32_t hits; // Waits in which looking helped, since somebody who computes had the core.
    uint32_t unpolled; // Waits since the kernel was last asked.
};

// ---- measuring ----------------------------------------------------------------------------------

enum measure_stage {
    MEASURE_NONE, // Not all links stand.
    MEASURE_LATENCY,
    MEASURE_QUIET, // Others still measure the latency of links to this rank.
    MEASURE_BANDWIDTH,
    MEASURE_DONE,
};

struct measure {
    enum measure_stage stage;
    bool over; // All ranks have measured.
    uint64_t deadline_ms;
    uint64_t quiet_ms; // So long others are waited for.
    struct peer_link *targets[2];
    uint32_t target_count;
    uint32_t target; // The one that is measured.
    uint32_t number; // Of the last ping or burst.
    uint32_t pings; // Answered by the target.
    uint64_t best_ns[2]; // Of the round trips to each target.
    uint64_t burst_bytes;
    uint64_t burst_ns; // The best of this size.
    uint32_t tries; // Of this size.
    uint64_t sent_ns;
    uint8_t *bytes; // What bursts consist of, and where those of others end.
    // Results: of the slowest target.
    uint64_t latency_ns;
    uint64_t bytes_per_s;
    uint64_t agreed_bytes_per_s; // Of the slowest link of all ranks; 0: not agreed yet.
};

// ---- devices ------------------------------------------------------------------------------------

// How far this rank is with the wave that tells devices how to meet. All ranks take part.
enum naming_stage {
    NAMING_NONE,
    NAMING_ASKED,
    NAMING_HEARD,
    NAMING_FAILED,
};

// ---- the transport ------------------------------------------------------------------------------

struct transport {
    // set at open, then constant
    enum transport_kind kind;
    const struct ways *ways; // The ways of reducing.
    uint32_t torn_bytes;
    uint32_t processors;
    uint64_t given_latency_ns; // 0: links are measured.
    uint64_t given_bytes_per_s;
    enum slot_fill slot_fill;
    bool encrypts; // Links that are not in memory.
    struct transport_events events;
    struct regions *regions; // Borrowed; NULL: none.
    char host[LOCKSTEP_ADDRESS_BYTES];
    int epoll;
    int wake;
    struct listener *listener;
    struct listener *mates; // For processes of this host; NULL: there is none.
    char address[LOCKSTEP_ADDRESS_BYTES]; // Of both.
    struct endpoint wake_endpoint;
    struct endpoint listener_endpoint;
    struct endpoint mates_endpoint;
    uint64_t listen_ms; // When the listeners are heard again; 0: they are.
    int lack; // The errno for which the last link could not be made here; 0: it could.
    uint64_t lack_ms; // Since when, while there is one.
    // atomic: every descriptor that is open, for a forked child; -1 elsewhere
    atomic_int descriptors[TRANSPORT_DESCRIPTORS];
    // set at transport_form, then constant for the generation
    struct transport_world world; // peers is NULL.
    bool has_world;
    struct ring_group ring; // Of the world.
    struct ring_group hosts; // Between hosts: size 0 where this rank has no place in such a ring.
    uint32_t peer_count;
    uint64_t form_deadline_ms;
    // any thread: who asks the engine to look, and whether it sleeps
    _Atomic uint32_t attention; // enum transport_attention
    // engine thread only
    struct transport_patience patience;
    struct thread_id_check thread;
    bool formed;
    bool formed_reported;
    bool form_failed;
    bool form_differs; // Because a member is configured otherwise.
    uint32_t guest_count;
    uint64_t guest_number;
    struct measure measure;
    uint64_t checked_ms; // When the links were last asked whether their peers' hosts are silent.
    struct list flows[TRANSPORT_FLOW_BUCKETS];
    uint32_t frames_parked;
    struct list active; // Launched and not done.
    struct list feed; // Of them, those with stripes to start, in the order of launch.
    struct list local; // Of a world of one: to be computed.
    struct list done;
    struct list mismatched;
    struct list waves;
    struct list waves_done;
    struct list wave_arrived;
    struct early_header headers[LOCKSTEP_EARLY_HEADERS];
    uint32_t header_count;
    uint8_t note[LOCKSTEP_NOTE_BYTES]; // Of the header that is being received.
    struct farewell goodbye; // What this rank's LEAVE frames say, ...
    bool has_goodbye; // ... if this is true.
    struct told_loss told[LOCKSTEP_LOSSES]; // By others, and not reported yet.
    uint32_t told_count;
    uint32_t losses_told; // Ranks in losses_known.
    uint64_t losses_known[TRANSPORT_OWNER_WORDS]; // By rank: its loss was told, or heard of.
    uint64_t header_sent; // Steps of the last headers.
    uint64_t header_received;
    struct transport_statistics totals; // Of links that are closed.
    struct shared *shared; // Of this generation's host, or NULL: worker/transport/host/host.c.
    struct devices *devices; // Of this rank's device, or NULL: worker/transport/device/devices.c.
    enum naming_stage naming_stage;
    char naming_text[TRANSPORT_TEXT_BYTES]; // Of NAMING_FAILED.
    struct wave naming;
    struct scratch chunks; // Partial sums.
    struct scratch frames; // struct out_frame
    struct scratch heads; // Of frames with many used bits.
    struct scratch flow_pool;
    struct scratch parkings;
    struct scratch wave_blocks;
    struct scratch notes;
    struct scratch wave_states;
    struct scratch pairs; // Of worker/transport/pair/pair.c
    bool pairs_queued; // Frames, since pair_feed was asked last.
    struct guest guests[LOCKSTEP_MAX_UNPROVEN];
    struct peer_link peers[LOCKSTEP_MAX_NEIGHBOURS];
};

// ---- worker/transport/transport.c ---------------------------------------------------------------

// The reason, by its address, when this rank has no memory for what a peer needs: the peer is not
// at fault then, and the loss is LOSS_HERE.
extern const char transport_no_memory[];
extern const struct stream_owner transport_stream_owner;

// ---- worker/transport/wait.c --------------------------------------------------------------------

// Between two looks into memory by whoever expects something at once. False: it has looked often
// enough, and is to wait in another way.
struct wait_moment {
    uint32_t looks; // Since others were let run.
    uint32_t turns; // How often they were.
    uint64_t end_us;
};

// ---- flow.c -------------------------------------------------------------------------------------

// How much of it may be used: all, but for such a one.
static inline uint64_t flow_landed_elements(const struct flow *flow)
{
    const struct collective *collective = flow->collective;
    return collective->landed ? *collective->landed : collective->elements;
}

// ---- worker/transport/ring/ring.c ---------------------------------------------------------------

static inline enum dtype flow_partial(const struct collective *collective)
{
    return collective->partial == DTYPE_NONE ? collective->dtype : collective->partial;
}
static inline enum dtype flow_final_dtype(const struct collective *collective)
{
    return collective->final == DTYPE_NONE ? collective->dtype : collective->final;
}

// ---- park.c -------------------------------------------------------------------------------------

extern const char *const flow_signature_text;
extern const char *const flow_algorithm_text;

// ---- worker/transport/pair/pair.c: recursive doubling and halving -------------------------------

// Bytes of what is kept of each collective that runs by pairs.
extern const size_t pair_bytes;

// ---- worker/transport/pair/sum.c: their arithmetic ----------------------------------------------

// Replaces every NaN of a sum by the same one, whatever it came from.
void pair_sum_quiet(const struct flow *flow, uint8_t *bytes, uint64_t count);

#endif
