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
#include "worker/transport/ring/schedule.h"
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

struct stripe {
    uint32_t receives_left;
    uint32_t sends_left;
    uint64_t reduced[TRANSPORT_OWNER_WORDS]; // By owner: its reduce frame has begun to arrive.
    uint64_t gathered[TRANSPORT_OWNER_WORDS];
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
    void *part; // What another algorithm than the ring keeps. Its own; NULL otherwise.
    const struct ring_group *group; // The ring that it runs on; set at the launch.
    struct peer_link *before; // Its predecessor and successor; before the launch, those that have
    struct peer_link *behind; // taken these places for themselves. NULL: nobody yet.
    struct ring ring; // Its elements are the largest that travel.
    struct extent_map map;
    enum dtype partial; // In reduce frames.
    enum dtype final; // In gather frames, and those of a broadcast.
    uint64_t receives_left;
    uint64_t sends_left;
    uint64_t base; // Stripes below are complete here.
    uint64_t opened; // Stripes below may be received: base + window at most.
    uint64_t started; // Stripes below have sent their first frame, if they have one.
    uint64_t granted; // Stripes below may be sent: the successor said so.
    uint64_t credited; // What the predecessor was told of `opened`.
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
    struct stripe stripes[LOCKSTEP_STRIPES_IN_FLIGHT]; // By index modulo the window.
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

// Reports the peer, once, and closes its link. The text is copied.
void transport_lose(struct peer_link *peer, const char *text);
// The same for a peer that sent what cannot be. Its link stays open until the job has ended. With
// transport_no_memory as text nothing is wrong with the peer.
void transport_lose_impossible(struct peer_link *peer, const char *text);
// The reason, by its address, when this rank has no memory for what a peer needs: the peer is not
// at fault then, and the loss is LOSS_HERE.
extern const char transport_no_memory[];
// An urgent frame without block; NULL when memory is short.
struct out_frame *transport_frame(struct transport *transport, const struct frame_header *header);
extern const struct stream_owner transport_stream_owner;

// Whether something launched or joined here waits for a frame of that peer, or to it.
bool transport_needs(struct transport *transport, const struct peer_link *peer);

// ---- worker/transport/life.c --------------------------------------------------------------------

bool transport_watch(struct transport *transport, int fd, struct endpoint *endpoint, bool link);
void transport_unwatch(struct transport *transport, int fd);
void transport_close_stream(struct peer_link *peer, bool reset);

// ---- worker/transport/wait.c --------------------------------------------------------------------

// How long to look, by the ranks of this host. When the generation forms.
void wait_prepare(struct transport *transport);
// Waits until something may be done, or for so long (-1: no bound).
void wait_for_work(struct transport *transport, int timeout_ms);
// Between two looks into memory by whoever expects something at once. False: it has looked often
// enough, and is to wait in another way.
struct wait_moment {
    uint32_t looks; // Since others were let run.
    uint32_t turns; // How often they were.
    uint64_t end_us;
};
// beside: where ranks share cores, it comes from one that may share this one.
bool wait_a_moment(struct transport *transport, struct wait_moment *moment, bool beside);
// Nobody drives for a while: peers in memory are told to ring. False: there is something to do.
bool wait_leave_alone(struct transport *transport);
// Whether transport_wake was called since the last time. Forgets it.
bool wait_asked(struct transport *transport);

// ---- worker/transport/doors.c -------------------------------------------------------------------

bool doors_is_lack(int number); // True if the errno says that this process or host lacks something.
// A link could not be made, with this errno. Remembers it if this rank lacks something. Returns
// whether that is so.
bool doors_lack(struct transport *transport, int number);
void doors_have(struct transport *transport); // A link was made.
// True if this rank has lacked something for so long that the generation is given up.
bool doors_despair(const struct transport *transport, uint64_t now_ms);
// The listeners are not heard for a while.
void doors_rest(struct transport *transport);
// The listeners are heard from now on. False: they cannot be.
bool doors_open(struct transport *transport);
void doors_tick(struct transport *transport, uint64_t now_ms);
uint64_t doors_deadline(const struct transport *transport);
// The generation did not form. Whether this rank lacked something for it: then it was reported.
bool doors_report(struct transport *transport);

// ---- worker/transport/form.c --------------------------------------------------------------------

void form_accept(struct transport *transport, struct listener *listener);
void form_guest_ready(struct transport *transport, struct guest *guest);
// Attempts, deadlines, and guests that wait for too long.
void form_tick(struct transport *transport, uint64_t now_ms);
// When form_tick has something to do; UINT64_MAX: never.
uint64_t form_deadline(const struct transport *transport);
// Looks whether all that forming waits for is there.
void form_check_complete(struct transport *transport);
void form_peer_ready(struct peer_link *peer);
// A frame of kind CHALLENGE, HELLO or WELCOME. NULL, or what is impossible about it.
const char *form_frame_begins(struct peer_link *peer);
const char *form_frame_ended(struct peer_link *peer);
// The link ended before it was proven.
void form_peer_ended(struct peer_link *peer, const char *text);
void form_forget_guests(struct transport *transport);
struct peer_link *transport_peer(struct transport *transport, uint32_t rank);

// ---- worker/transport/measure.c -----------------------------------------------------------------

// The generation begins. 0, or -1 without memory.
int measure_form(struct transport *transport);
// Begins to measure when it has not; whether that has come to its end. All links stand.
bool measure_settled(struct transport *transport, uint64_t now_ms);
// Whether an answer is waited for, and how long at most; UINT64_MAX: none.
bool measure_awaits(const struct transport *transport);
uint64_t measure_deadline(const struct transport *transport);
// A frame of kind MEASURE. NULL, or what is impossible about it.
const char *measure_frame_begins(struct peer_link *peer, struct stream *stream);
const char *measure_frame_ended(struct peer_link *peer);
// The links are closed.
void measure_forget(struct transport *transport);

// ---- flow.c -------------------------------------------------------------------------------------

void flow_launch(struct transport *transport, struct collective *collective);
// Whether it can be launched when only a part of its memory may be used (collective.landed).
bool flow_follows(const struct transport *transport, const struct collective *collective);
// How much of it may be used: all, but for such a one.
static inline uint64_t flow_landed_elements(const struct flow *flow)
{
    const struct collective *collective = flow->collective;
    return collective->landed ? *collective->landed : collective->elements;
}
// More of what is launched may be used.
void flow_landed(struct transport *transport, const struct collective *collective);
// Elements of what is launched, from the first, that are final here: more and more of them where it
// runs by stripes of a ring or by pieces, else none before it is done.
uint64_t flow_final_elements(const struct collective *collective);
// A collective that uses no ring was launched: whoever has sent frames of it runs another
// algorithm.
void flow_meet_others(struct transport *transport, struct flow *flow);
// An allreduce between hosts, as a part of another one.
void flow_launch_between_hosts(struct transport *transport, struct collective *collective);
// Ranks disagree on a collective that is launched here: nothing more happens to it but the event.
// The text is copied.
void flow_mismatch(struct transport *transport, struct flow *flow, uint32_t rank, const char *text);
// The collective of a frame, made if this is the first that is heard of it. NULL; *text: why not.
struct flow *flow_of(struct peer_link *peer, const struct frame_header *header, const char **text);
// A frame of a collective is whole, of whichever algorithm. NULL, or what is impossible about it.
const char *flow_end(struct peer_link *peer, struct stream *stream);
// Does what its algorithm does with such a frame, which may arrive; see flow_take.
void flow_give(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block);
static inline bool flow_is_pair(const struct flow *flow)
{
    return flow->collective &&
           (flow->algorithm == ALGORITHM_DOUBLING || flow->algorithm == ALGORITHM_HALVING);
}
// The next collective that is done, or NULL. It is the caller's again.
struct collective *flow_next_done(struct transport *transport);
struct flow *flow_next_mismatch(struct transport *transport);
bool flow_needs(struct transport *transport, const struct peer_link *peer);
// Without events.
void flow_forget(struct transport *transport);

// ---- worker/transport/ring/ring.c ---------------------------------------------------------------

static inline enum dtype flow_partial(const struct collective *collective)
{
    return collective->partial == DTYPE_NONE ? collective->dtype : collective->partial;
}
static inline enum dtype flow_final_dtype(const struct collective *collective)
{
    return collective->final == DTYPE_NONE ? collective->dtype : collective->final;
}
// The flow goes round this ring, and what its neighbours have said about it is taken.
void flow_launch_ring(struct transport *transport, struct flow *flow,
                      const struct ring_group *group);
// Whether it would need no credit on the ring of the world. A small one may be sent to this rank
// before it takes part, and is in one piece anyway.
bool flow_is_eager(const struct transport *transport, const struct collective *collective);
// Opens stripes as far as the window and what has landed allow, and says so.
void flow_pump(struct transport *transport, struct flow *flow);
// Starts stripes as far as the successor's link has little to do. Returns whether it started any.
bool flow_feed(struct transport *transport);
const char *flow_begin(struct peer_link *peer, struct stream *stream);
// A frame that may arrive is whole. Its payload is where it belongs, or in the block, which is
// taken over; NULL: it has none.
void flow_take(struct transport *transport, struct flow *flow, const struct frame_header *header,
               void *block);
const char *flow_credit(struct peer_link *peer, const struct frame_header *header);
// Whether a frame that was parked may arrive now. NULL, or what is impossible about it.
const char *flow_unpark(struct flow *flow, const struct frame_header *header, const uint8_t *used);
// The link has taken a frame, or has dropped it.
void flow_sent(struct transport *transport, struct out_frame *frame, bool dropped);

// ---- reduce.c -----------------------------------------------------------------------------------

// Whether the first hop can be sent from user memory as it is.
bool reduce_is_plain(const struct flow *flow);
// Writes this rank's contribution to `count` elements from `first` into acc.
void reduce_start(const struct flow *flow, struct ring_span span, uint8_t *acc);
// acc = acc op this rank's contribution. Returns the weight that it adds.
uint64_t reduce_add(const struct flow *flow, struct ring_span span, uint8_t *acc);
// The owner's last step: adds this rank's contribution to acc, divides, and writes what is final to
// the outputs: directly, when all of them have memory and all units are used, else by way of acc.
// Returns the weight in all, `weight` being that of acc. Returns 0 for a mean to which nobody
// contributed; then nothing is written.
uint64_t reduce_finish(const struct flow *flow, struct ring_span span, uint8_t *acc,
                       uint64_t weight, bool direct);
// Copies final bytes to the outputs of the units that are used; to all when there are no units.
void reduce_store(const struct flow *flow, struct ring_span span, const uint8_t *bytes);
// A collective of a world of one, or the root's own copy.
void reduce_local(struct collective *collective, uint32_t element_bytes);

// ---- park.c -------------------------------------------------------------------------------------

extern const char *const flow_signature_text;
extern const char *const flow_algorithm_text;
// Of a frame that begins, and its flow is not launched here. NULL, or what is impossible about it.
const char *park_begin(struct peer_link *peer, struct flow *flow, struct stream *stream);
// A parked frame is whole. Takes it, and those before it, if the flow was launched meanwhile.
const char *park_end(struct peer_link *peer, struct flow *flow, struct stream *stream);
// After the launch: takes what is parked. Whoever has parked what is impossible is lost.
void park_catch_up(struct transport *transport, struct flow *flow);
// Whether frames of this kind are for the algorithm that the flow was launched with.
bool park_is_of(const struct flow *flow, enum frame_kind kind);

// ---- worker/transport/pair/pair.c: recursive doubling and halving -------------------------------

void pair_launch(struct transport *transport, struct flow *flow);
// As those of the ring.
const char *pair_begin(struct peer_link *peer, struct stream *stream);
void pair_take(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block);
const char *pair_unpark(const struct peer_link *peer, struct flow *flow,
                        const struct frame_header *header, const uint8_t *used);
// A CREDIT frame that is for frames of kind PAIR.
const char *pair_credit(struct peer_link *peer, const struct frame_header *header);
void pair_sent(struct transport *transport, struct out_frame *frame, bool dropped);
// Whether frames were queued while the links were flushed.
bool pair_feed(struct transport *transport);
// Whether a launched one waits for a frame from or to that peer.
bool pair_needs(struct transport *transport, const struct peer_link *peer);
void pair_forget(struct transport *transport);
// Bytes of what is kept of each collective that runs by pairs.
extern const size_t pair_bytes;

// ---- worker/transport/pair/sum.c: their arithmetic ----------------------------------------------

// Whether this rank's input can be used as it is in user memory: in frames, and as an operand.
bool pair_sum_is_plain(const struct flow *flow, struct ring_span span);
// Whether the sum of two operands may depend on which one is the first.
bool pair_sum_is_ordered(const struct flow *flow);
// lower = lower op upper, both partial sums.
void pair_sum_add(const struct flow *flow, uint64_t count, uint8_t *lower, const uint8_t *upper);
// out = the result of (lower op upper), or of lower alone when upper is NULL. out may be lower;
// NULL: the outputs in user memory, all of which exist. lower is overwritten in any case.
void pair_sum_finish(const struct flow *flow, struct ring_span span, uint8_t *lower,
                     const uint8_t *upper, uint64_t weight, uint8_t *out);
// Replaces every NaN of a sum by the same one, whatever it came from.
void pair_sum_quiet(const struct flow *flow, uint8_t *bytes, uint64_t count);

// ---- worker/transport/host/host.c: collectives in memory that mates share -----------------------

// The generation begins: nothing is mapped. 0, or -1 without memory.
int shared_form(struct transport *transport);
// The link to a mate stands.
void shared_proven(struct peer_link *peer);
// Whether it is known if the group shares memory; and whether it does.
bool shared_settled(const struct transport *transport);
bool shared_stands(const struct transport *transport);
// When shared_work has to be called for that; UINT64_MAX: never.
uint64_t shared_deadline(const struct transport *transport);
void shared_launch(struct transport *transport, struct flow *flow);
// transport_exchange, when nothing is in flight here.
bool exchange_shots(struct transport *transport, struct collective *collective);
// Whether it runs by pieces, so that each can wait for what has landed.
bool shared_follows(const struct collective *collective);
// Does what can be done now, without waiting. Whether it did anything.
bool shared_work(struct transport *transport);
// Whether shared_work would do something. No system call.
bool shared_pending(const struct transport *transport);
bool shared_needs(struct transport *transport, const struct peer_link *peer);
// This rank is about to wait for others, where they share cores or are not there at once.
void spread_wait(struct transport *transport);
// Nothing of this rank's memory is touched by a mate any more when it returns.
void shared_forget(struct transport *transport);

// ---- worker/transport/host/two_level.c: a part of it between hosts ------------------------------

// What the leader of another host says of runs. NULL, or what is impossible about it.
const char *two_level_hear(struct peer_link *peer, const struct frame_header *header);
// The collective that this one is a part of; NULL: it is one by itself.
struct collective *two_level_outer(struct transport *transport, struct collective *collective);
void two_level_done(struct transport *transport, struct collective *collective);

// ---- worker/transport/farewell.c ----------------------------------------------------------------

// The last frame on a link that stands.
void farewell_goodbye(struct peer_link *peer);
// A frame of kind LEAVE or LOST. NULL, or what is impossible about it.
const char *farewell_begins(struct peer_link *peer);
const char *farewell_ended(struct peer_link *peer);
// Reports one loss of which a peer has told. Whether there was one.
bool farewell_report(struct transport *transport);
void farewell_forget(struct transport *transport);

// ---- waves.c ------------------------------------------------------------------------------------

void wave_join(struct transport *transport, struct wave *wave);
const char *wave_begin(struct peer_link *peer, struct stream *stream);
const char *wave_end(struct peer_link *peer, struct stream *stream);
struct wave *wave_next_done(struct transport *transport);
bool wave_needs(struct transport *transport, const struct peer_link *peer);
void wave_forget(struct transport *transport);

#endif
