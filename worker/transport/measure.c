// SPDX-License-Identifier: Apache-2.0
//
// Measures how fast the links of a generation are, once, before formed() is reported. The algorithm
// of every collective is chosen from the result. Engine thread.
//
// Each rank measures the links to its successors, in the ring of the world and in the ring between
// hosts, one after the other, while all ranks do the same. A *ping* is answered at once; half of
// the best round trip is the latency. Then come *bursts*. A burst is answered when its last frame
// has arrived, and each burst is twice as large as the one before until one takes long enough to be
// trusted. Answers to pings would queue behind bursts: on a link of 1 Gbit/s the latency rose from
// 26 us to 180 us. So no rank sends bursts before it has answered all pings of its predecessors,
// unless these are MEASURE_QUIET_MS late. A burst can be slow for another reason than the link,
// above all when ranks share cores: it is repeated, and the best of its size counts.
//
// A rank answers from the moment a link is proven until transport_tuned, because a peer may begin
// earlier and end later. After MEASURE_MOST_MS a rank reports what it has measured, and 0 for the
// rest. Frames that arrive after transport_tuned are read and not answered. The frames of each peer
// are counted: a peer that measures for ever is lost, and it holds no memory of this rank. A
// loopback is not measured: its figures are fixed, so that tests choose the same algorithms on
// every run.

#include "worker/transport/measure.h"

#include "base/clock.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/form.h"
#include "worker/transport/host/setup.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#include <stdlib.h>

#define MEASURE_MOST_MS 500 // The time limit of all measuring.
#define MEASURE_PINGS 20
#define MEASURE_QUIET_MS 100
#define MEASURE_FRAME_BYTES (256 * 1024)
#define MEASURE_BURST_BYTES (4 * 1024 * 1024) // The size of the largest burst.
// A burst that takes less time than this is followed by one of twice the size.
#define MEASURE_BURST_NS 4000000
// Bursts of one size are sent this many times, and the shortest time counts.
#define MEASURE_TRIES 4
// A burst that takes at least this long counts at once: no scheduler delays it that much.
#define MEASURE_LONG_NS 100000000
#define MEASURE_ANSWERS (4 * MEASURE_PINGS) // The most pings and answers that one peer may send.
// The most burst frames that one peer may send.
#define MEASURE_BURST_FRAMES (8 * MEASURE_BURST_BYTES / MEASURE_FRAME_BYTES)
static_assert(MEASURE_TRIES * 2 * MEASURE_BURST_BYTES / MEASURE_FRAME_BYTES <= MEASURE_BURST_FRAMES,
              "who measures as here is not taken for one that does so for ever");
#define MEASURE_LOOPBACK_NS 2000
#define MEASURE_LOOPBACK_BYTES_PER_S UINT64_C(4000000000)

// The kind of a MEASURE frame: the field `part` of its header. `slot` is the number of the ping or
// burst; `credit` is 1 in the last frame of a burst.
enum measure_part {
    MEASURE_PING = 1,
    MEASURE_PONG = 2,
    MEASURE_BURST = 3,
    MEASURE_TAKEN = 4, // The answer to a burst: all of it has arrived.
};

static struct peer_link *measure_target(const struct measure *measure)
{
    return measure->targets[measure->target];
}

static void measure_send(struct peer_link *peer, enum measure_part part, uint32_t number,
                         uint32_t bytes, bool last)
{
    struct transport *transport = transport_of(peer);
    const struct frame_header header = {.kind = FRAME_MEASURE,
                                        .generation = transport->flows.world.generation,
                                        .part = (uint32_t)part,
                                        .slot = number,
                                        .credit = last ? 1 : 0,
                                        .chunk = transport->flows.world.rank,
                                        .payload_bytes = bytes};
    struct out_frame *frame = flows_frame(&transport->flows, &header);
    if (!frame) {
        peer_lose(peer, peer_no_memory);
        return;
    }
    frame->buffer = transport->measure.bytes;
    frame->source = bytes > 0 ? SOURCE_BUFFER : SOURCE_NONE;
    stream_queue(&peer->stream, frame);
}

// ---- measuring ----------------------------------------------------------------------------------

static void measure_ping(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    measure->sent_ns = clock_now_ns();
    measure_send(measure_target(measure), MEASURE_PING, ++measure->number, 0, false);
}

static void measure_burst(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    measure->tries++;
    measure->sent_ns = clock_now_ns();
    measure->number++;
    for (uint64_t left = measure->burst_bytes; left > 0; left -= MEASURE_FRAME_BYTES)
        measure_send(measure_target(measure), MEASURE_BURST, measure->number, MEASURE_FRAME_BYTES,
                     left == MEASURE_FRAME_BYTES);
}

