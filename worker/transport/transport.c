// SPDX-License-Identifier: Apache-2.0
//
// The transport over streams (TCP, memory, loopback): what it does each time that it is driven, and
// its events. Its life is in life.c, what collectives and waves do in worker/transport/flow/flow.c
// and worker/transport/flow/waves.c, how links come to stand in form.c, how it waits in
// wait.c. Engine thread, but for what transport.h says is for any thread.
//
// Order of events in one call: formed, headers, waves, collectives, disagreements; what others tell
// of losses and the losses seen here come last, when everything that had been received is worked
// off and was reported.

#include "worker/transport/transport.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/meet.h"
#include "worker/transport/doors.h"
#include "worker/transport/farewell.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/waves.h"
#include "worker/transport/form.h"
#include "worker/transport/host/exchange.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/two_level.h"
#include "worker/transport/life.h"
#include "worker/transport/measure.h"
#include "worker/transport/pair/pair.h"
#include "worker/transport/ring/ring.h"
#include "worker/transport/wait.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define TRANSPORT_READS 4 // Of one link, before the others have their turn.
#define TRANSPORT_CHECK_MS 1000 // Between looks at silent hosts.

// ---- ways of reducing ---------------------------------------------------------------------------

const struct ways transport_ways = {
    .of_algorithm =
        {
            [ALGORITHM_RING] = &ring_way,
            [ALGORITHM_DOUBLING] = &pair_way,
            [ALGORITHM_HALVING] = &pair_way,
            [ALGORITHM_SHARED] = &host_way,
            [ALGORITHM_TWO_LEVEL] = &host_way,
        },
    .of_frame =
        {
            [FRAME_REDUCE] = &ring_way,
            [FRAME_GATHER] = &ring_way,
            [FRAME_BROADCAST] = &ring_way,
            [FRAME_PAIR] = &pair_way,
        },
    .all = {&pair_way, &ring_way, &host_way},
};

size_t transport_room(void)
{
    size_t most = 0;
    for (const struct way *const *way = transport_ways.all; *way; way++)
        most = (*way)->room_bytes > most ? (*way)->room_bytes : most;
    return most;
}

// ---- frames -------------------------------------------------------------------------------------

struct out_frame *transport_frame(struct transport *transport, const struct frame_header *header)
{
    struct out_frame *frame = scratch_get(&transport->frames);
    if (!frame)
        return NULL;
    memset(frame, 0, sizeof(*frame));
    list_init(&frame->queue);
    frame->urgent = true;
    frame->payload_bytes = header->payload_bytes;
    frame->head_bytes = LOCKSTEP_FRAME_HEADER_BYTES + header->used_bytes;
    frame->head =
        frame->head_bytes <= sizeof(frame->bytes) ? frame->bytes : scratch_get(&transport->heads);
    if (!frame->head) {
        scratch_put(&transport->frames, frame);
        return NULL;
    }
    frame_encode(header, frame->head);
    return frame;
}

static void transport_sent(struct stream *stream, struct out_frame *frame, bool dropped)
{
    struct transport *transport = ((struct peer_link *)stream->context)->transport;
    if (frame->flow) {
        frame->flow->way->sent(transport, frame, dropped);
        return;
    }
    if (frame->block)
        scratch_put(frame->pool, frame->block);
    scratch_put(&transport->frames, frame);
}

static const char *transport_begin_header(struct peer_link *peer)
{
    struct transport *transport = peer->transport;
    const struct frame_header *header = &peer->stream.header;
    const bool opening = header->chunk == 1;
    if (header->chunk > 1)
        return "it neither opens nor begins a step";
    if (opening && (header->payload_bytes != 0 || header->space != 0 || header->weight != 0 ||
                    header->signature != 0))
        return "it opens a step and has a phase or a plan already";
    if (peer != transport->ring.predecessor)
        return "it does not come from the ring predecessor";
    if (transport->header_count == LOCKSTEP_EARLY_HEADERS)
        return "it is of a step too far ahead";
    peer->stream.target.kind = TARGET_BUFFER;
    peer->stream.target.buffer = transport->note;
    return NULL;
}

static bool transport_is_proof(enum frame_kind kind)
{
    return kind == FRAME_CHALLENGE || kind == FRAME_HELLO || kind == FRAME_WELCOME;
}

