// SPDX-License-Identifier: Apache-2.0
//
// See peers.h. This file records a loss; transport.c reports it to the owner of the transport after
// everything that had arrived is processed. Engine thread.

#include "worker/transport/flow/peers.h"

#include "base/list.h"
#include "base/text.h"
#include "worker/transport/flow/flows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PEERS_TEXT(number) PEERS_TEXT_OF(number)
#define PEERS_TEXT_OF(number) #number

const char peer_no_memory[] = "this rank has no memory for what it has to send or receive";
const char peer_no_room[] = "this rank can have " PEERS_TEXT(
    LOCKSTEP_MAX_FURTHER_LINKS) " links to ranks that are not its neighbours, and needs more";

// ---- losses -------------------------------------------------------------------------------------

bool peer_is_own_lack(const char *text)
{
    return text == peer_no_memory || text == peer_no_room;
}

void peer_lose(struct peer_link *peer, const char *text)
{
    if (peer->lost || peer->reported)
        return;
    peer->lost = true;
    peer->lack = peer_is_own_lack(text);
    text_copy(peer->text, sizeof(peer->text), text);
}

void peer_lose_impossible(struct peer_link *peer, const char *text)
{
    if (!peer->lost && !peer->reported)
        peer->impossible = !peer_is_own_lack(text);
    peer_lose(peer, text);
}

void peer_lose_silent(struct peer_link *peer)
{
    peer->silent = true;
    peer_lose(peer, "its host has been silent for too long");
}

void peers_lack(struct flows *flows)
{
    if (flows->ring.successor)
        peer_lose(flows->ring.successor, peer_no_memory);
    else
        flows->lacks = true;
}

// ---- links --------------------------------------------------------------------------------------

struct peer_link *peer_of_rank(struct flows *flows, uint32_t rank)
{
    const uint32_t place = rank < LOCKSTEP_MAX_WORLD ? flows->links.places[rank] : 0;
    return place > 0 ? flows->links.all[place - 1] : NULL;
}

static void peer_init(struct flows *flows, struct peer_link *peer, uint32_t rank)
{
    assert(rank < LOCKSTEP_MAX_WORLD);
    memset(peer, 0, offsetof(struct peer_link, stream));
    memset(&peer->stream, 0, offsetof(struct stream, staging));
    list_init(&peer->stream.queue);
    list_init(&peer->stream.taken);
    peer->endpoint.kind = ENDPOINT_PEER;
    peer->flows = flows;
    peer->rank = rank;
    peer->connects = flows->world.rank > rank;
    peer->pause_ms = PEER_PAUSE_FIRST_MS;
    flows->links.all[flows->links.count++] = peer;
    flows->links.places[rank] = (uint16_t)flows->links.count;
}

struct peer_link *peer_add_neighbour(struct flows *flows, uint32_t rank)
{
    struct peer_link *peer = &flows->peers[flows->peer_count];
    assert(flows->links.count == flows->peer_count && flows->peer_count < LOCKSTEP_MAX_NEIGHBOURS);
    flows->peer_count++;
    peer_init(flows, peer, rank);
    return peer;
}

struct peer_link *peer_add_further(struct flows *flows, uint32_t rank, const char **text)
{
    assert(rank < flows->world.world_size && rank != flows->world.rank);
    if (flows->links.count - flows->peer_count == LOCKSTEP_MAX_FURTHER_LINKS) {
        *text = peer_no_room;
        return NULL;
    }
    struct peer_link *peer = malloc(sizeof(*peer));
    if (!peer) {
        *text = peer_no_memory;
        return NULL;
    }
    peer_init(flows, peer, rank);
    peer->further = true;
    flows->links.unmade++;
    return peer;
}

struct peer_link *peer_want(struct flows *flows, uint32_t rank)
{
    const char *text = NULL;
    struct peer_link *peer = peer_of_rank(flows, rank);
    if (!peer)
        peer = peer_add_further(flows, rank, &text);
    if (!peer)
        peer_lose(flows->ring.successor, text);
    return peer;
}

bool peers_readable(const struct flows *flows)
{
    for (uint32_t i = 0; i < flows->links.count; i++) {
        const struct peer_link *peer = flows->links.all[i];
        if (peer->stream.link && peer->stream.readable && !peer->lost &&
            peer->state != PEER_CONNECTING)
            return true;
    }
    return false;
}

void peers_forget(struct flows *flows)
{
    for (uint32_t i = flows->peer_count; i < flows->links.count; i++)
        free(flows->links.all[i]);
    flows->links.count = flows->links.unmade = 0;
    flows->peer_count = 0;
    memset(flows->links.places, 0, sizeof(flows->links.places));
}