static void measure_begin_target(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    measure->stage = MEASURE_LATENCY;
    measure->pings = 0;
    measure->best_ns[measure->target] = UINT64_MAX;
    measure_ping(transport);
}

// Sends the first burst of a size.
static void measure_burst_of(struct transport *transport, uint64_t bytes)
{
    struct measure *measure = &transport->measure;
    measure->burst_bytes = bytes;
    measure->burst_ns = UINT64_MAX;
    measure->tries = 0;
    measure_burst(transport);
}

// Takes the bandwidth of the target's link from the shortest time of a burst of this size.
static void measure_note_bandwidth(struct measure *measure)
{
    uint64_t took_ns = measure->burst_ns;
    if (took_ns > 2 * measure->best_ns[measure->target])
        took_ns -= measure->best_ns[measure->target];
    const uint64_t bytes_per_s = measure->burst_bytes * 1000000000 / (took_ns + 1);
    if (measure->bytes_per_s == 0 || bytes_per_s < measure->bytes_per_s)
        measure->bytes_per_s = bytes_per_s;
}

// Called when the latency of a target is known: goes on to the next one.
static void measure_pinged(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    if (++measure->target < measure->target_count) {
        measure_begin_target(transport);
        return;
    }
    measure->stage = MEASURE_QUIET;
    measure->quiet_ms = clock_now_ms() + MEASURE_QUIET_MS;
}

static bool measure_is_quiet(const struct transport *transport)
{
    const struct peer_link *const others[] = {transport->flows.ring.predecessor,
                                              transport->flows.hosts.predecessor};
    for (size_t i = 0; i < 2; i++)
        if (others[i] && others[i]->pinged < MEASURE_PINGS)
            return false;
    return true;
}

static void measure_begin_bursts(struct transport *transport)
{
    transport->measure.stage = MEASURE_BANDWIDTH;
    transport->measure.target = 0;
    measure_burst_of(transport, MEASURE_FRAME_BYTES);
}

// Called when the bandwidth of a target is known: goes on to the next one.
static void measure_next_target(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    if (++measure->target < measure->target_count) {
        measure_burst_of(transport, MEASURE_FRAME_BYTES);
        return;
    }
    measure->stage = MEASURE_DONE;
    form_check_complete(transport);
}

static void measure_heard_pong(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    const uint64_t round_ns = clock_now_ns() - measure->sent_ns;
    uint64_t *best_ns = &measure->best_ns[measure->target];
    if (round_ns < *best_ns)
        *best_ns = round_ns;
    if (++measure->pings < MEASURE_PINGS) {
        measure_ping(transport);
        return;
    }
    const uint64_t latency_ns = *best_ns / 2 > 0 ? *best_ns / 2 : 1;
    if (latency_ns > measure->latency_ns)
        measure->latency_ns = latency_ns;
    measure_pinged(transport);
}

static void measure_heard_taken(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    const uint64_t took_ns = clock_now_ns() - measure->sent_ns;
    if (took_ns < measure->burst_ns)
        measure->burst_ns = took_ns;
    if (took_ns < MEASURE_BURST_NS && measure->burst_bytes < MEASURE_BURST_BYTES) {
        measure_burst_of(transport, 2 * measure->burst_bytes);
    } else if (took_ns < MEASURE_LONG_NS && measure->tries < MEASURE_TRIES) {
        measure_burst(transport);
    } else {
        measure_note_bandwidth(measure);
        measure_next_target(transport);
    }
}

static void measure_begin(struct transport *transport)
{
    struct measure *measure = &transport->measure;
    struct peer_link *const targets[] = {transport->flows.ring.successor,
                                         transport->flows.hosts.successor};
    for (size_t i = 0; i < 2; i++)
        if (targets[i] && (i == 0 || targets[i] != targets[0]))
            measure->targets[measure->target_count++] = targets[i];
    measure->deadline_ms = clock_now_ms() + MEASURE_MOST_MS;
    measure->stage = MEASURE_DONE;
    if (measure->given_latency_ns != 0) {
        measure->latency_ns = measure->given_latency_ns;
        measure->bytes_per_s = measure->given_bytes_per_s;
    } else if (transport->kind == TRANSPORT_LOOPBACK) {
        measure->latency_ns = MEASURE_LOOPBACK_NS;
        measure->bytes_per_s = MEASURE_LOOPBACK_BYTES_PER_S;
    } else if (measure->target_count > 0) {
        measure_begin_target(transport);
    }
}

