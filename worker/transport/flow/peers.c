// SPDX-License-Identifier: Apache-2.0
//
// See peers.h. This file records a loss; transport.c reports it to the owner of the transport after
// everything that had arrived is processed. Engine thread.

#include "worker/transport/flow/peers.h"

#include "base/text.h"
#include "worker/transport/flow/flows.h"

const char peer_no_memory[] = "this rank has no memory for what it has to send or receive";

void peer_lose(struct peer_link *peer, const char *text)
{
    if (peer->lost || peer->reported)
        return;
    peer->lost = true;
    peer->lack = text == peer_no_memory;
    text_copy(peer->text, sizeof(peer->text), text);
}

void peer_lose_impossible(struct peer_link *peer, const char *text)
{
    if (!peer->lost && !peer->reported)
        peer->impossible = text != peer_no_memory;
    peer_lose(peer, text);
}

void peer_lose_silent(struct peer_link *peer)
{
    peer->silent = true;
    peer_lose(peer, "its host has been silent for too long");
}

struct peer_link *peer_of_rank(struct flows *flows, uint32_t rank)
{
    for (uint32_t i = 0; i < flows->peer_count; i++)
        if (flows->peers[i].rank == rank)
            return &flows->peers[i];
    return NULL;
}