static const char *transport_begin(struct stream *stream)
{
    struct peer_link *peer = stream->context;
    const struct generation_id *own = &peer->transport->world.generation;
    const struct frame_header *header = &stream->header;
    if (transport_is_proof(header->kind))
        return form_frame_begins(peer);
    if (peer->state != PEER_PROVEN)
        return "it comes before the proof of membership";
    if (header->generation.number != own->number ||
        header->generation.incarnation != own->incarnation)
        return "its generation is another one";
    if (peer->left)
        return "it comes after the goodbye";
    switch (header->kind) {
    case FRAME_STEP_HEADER:
        return transport_begin_header(peer);
    case FRAME_REDUCE:
    case FRAME_GATHER:
    case FRAME_BROADCAST:
    case FRAME_PAIR:
        return peer->transport->ways->of_frame[header->kind]->begin(peer, stream);
    case FRAME_WAVE:
        return wave_begin(peer, stream);
    case FRAME_MEASURE:
        return measure_frame_begins(peer, stream);
    case FRAME_LEAVE:
    case FRAME_LOST:
        return farewell_begins(peer);
    case FRAME_CREDIT:
    case FRAME_RUN:
        return header->payload_bytes == 0 ? NULL : "its length is wrong";
    case FRAME_CHALLENGE:
    case FRAME_HELLO:
    case FRAME_WELCOME:
        break;
    }
    return "its kind is unknown";
}

static void transport_end_header(struct peer_link *peer)
{
    struct transport *transport = peer->transport;
    const struct frame_header *header = &peer->stream.header;
    struct early_header *early = &transport->headers[transport->header_count++];
    transport->header_received = header->step;
    early->header = (struct step_header){
        .step = header->step,
        .phase = header->signature,
        .plan_number = header->weight,
        .plan_hash = header->space,
        .starts = header->part,
        .opening = header->chunk != 0,
    };
    early->note_bytes = header->payload_bytes;
    memcpy(early->note, transport->note, header->payload_bytes);
}

static const char *transport_end(struct stream *stream)
{
    struct peer_link *peer = stream->context;
    switch (stream->header.kind) {
    case FRAME_CHALLENGE:
    case FRAME_HELLO:
    case FRAME_WELCOME:
        return form_frame_ended(peer);
    case FRAME_STEP_HEADER:
        transport_end_header(peer);
        return NULL;
    case FRAME_REDUCE:
    case FRAME_GATHER:
    case FRAME_BROADCAST:
    case FRAME_PAIR:
        return flow_end(peer, stream);
    case FRAME_WAVE:
        return wave_end(peer, stream);
    case FRAME_MEASURE:
        return measure_frame_ended(peer);
    case FRAME_CREDIT:
        return flow_credit(peer, &stream->header);
    case FRAME_RUN:
        return two_level_hear(peer, &stream->header);
    case FRAME_LEAVE:
    case FRAME_LOST:
        return farewell_ended(peer);
    }
    return NULL;
}

const struct stream_owner transport_stream_owner = {
    .begin = transport_begin,
    .end = transport_end,
    .sent = transport_sent,
};

// ---- links --------------------------------------------------------------------------------------

const char transport_no_memory[] = "this rank has no memory for what it has to send or receive";

void transport_lose(struct peer_link *peer, const char *text)
{
    if (peer->lost || peer->reported)
        return;
    peer->lost = true;
    peer->lack = text == transport_no_memory;
    text_copy(peer->text, sizeof(peer->text), text);
}

void transport_lose_impossible(struct peer_link *peer, const char *text)
{
    if (!peer->lost && !peer->reported)
        peer->impossible = text != transport_no_memory;
    transport_lose(peer, text);
}

static void transport_lose_silent(struct peer_link *peer)
{
    peer->silent = true;
    transport_lose(peer, "its host has been silent for too long");
}

static void transport_ended(struct peer_link *peer)
{
    char buffer[64];
    const char *text = "connection closed by peer";
    if (peer->stream.error != 0)
        text = strerror_r(peer->stream.error, buffer, sizeof(buffer));
    if (peer->state != PEER_PROVEN) {
        form_peer_ended(peer, text);
        return;
    }
    if (!peer->left && peer->stream.error == ETIMEDOUT)
        transport_lose_silent(peer);
    else if (!peer->left)
        transport_lose(peer, text);
    peer->lack = peer->lack || (peer->lost && doors_is_lack(peer->stream.error));
    peer->state = PEER_GONE;
    transport_close_stream(peer, false);
}