int measure_form(struct transport *transport)
{
    measure_forget(transport);
    if (transport->kind == TRANSPORT_LOOPBACK || transport->flows.world.world_size == 1)
        return 0;
    transport->measure.bytes = calloc(1, MEASURE_FRAME_BYTES);
    return transport->measure.bytes ? 0 : -1;
}

void measure_forget(struct transport *transport)
{
    free(transport->measure.bytes);
    transport->flows.agreed_bytes_per_s = 0;
    transport->measure = (struct measure){
        .given_latency_ns = transport->measure.given_latency_ns,
        .given_bytes_per_s = transport->measure.given_bytes_per_s,
        .stage = MEASURE_NONE,
    };
}

bool measure_settled(struct transport *transport, uint64_t now_ms)
{
    struct measure *measure = &transport->measure;
    if (measure->stage == MEASURE_NONE)
        measure_begin(transport);
    if (now_ms >= measure->deadline_ms && measure->stage != MEASURE_DONE) {
        if (measure->stage == MEASURE_BANDWIDTH && measure->burst_ns != UINT64_MAX)
            measure_note_bandwidth(measure);
        measure->stage = MEASURE_DONE;
    }
    if (measure->stage == MEASURE_QUIET &&
        (measure_is_quiet(transport) || now_ms >= measure->quiet_ms))
        measure_begin_bursts(transport);
    return measure->stage == MEASURE_DONE;
}

bool measure_awaits(const struct transport *transport)
{
    return transport->measure.stage == MEASURE_LATENCY ||
           transport->measure.stage == MEASURE_QUIET ||
           transport->measure.stage == MEASURE_BANDWIDTH;
}

uint64_t measure_deadline(const struct transport *transport)
{
    if (transport->measure.stage == MEASURE_QUIET)
        return transport->measure.quiet_ms;
    return measure_awaits(transport) ? transport->measure.deadline_ms : UINT64_MAX;
}

// ---- being measured -----------------------------------------------------------------------------

const char *measure_frame_begins(struct peer_link *peer, struct stream *stream)
{
    const struct frame_header *header = &stream->header;
    struct measure *measure = &transport_of(peer)->measure;
    if (header->chunk != peer->rank)
        return "it is of another rank";
    if (header->part < MEASURE_PING || header->part > MEASURE_TAKEN)
        return "its part is unknown";
    if (header->used_bytes != 0 ||
        header->payload_bytes != (header->part == MEASURE_BURST ? MEASURE_FRAME_BYTES : 0))
        return "its length is wrong";
    if (header->payload_bytes == 0)
        return NULL;
    if (!measure->bytes)
        return "this link is not measured";
    stream->target.kind = TARGET_BUFFER;
    stream->target.buffer = measure->bytes;
    return NULL;
}

// True if the frame answers the last ping or burst of this rank. Late answers to earlier ones do
// not count.
static bool measure_awaited(const struct peer_link *peer, enum measure_stage stage)
{
    const struct measure *measure = &transport_of(peer)->measure;
    return measure->stage == stage && peer == measure_target(measure) &&
           peer->stream.header.slot == measure->number;
}

const char *measure_frame_ended(struct peer_link *peer)
{
    const struct frame_header *header = &peer->stream.header;
    if (++peer->measured > MEASURE_ANSWERS + MEASURE_BURST_FRAMES)
        return "it measures for too long";
    if (transport_of(peer)->measure.over)
        return NULL; // No rank awaits an answer any more.
    switch ((enum measure_part)header->part) {
    case MEASURE_PING:
        peer->pinged++;
        measure_send(peer, MEASURE_PONG, header->slot, 0, false);
        break;
    case MEASURE_PONG:
        if (measure_awaited(peer, MEASURE_LATENCY))
            measure_heard_pong(transport_of(peer));
        break;
    case MEASURE_BURST:
        if (header->credit != 0)
            measure_send(peer, MEASURE_TAKEN, header->slot, 0, false);
        break;
    case MEASURE_TAKEN:
        if (measure_awaited(peer, MEASURE_BANDWIDTH))
            measure_heard_taken(transport_of(peer));
        break;
    }
    return NULL;
}

// ---- what is known ------------------------------------------------------------------------------

void transport_links(const struct transport *transport, struct transport_links *links)
{
    const struct locality *locality = &transport->flows.world.locality;
    links->shares =
        (locality->mate_count == 1 && !transport->flows.shared) || host_stands(&transport->flows);
    links->latency_ns = transport->measure.latency_ns;
    links->bytes_per_s = transport->measure.bytes_per_s;
}

void transport_tuned(struct transport *transport, uint64_t bytes_per_s)
{
    thread_assert(&transport->flows.thread);
    transport->flows.agreed_bytes_per_s = bytes_per_s;
    transport->measure.over = true;
}
