// SPDX-License-Identifier: Apache-2.0
//
// The transport over streams (TCP, memory, loopback): what transport_progress does, and the events.
// Open and close are in lifecycle.c, collectives and waves in worker/transport/flow/flow.c and
// worker/transport/flow/waves.c, how links are made in form.c, how the engine waits in wait.c.
// Engine thread, except functions that transport.h marks "any thread".
//
// Order of events in one call: formed, headers, waves, collectives, mismatches, wanted addresses.
// Losses that peers told and losses that this rank saw come last, when everything received before
// is processed and reported.

#include "worker/transport/transport.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/deaths.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/rendezvous.h"
#include "worker/transport/direct/direct.h"
#include "worker/transport/doors.h"
#include "worker/transport/farewell.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/peers.h"
#include "worker/transport/flow/waves.h"
#include "worker/transport/form.h"
#include "worker/transport/further.h"
#include "worker/transport/headers.h"
#include "worker/transport/host/exchange.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/two_level.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/pair/pair.h"
#include "worker/transport/ports.h"
#include "worker/transport/redo.h"
#include "worker/transport/ring/ring.h"
#include "worker/transport/state.h"
#include "worker/transport/wait.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define TRANSPORT_READS 4 // Most reads of one link before the next link is read.

// ---- ways of reducing ---------------------------------------------------------------------------

const struct ways transport_ways = {
    .of_algorithm =
        {
            [ALGORITHM_RING] = &ring_way,
            [ALGORITHM_DOUBLING] = &pair_way,
            [ALGORITHM_HALVING] = &pair_way,
            [ALGORITHM_SHARED] = &host_way,
            [ALGORITHM_TWO_LEVEL] = &host_way,
            [ALGORITHM_DIRECT] = &direct_way,
        },
    .of_frame =
        {
            [FRAME_REDUCE] = &ring_way,
            [FRAME_GATHER] = &ring_way,
            [FRAME_BROADCAST] = &ring_way,
            [FRAME_PAIR] = &pair_way,
            [FRAME_DIRECT] = &direct_way,
        },
    .all = {&pair_way, &ring_way, &direct_way, &host_way},
};

// ---- links --------------------------------------------------------------------------------------

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
        peer_lose_silent(peer);
    else if (!peer->left)
        peer_lose(peer, text);
    peer->lack = peer->lack || (peer->lost && doors_is_lack(peer->stream.error));
    peer->state = PEER_GONE;
    transport_close_stream(peer, false);
}

static void transport_impossible(struct peer_link *peer)
{
    struct text text;
    char buffer[TRANSPORT_TEXT_BYTES];
    if (peer_is_own_lack(peer->stream.text)) {
        peer_lose(peer, peer->stream.text);
        return;
    }
    text_init(&text, buffer, sizeof(buffer));
    text_append(&text, "sent an impossible frame (%s): %s",
                frame_kind_name(peer->stream.header.kind), peer->stream.text);
    if (peer->state != PEER_PROVEN) {
        peer->flows->totals.strangers_refused++;
        form_peer_ended(peer, buffer);
        return;
    }
    peer_lose_impossible(peer, buffer);
}

// Sends queued frames, and starts more stripes while the links have room.
static void transport_flush(struct transport *transport)
{
    do {
        for (uint32_t i = 0; i < transport->flows.links.count; i++)
            stream_flush(&transport->flows.links.all[i]->stream);
    } while (flow_feed(&transport->flows));
}

static void transport_receive(struct peer_link *peer)
{
    struct transport *transport = transport_of(peer);
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
    if (now_ms < transport->checked_ms + deaths_check_ms(transport))
        return;
    transport->checked_ms = now_ms;
    deaths_check(transport);
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct peer_link *peer = transport->flows.links.all[i];
        if (peer->state == PEER_PROVEN && peer->stream.link->ops->check(peer->stream.link) < 0)
            peer_lose_silent(peer);
        // A socket may be readable without an epoll event: stream.awaited bytes, the least that
        // wakes the engine, can be more than the kernel has room for.
        if (peer->stream.link && peer->stream.awaited > 1)
            peer->stream.readable = true;
    }
}

// ---- events -------------------------------------------------------------------------------------

static bool transport_report_formed(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    const char *text = transport->flows.formed_reported
                           ? NULL
                           : rendezvous_failed(&transport->flows, &transport->rendezvous);
    if (text) {
        transport->flows.formed_reported = true;
        if (events->form_failed)
            events->form_failed(events->context, transport->flows.world.rank, text);
        return true;
    }
    if (transport->flows.formed && !transport->flows.formed_reported &&
        rendezvous_formed(&transport->flows, &transport->rendezvous)) {
        transport->flows.formed_reported = true;
        if (events->formed)
            events->formed(events->context);
        return true;
    }
    if (!transport->forming.failed || transport->flows.formed_reported)
        return false;
    transport->flows.formed_reported = true;
    const bool differs = transport->forming.differs;
    if (!differs && doors_report(transport))
        return true;
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        const struct peer_link *peer = transport->flows.links.all[i];
        if (differs ? !peer->differs : peer->state == PEER_PROVEN)
            continue;
        if (differs && events->encryption_differs)
            events->encryption_differs(events->context, peer->rank);
        else if (!differs && events->form_failed)
            events->form_failed(events->context, peer->rank, peer->text);
        return true;
    }
    return false;
}