static void transport_impossible(struct peer_link *peer)
{
    struct text text;
    char buffer[TRANSPORT_TEXT_BYTES];
    if (peer->stream.text == transport_no_memory) {
        transport_lose(peer, transport_no_memory);
        return;
    }
    text_init(&text, buffer, sizeof(buffer));
    text_append(&text, "sent an impossible frame (%s): %s",
                frame_kind_name(peer->stream.header.kind), peer->stream.text);
    if (peer->state != PEER_PROVEN) {
        peer->transport->totals.strangers_refused++;
        form_peer_ended(peer, buffer);
        return;
    }
    transport_lose_impossible(peer, buffer);
}

// Hands the links what they take, and starts stripes while they take all.
static void transport_flush(struct transport *transport)
{
    do {
        for (uint32_t i = 0; i < transport->peer_count; i++)
            stream_flush(&transport->peers[i].stream);
    } while (flow_feed(transport));
}

static void transport_receive(struct peer_link *peer)
{
    struct transport *transport = peer->transport;
    struct stream *stream = &peer->stream;
    for (int i = 0; i < TRANSPORT_READS && stream->link && stream->readable && !peer->lost; i++) {
        if (peer->state == PEER_CONNECTING)
            return;
        const enum stream_status status = stream_receive(stream);
        if (status == STREAM_ENDED)
            transport_ended(peer);
        else if (status == STREAM_IMPOSSIBLE)
            transport_impossible(peer);
        else if (status == STREAM_MORE)
            transport_flush(transport);
    }
}

static void transport_check(struct transport *transport, uint64_t now_ms)
{
    if (now_ms < transport->checked_ms + TRANSPORT_CHECK_MS)
        return;
    transport->checked_ms = now_ms;
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        struct peer_link *peer = &transport->peers[i];
        if (peer->state == PEER_PROVEN && peer->stream.link->ops->check(peer->stream.link) < 0)
            transport_lose_silent(peer);
        // How much is worth a wake-up is a hint: no kernel has to have room for so much.
        if (peer->stream.link && peer->stream.awaited > 1)
            peer->stream.readable = true;
    }
}

// ---- events -------------------------------------------------------------------------------------

static bool transport_report_formed(struct transport *transport)
{
    const struct transport_events *events = &transport->events;
    const char *text = transport->formed_reported ? NULL : devices_form_failed(transport);
    if (text) {
        transport->formed_reported = true;
        if (events->form_failed)
            events->form_failed(events->context, transport->world.rank, text);
        return true;
    }
    if (transport->formed && !transport->formed_reported && devices_formed(transport)) {
        transport->formed_reported = true;
        if (events->formed)
            events->formed(events->context);
        return true;
    }
    if (!transport->form_failed || transport->formed_reported)
        return false;
    transport->formed_reported = true;
    const bool differs = transport->form_differs;
    if (!differs && doors_report(transport))
        return true;
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        const struct peer_link *peer = &transport->peers[i];
        if (differs ? !peer->differs : peer->state == PEER_PROVEN)
            continue;
        if (events->form_failed)
            events->form_failed(events->context, peer->rank, peer->text);
        return true;
    }
    return false;
}

static bool transport_report_header(struct transport *transport)
{
    const struct transport_events *events = &transport->events;
    if (transport->header_count == 0 || !transport->formed_reported)
        return false;
    const struct early_header early = transport->headers[0];
    transport->header_count--;
    memmove(&transport->headers[0], &transport->headers[1],
            transport->header_count * sizeof(early));
    if (events->header)
        events->header(events->context, &early.header, early.note, early.note_bytes);
    return true;
}

// The collective that its caller knows, of which this one may be a part.
static struct collective *transport_whole(struct transport *transport,
                                          struct collective *collective)
{
    struct collective *outer = two_level_outer(transport, collective);
    struct collective *inner = outer ? outer : collective;
    struct collective *on_device = devices_outer(transport, inner);
    return on_device ? on_device : inner;
}

static bool transport_report_work(struct transport *transport)
{
    const struct transport_events *events = &transport->events;
    struct wave *wave = wave_next_done(transport);
    if (wave && devices_wave_done(transport, wave))
        return true;
    if (wave) {
        if (events->wave_done)
            events->wave_done(events->context, wave);
        return true;
    }
    struct collective *collective = flow_next_done(transport);
    if (collective && two_level_outer(transport, collective)) {
        two_level_done(transport, collective);
        return true;
    }
    if (collective && devices_outer(transport, collective)) {
        devices_travelled(transport, collective);
        return true;
    }
    if (collective) {
        if (events->done)
            events->done(events->context, collective);
        return true;
    }
    if (devices_report(transport))
        return true;
    struct flow *flow = flow_next_mismatch(transport);
    if (flow && events->mismatch) {
        events->mismatch(events->context, transport_whole(transport, flow->collective),
                         flow->mismatch_rank, flow->mismatch_text);
    }
    return flow != NULL;
}

