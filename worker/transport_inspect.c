// SPDX-License-Identifier: Apache-2.0
//
// Which links stand still: for whoever explains a stall. A link is looked at only when somebody
// asks, so it stands still since the first look at which it was as it is now; that is a bound from
// below. Driver.

#include "worker/transport_parts.h"

#define INSPECT_STILL_MS 1000 // Less is no news.

static struct link_state inspect_look(struct transport *transport, struct peer_link *peer)
{
    struct link *link = peer->stream.link;
    return (struct link_state){
        .rank = peer->rank,
        .awaited = transport_needs(transport, peer),
        .unsent = peer->stream.queued_bytes +
                  (link != NULL && link->ops->unsent != NULL ? link->ops->unsent(link) : 0),
        .received = peer->stream.bytes_received,
    };
}

// Whether nothing has moved on it for long enough. What was seen is kept with the peer.
static bool inspect_stands(struct peer_link *peer, const struct link_state *now, uint64_t now_ms,
                           struct link_state *link)
{
    struct link_state *seen = &peer->seen;
    const bool moved = seen->still_ms == 0 || now->received != seen->received ||
                       now->unsent != seen->unsent || now->awaited != seen->awaited;
    if (moved) {
        *seen = *now;
        seen->still_ms = now_ms;
        return false;
    }
    *link = *now;
    link->still_ms = now_ms - seen->still_ms;
    return link->still_ms >= INSPECT_STILL_MS && (now->unsent > 0 || now->awaited);
}

uint32_t transport_inspect(struct transport *transport, uint64_t now_ms, struct link_state *links,
                           uint32_t most)
{
    uint32_t count = 0;
    thread_assert(&transport->thread);
    for (uint32_t i = 0; i < transport->peer_count && count < most; i++) {
        struct peer_link *peer = &transport->peers[i];
        if (peer->state != PEER_PROVEN)
            continue;
        const struct link_state now = inspect_look(transport, peer);
        count += inspect_stands(peer, &now, now_ms, &links[count]);
    }
    return count;
}