// Returns the collective that the caller launched: this one, or the one of which it is a part.
static struct collective *transport_whole(struct transport *transport,
                                          struct collective *collective)
{
    struct collective *outer = two_level_outer(&transport->flows, collective);
    struct collective *inner = outer ? outer : collective;
    struct collective *on_device = devices_outer(&transport->flows, inner);
    struct collective *repeated = redo_outer(&transport->redos, inner);
    return on_device ? on_device : repeated ? repeated : inner;
}

// A part of a repeated collective may be the last one of it.
static void transport_report_done(struct transport *transport, struct collective *collective)
{
    const struct transport_events *events = &transport->flows.events;
    if (redo_outer(&transport->redos, collective))
        collective = redo_done(transport, collective);
    if (collective && events->done)
        events->done(events->context, collective);
}

bool transport_report_devices(struct transport *transport)
{
    struct collective *collective = devices_next_done(&transport->flows);
    if (collective)
        transport_report_done(transport, collective);
    return collective != NULL;
}

static bool transport_report_work(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    struct wave *wave = wave_next_done(&transport->flows);
    if (wave && rendezvous_wave_done(&transport->flows, &transport->rendezvous, wave))
        return true;
    if (wave) {
        if (events->wave_done)
            events->wave_done(events->context, wave);
        return true;
    }
    struct collective *collective = flow_next_done(&transport->flows);
    if (collective && two_level_outer(&transport->flows, collective)) {
        two_level_done(&transport->flows, collective);
        return true;
    }
    if (collective && devices_outer(&transport->flows, collective)) {
        devices_travelled(&transport->flows, collective);
        return true;
    }
    if (collective) {
        transport_report_done(transport, collective);
        return true;
    }
    if (transport->flows.devices &&
        (devices_report(&transport->flows) || transport_report_devices(transport)))
        return true;
    struct flow *flow = flow_next_mismatch(&transport->flows);
    if (flow && events->mismatch) {
        events->mismatch(events->context, transport_whole(transport, flow->collective),
                         flow->mismatch_rank, flow->mismatch_text);
    }
    if (flow || !transport->flows.early.asked || !transport->flows.early.changed)
        return flow != NULL;
    transport->flows.early.asked = false;
    if (events->arrived)
        events->arrived(events->context);
    return true;
}

bool transport_needs(struct transport *transport, const struct peer_link *peer)
{
    return flow_needs(&transport->flows, peer) || wave_needs(&transport->flows, peer) ||
           headers_need(transport, peer) || devices_needs(&transport->flows, peer);
}

// A peer that said goodbye counts as lost when this rank still needs it.
static void transport_check_left(struct transport *transport)
{
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct peer_link *peer = transport->flows.links.all[i];
        if (peer->left && !peer->frozen && !peer->lost && !peer->reported &&
            transport_needs(transport, peer))
            peer_lose(peer, "it has left");
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

// The link of a peer that sent impossible data stays open until the job has ended, and nothing more
// is read from it. A reset would look to the peer as if this rank had died, and the peer would
// blame this rank before others have heard who was at fault.
static bool transport_report_lost(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    transport_check_left(transport);
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct peer_link *peer = transport->flows.links.all[i];
        if (!peer->lost || peer->reported)
            continue;
        peer->reported = true;
        peer->state = PEER_GONE;
        if (!peer->left)
            ports_doubt(transport, peer->rank);
        if (peer->left || peer->silent)
            transport_close_stream(peer, true);
        if (events->peer_lost)
            events->peer_lost(events->context, peer->rank, transport_loss(peer), peer->text);
        return true;
    }
    return false;
}

static bool transport_report_lack(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    const bool lacks = transport->flows.lacks;
    transport->flows.lacks = false;
    if (lacks && events->peer_lost)
        events->peer_lost(events->context, transport->flows.world.rank, LOSS_HERE, peer_no_memory);
    return lacks;
}

static bool transport_dispatch(struct transport *transport)
{
    bool any = false;
    while (transport_report_formed(transport) ||
           (transport->headers.count > 0 && headers_report(transport)) ||
           transport_report_work(transport) || further_report(transport) ||
           farewell_report(transport) || transport_report_lost(transport) ||
           transport_report_lack(transport) ||
           (transport->flows.mates.untold > 0 && deaths_report(transport)) ||
           (transport->ports.untold > 0 && ports_report(transport)))
        any = true;
    return any;
}