// The predecessor has not begun the step that this rank has begun.
static bool transport_needs_header(const struct transport *transport, const struct peer_link *peer)
{
    return peer == transport->ring.predecessor &&
           transport->header_received < transport->header_sent;
}

bool transport_needs(struct transport *transport, const struct peer_link *peer)
{
    return flow_needs(transport, peer) || wave_needs(transport, peer) ||
           transport_needs_header(transport, peer) || devices_needs(transport, peer);
}

// A peer that said goodbye is lost when something here needs it.
static void transport_check_left(struct transport *transport)
{
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        struct peer_link *peer = &transport->peers[i];
        if (peer->left && !peer->lost && !peer->reported && transport_needs(transport, peer))
            transport_lose(peer, "it has left");
    }
}

static enum peer_loss transport_loss(const struct peer_link *peer)
{
    if (peer->lack)
        return LOSS_HERE;
    if (peer->left)
        return LOSS_LEFT;
    if (peer->impossible)
        return LOSS_IMPOSSIBLE;
    return peer->silent ? LOSS_SILENT : LOSS_ENDED;
}

// The link of a peer that sent what cannot be stays open until the job has ended: the peer would
// take a reset for a death, and blame this rank for it before others have heard who lied. Nothing
// is read from it any more.
static bool transport_report_lost(struct transport *transport)
{
    const struct transport_events *events = &transport->events;
    transport_check_left(transport);
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        struct peer_link *peer = &transport->peers[i];
        if (!peer->lost || peer->reported)
            continue;
        peer->reported = true;
        peer->state = PEER_GONE;
        if (peer->left || peer->silent)
            transport_close_stream(peer, true);
        if (events->peer_lost)
            events->peer_lost(events->context, peer->rank, transport_loss(peer), peer->text);
        return true;
    }
    return false;
}

static bool transport_dispatch(struct transport *transport)
{
    bool any = false;
    while (transport_report_formed(transport) || transport_report_header(transport) ||
           transport_report_work(transport) || farewell_report(transport) ||
           transport_report_lost(transport))
        any = true;
    return any;
}

// ---- progress -----------------------------------------------------------------------------------

static bool transport_readable(const struct transport *transport)
{
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        const struct peer_link *peer = &transport->peers[i];
        if (peer->stream.link && peer->stream.readable && !peer->lost &&
            peer->state != PEER_CONNECTING)
            return true;
    }
    return false;
}

// The time to within some milliseconds, for a tenth of the cost, once nothing needs it better.
static uint64_t transport_now_ms(const struct transport *transport)
{
    return transport->formed_reported ? clock_coarse_ms() : clock_now_ms();
}

static void transport_work(struct transport *transport)
{
    const uint64_t now_ms = transport_now_ms(transport);
    form_tick(transport, now_ms);
    transport_check(transport, now_ms);
    transport_flush(transport);
    for (uint32_t i = 0; i < transport->peer_count; i++)
        transport_receive(&transport->peers[i]);
    (void)shared_work(transport);
    form_check_complete(transport);
    devices_work(transport);
    transport_flush(transport);
}

// Milliseconds to wait: to the deadline, but not past what has to be done before.
static int transport_timeout(const struct transport *transport, uint64_t deadline_ms)
{
    const uint64_t now_ms =
        deadline_ms == UINT64_MAX ? transport_now_ms(transport) : clock_now_ms();
    uint64_t until = form_deadline(transport);
    if (transport->formed && now_ms + TRANSPORT_CHECK_MS < until)
        until = now_ms + TRANSPORT_CHECK_MS;
    const uint64_t look_ms = devices_deadline(transport, now_ms);
    if (look_ms < until)
        until = look_ms;
    if (deadline_ms < until)
        until = deadline_ms;
    if (until == UINT64_MAX)
        return -1;
    if (until <= now_ms)
        return 0;
    return until - now_ms > INT32_MAX ? INT32_MAX : (int)(until - now_ms);
}

