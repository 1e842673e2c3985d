// SPDX-License-Identifier: Apache-2.0
//
// Further links, to ranks that are no neighbours. A collective wants such a link when it is
// launched (peer_want). The rules:
//
// - The higher rank connects, as for neighbours. It does not know the address of the lower rank, so
//   the event `reach` asks for it, and transport_reach brings the answer. One event asks for all
//   ranks that are wanted at that time, LOCKSTEP_REACH_RANKS at most.
// - The lower rank sends nothing. It accepts the connection of any member that proves its
//   membership as a neighbour does, whether it wants the link already or not (form.c). Its own want
//   has no time limit: the higher rank may launch the collective much later.
// - The higher rank tries until world.form_timeout_ms after the answer, and once at least. Then the
//   lower rank is lost, with its address and the reason of the last attempt in the text. While the
//   answer is missing there is no limit: the owner of the transport knows whether an answer can
//   still come.
// - A rank that lacks descriptors or memory to make a link that it wants blames itself, as while
//   its generation forms (doors.c).
// - The link of a further peer that is proven can be lost as any other one.
//
// A further link goes over sockets: all mates are neighbours. Engine thread.

#include "worker/transport/further.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/transport/doors.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/form.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/state.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

// True while the link is neither made nor given up.
static bool further_is_due(const struct peer_link *peer)
{
    return !peer->lost && peer->state != PEER_PROVEN && peer->state != PEER_GONE;
}

// ---- wanting ------------------------------------------------------------------------------------

bool further_report(struct transport *transport)
{
    const struct peer_links *links = &transport->flows.links;
    const struct transport_events *events = &transport->flows.events;
    uint32_t ranks[LOCKSTEP_REACH_RANKS];
    uint32_t count = 0;
    bool any = false;
    if (links->unmade == 0)
        return false;
    for (uint32_t i = transport->flows.peer_count; i < links->count; i++) {
        struct peer_link *peer = links->all[i];
        if (peer->sought || count == LOCKSTEP_REACH_RANKS)
            continue;
        any = true;
        peer->sought = true;
        if (peer->connects)
            ranks[count++] = peer->rank;
    }
    if (any)
        doors_have(transport); // A lack from before this want does not count.
    if (count > 0 && events->reach)
        events->reach(events->context, ranks, count);
    return count > 0;
}

void transport_want(struct transport *transport, uint32_t rank)
{
    thread_assert(&transport->flows.thread);
    if (rank < transport->flows.world.rank)
        (void)peer_want(&transport->flows, rank); // A failure is recorded as a loss.
}

struct peer_link *further_admit(struct transport *transport, uint32_t rank)
{
    const char *text = NULL;
    struct peer_link *peer = peer_add_further(&transport->flows, rank, &text);
    if (peer)
        peer->sought = true;
    else if (text == peer_no_memory)
        (void)doors_lack(transport, ENOMEM);
    return peer;
}

bool transport_reach(struct transport *transport, const struct peer *answer)
{
    struct peer_link *peer = peer_of_rank(&transport->flows, answer->rank);
    thread_assert(&transport->flows.thread);
    if (!transport->forming.has_world)
        return true;
    if (!peer || !peer->further || !peer->connects || !peer->sought || peer->address[0] != '\0')
        return false;
    text_copy(peer->address, sizeof(peer->address), answer->address);
    text_copy(peer->host, sizeof(peer->host), answer->host);
    peer->retry_ms = clock_now_ms();
    peer->make_until_ms = peer->retry_ms + transport->flows.world.form_timeout_ms;
    return true;
}

void transport_seek(struct transport *transport)
{
    const struct peer_links *links = &transport->flows.links;
    for (uint32_t i = transport->flows.peer_count; links->unmade > 0 && i < links->count; i++) {
        struct peer_link *peer = links->all[i];
        if (peer->connects && further_is_due(peer) && peer->address[0] == '\0')
            peer->sought = false;
    }
}

bool transport_awaits_address(const struct transport *transport, uint32_t *rank)
{
    const struct peer_links *links = &transport->flows.links;
    bool any = false;
    for (uint32_t i = transport->flows.peer_count; links->unmade > 0 && i < links->count; i++) {
        const struct peer_link *peer = links->all[i];
        if (!peer->connects || !further_is_due(peer) || peer->address[0] != '\0' ||
            (any && peer->rank > *rank))
            continue;
        *rank = peer->rank;
        any = true;
    }
    return any;
}

const char *transport_further_host(struct transport *transport, uint32_t rank)
{
    const struct peer_link *peer = peer_of_rank(&transport->flows, rank);
    return peer && peer->host[0] != '\0' ? peer->host : NULL;
}

// ---- making -------------------------------------------------------------------------------------

static void further_give_up(struct peer_link *peer)
{
    const struct transport *transport = transport_of(peer);
    char buffer[TRANSPORT_TEXT_BYTES];
    struct text text;
    text_init(&text, buffer, sizeof(buffer));
    text_append(&text, "no link to it could be made in %" PRIu64 " ms: %s",
                transport->flows.world.form_timeout_ms,
                peer->text[0] != '\0' ? peer->text : "it did not answer");
    transport_close_stream(peer, true);
    peer_lose(peer, buffer);
}

// This rank has lacked descriptors or memory for too long.
static void further_lack(struct peer_link *peer)
{
    char buffer[TRANSPORT_TEXT_BYTES];
    doors_text(transport_of(peer), buffer, sizeof(buffer));
    transport_close_stream(peer, true);
    peer_lose(peer, buffer);
    peer->lack = true;
}

// True once this rank has tried to connect; every attempt that fails makes the pause longer.
static bool further_tried(const struct peer_link *peer)
{
    return peer->state != PEER_WAITING || peer->pause_ms > PEER_PAUSE_FIRST_MS;
}

void further_tick(struct transport *transport, uint64_t now_ms)
{
    const struct peer_links *links = &transport->flows.links;
    if (links->unmade == 0)
        return;
    for (uint32_t i = transport->flows.peer_count; i < links->count; i++) {
        struct peer_link *peer = links->all[i];
        if (!peer->sought || !further_is_due(peer))
            continue;
        if (doors_despair(transport, now_ms))
            further_lack(peer);
        else if (peer->address[0] != '\0' && now_ms >= peer->make_until_ms && further_tried(peer))
            further_give_up(peer);
        else if (peer->address[0] != '\0')
            form_tick_peer(peer, now_ms);
    }
}

static uint64_t further_deadline_of(const struct peer_link *peer)
{
    const bool waits = peer->state == PEER_WAITING || peer->state == PEER_CONNECTING;
    if (!peer->sought)
        return 0;
    if (peer->address[0] == '\0')
        return UINT64_MAX;
    return waits && peer->retry_ms < peer->make_until_ms ? peer->retry_ms : peer->make_until_ms;
}

uint64_t further_deadline(const struct transport *transport)
{
    const struct peer_links *links = &transport->flows.links;
    const uint64_t despair_ms = doors_despair_ms(transport);
    uint64_t deadline = UINT64_MAX;
    for (uint32_t i = transport->flows.peer_count; links->unmade > 0 && i < links->count; i++) {
        const uint64_t own = further_deadline_of(links->all[i]);
        const uint64_t until = own < despair_ms ? own : despair_ms;
        if (further_is_due(links->all[i]) && until < deadline)
            deadline = until;
    }
    return deadline;
}