// ---- progress -----------------------------------------------------------------------------------

// The time in ms. After forming it is exact to a few milliseconds only, for a tenth of the cost.
static uint64_t transport_now_ms(const struct transport *transport)
{
    return transport->flows.formed_reported ? clock_coarse_ms() : clock_now_ms();
}

static void transport_work(struct transport *transport)
{
    const uint64_t now_ms = transport_now_ms(transport);
    transport->flows.moved_bytes = 0;
    form_tick(transport, now_ms);
    transport_check(transport, now_ms);
    transport_flush(transport);
    for (uint32_t i = 0; i < transport->flows.links.count; i++)
        transport_receive(transport->flows.links.all[i]);
    (void)host_work(&transport->flows);
    form_check_complete(transport);
    devices_work(&transport->flows, &transport->rendezvous);
    transport_flush(transport);
}

// Milliseconds to wait: until deadline_ms, or until the next task that is due before. -1: no bound.
static int transport_timeout(const struct transport *transport, uint64_t deadline_ms)
{
    const uint64_t now_ms =
        deadline_ms == UINT64_MAX ? transport_now_ms(transport) : clock_now_ms();
    uint64_t until = form_deadline(transport);
    if (transport->flows.formed && now_ms + deaths_check_ms(transport) < until)
        until = now_ms + deaths_check_ms(transport);
    const uint64_t look_ms = devices_deadline(&transport->flows, now_ms);
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
    thread_assert(&transport->flows.thread);
    const uint64_t deadline_ms =
        timeout_ms < 0 ? UINT64_MAX : clock_now_ms() + (uint64_t)timeout_ms;
    bool waited = false;
    for (;;) {
        transport_work(transport);
        const bool any = transport_dispatch(transport);
        if (any)
            transport_flush(transport);
        if (any || attention_take(&transport->flows.attention))
            break;
        if (waited && deadline_ms != UINT64_MAX && clock_now_ms() >= deadline_ms)
            break;
        const bool busy = peers_readable(&transport->flows) || host_pending(&transport->flows) ||
                          transport->flows.moved_bytes >= FLOWS_MOVE_BYTES;
        wait_for_work(transport, busy ? 0 : transport_timeout(transport, deadline_ms));
        waited = true;
    }
    // This return also answers requests for attention that came meanwhile.
    (void)attention_take(&transport->flows.attention);
}

// ---- launching ----------------------------------------------------------------------------------

void transport_launch(struct transport *transport, struct collective *collective)
{
    thread_assert(&transport->flows.thread);
    assert(transport->flows.formed);
    assert(collective->kind == COLLECTIVE_BROADCAST ||
           kernel_supported(collective->dtype, collective->op));
    assert(collective->unit_count == 0 || collective->kind == COLLECTIVE_ALLREDUCE);
    assert(collective->unit_count <= LOCKSTEP_BUCKET_PARAMETERS);
    const enum device_way way = device_way_of(&transport->flows.world, collective);
    if (way == DEVICE_WAY_HOST)
        flow_launch(&transport->flows, collective);
    else
        devices_launch(&transport->flows, collective, way);
}

bool transport_exchange(struct transport *transport, struct collective *collective)
{
    thread_assert(&transport->flows.thread);
    return list_empty(&transport->flows.active) && list_empty(&transport->flows.done) &&
           list_empty(&transport->flows.waves.joined) && list_empty(&transport->flows.mismatched) &&
           transport->flows.pools.flows.used == 0 &&
           exchange_shots(&transport->flows, collective, transport->patience.credit > 0);
}

bool transport_wave_needs(struct transport *transport, uint32_t rank)
{
    thread_assert(&transport->flows.thread);
    const struct peer_link *peer = peer_of_rank(&transport->flows, rank);
    return peer && wave_needs(&transport->flows, peer);
}

void transport_wave(struct transport *transport, struct wave *wave)
{
    thread_assert(&transport->flows.thread);
    assert(transport->flows.formed);
    wave_join(&transport->flows, wave);
}

bool transport_arrivals(struct transport *transport,
                        bool (*take)(void *context, uint32_t rank,
                                     const struct collective_tag *tag),
                        void *context)
{
    thread_assert(&transport->flows.thread);
    return flow_arrivals(&transport->flows, take, context);
}

void transport_blame(struct transport *transport, uint32_t rank, const char *text)
{
    struct peer_link *peer = peer_of_rank(&transport->flows, rank);
    thread_assert(&transport->flows.thread);
    if (peer)
        peer_lose_impossible(peer, text);
}

void transport_statistics(const struct transport *transport, struct transport_statistics *out)
{
    flows_statistics(&transport->flows, out);
}