void transport_progress(struct transport *transport, int timeout_ms)
{
    thread_assert(&transport->thread);
    const uint64_t deadline_ms =
        timeout_ms < 0 ? UINT64_MAX : clock_now_ms() + (uint64_t)timeout_ms;
    bool waited = false;
    for (;;) {
        transport_work(transport);
        const bool any = transport_dispatch(transport);
        if (any)
            transport_flush(transport);
        if (any || wait_asked(transport))
            break;
        if (waited && deadline_ms != UINT64_MAX && clock_now_ms() >= deadline_ms)
            break;
        const bool busy = transport_readable(transport) || shared_pending(transport);
        wait_for_work(transport, busy ? 0 : transport_timeout(transport, deadline_ms));
        waited = true;
    }
    // Whoever asked for attention by now has it.
    (void)wait_asked(transport);
}

// ---- launching ----------------------------------------------------------------------------------

void transport_launch(struct transport *transport, struct collective *collective)
{
    thread_assert(&transport->thread);
    assert(transport->formed);
    assert(collective->kind == COLLECTIVE_BROADCAST ||
           kernel_supported(collective->dtype, collective->op));
    assert(collective->unit_count == 0 || collective->kind == COLLECTIVE_ALLREDUCE);
    assert(collective->unit_count <= LOCKSTEP_MAX_PARAMETERS);
    const enum device_way way = device_way_of(&transport->world, collective);
    if (way == DEVICE_WAY_HOST)
        flow_launch(transport, collective);
    else
        devices_launch(transport, collective, way);
}

bool transport_exchange(struct transport *transport, struct collective *collective)
{
    thread_assert(&transport->thread);
    return list_empty(&transport->active) && list_empty(&transport->done) &&
           list_empty(&transport->waves) && list_empty(&transport->mismatched) &&
           transport->flow_pool.used == 0 && exchange_shots(transport, collective);
}

void transport_wave(struct transport *transport, struct wave *wave)
{
    thread_assert(&transport->thread);
    assert(transport->formed);
    wave_join(transport, wave);
}

// The frame with its note. NULL: no memory.
static struct out_frame *transport_header_frame(struct transport *transport,
                                                const struct frame_header *header,
                                                const uint8_t *note)
{
    uint8_t *block = scratch_get(&transport->notes);
    struct out_frame *frame = block ? transport_frame(transport, header) : NULL;
    if (!frame) {
        if (block)
            scratch_put(&transport->notes, block);
        return NULL;
    }
    memcpy(block, note, header->payload_bytes);
    frame->block = block;
    frame->pool = &transport->notes;
    frame->buffer = block;
    frame->source = header->payload_bytes > 0 ? SOURCE_BUFFER : SOURCE_NONE;
    return frame;
}

void transport_header(struct transport *transport, const struct step_header *header,
                      const uint8_t *note, uint32_t note_bytes)
{
    thread_assert(&transport->thread);
    assert(transport->formed && note_bytes <= LOCKSTEP_NOTE_BYTES);
    if (!transport->ring.successor)
        return;
    transport->header_sent = header->step;
    const struct frame_header frame_header = {
        .kind = FRAME_STEP_HEADER,
        .generation = transport->world.generation,
        .step = header->step,
        .space = header->plan_hash,
        .part = header->starts,
        .chunk = header->opening ? 1 : 0,
        .weight = header->plan_number,
        .signature = header->phase,
        .payload_bytes = note_bytes,
    };
    struct out_frame *frame = transport_header_frame(transport, &frame_header, note);
    if (frame)
        stream_queue(&transport->ring.successor->stream, frame);
    else
        transport_lose(transport->ring.successor, transport_no_memory);
}

void transport_blame(struct transport *transport, uint32_t rank, const char *text)
{
    struct peer_link *peer = transport_peer(transport, rank);
    thread_assert(&transport->thread);
    if (peer)
        transport_lose_impossible(peer, text);
}

void transport_statistics(const struct transport *transport, struct transport_statistics *out)
{
    *out = transport->totals;
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        const struct stream *stream = &transport->peers[i].stream;
        if (!stream->link)
            continue;
        out->bytes_sent += stream->bytes_sent;
        out->bytes_received += stream->bytes_received;
        out->frames_sent += stream->frames_sent;
        out->memory_links += stream->link->ops->pending != NULL;
    }
    out->scratch_bytes = transport->chunks.blocks * transport->chunks.block_bytes;
    out->allocations = transport->chunks.slab_count + transport->frames.slab_count +
                       transport->heads.slab_count + transport->flow_pool.slab_count +
                       transport->parkings.slab_count + transport->wave_blocks.slab_count +
                       transport->wave_states.slab_count + transport->notes.slab_count +
                       transport->pairs.slab_count;
}
