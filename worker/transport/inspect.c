// SPDX-License-Identifier: Apache-2.0
//
// Finds the links on which nothing moves, to explain a stall. A link is examined only when
// transport_inspect is called. The time since which it has not moved counts from the first call
// that saw its present state, so the true time can be longer. Driver.

#include "worker/transport/inspect.h"

#include "worker/transport/flow/flows.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#define INSPECT_STILL_MS 1000 // A link that has not moved for less than this is not reported.

static struct link_state inspect_look(struct transport *transport, struct peer_link *peer)
{
    struct link *link = peer->stream.link;
    struct link_state now = {
        .rank = peer->rank,
        .awaited = transport_needs(transport, peer),
        .unsent = stream_unsent(&peer->stream),
        .received = peer->stream.bytes_received,
    };
    now.reached = now.unsent > 0 && link && link->ops->reached && link->ops->reached(link);
    return now;
}

// True if nothing has moved on the link for INSPECT_STILL_MS. The state of the link is kept in
// peer->seen.
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

// Returns the place to write a link to: a free one, or that of a link without unsent bytes. NULL:
// none.
static struct link_state *inspect_room(struct link_state *links, uint32_t *count, uint32_t most,
                                       const struct link_state *link)
{
    if (*count < most)
        return &links[(*count)++];
    for (uint32_t i = 0; i < most && link->unsent > 0; i++)
        if (links[i].unsent == 0)
            return &links[i];
    return NULL;
}

uint32_t transport_inspect(struct transport *transport, uint64_t now_ms, struct link_state *links,
                           uint32_t most)
{
    uint32_t count = 0;
    thread_assert(&transport->flows.thread);
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct peer_link *peer = transport->flows.links.all[i];
        struct link_state link;
        // A further link may be awaited before it is made.
        if (peer->state != PEER_PROVEN && (!peer->further || peer->state == PEER_GONE))
            continue;
        const struct link_state now = inspect_look(transport, peer);
        if (!inspect_stands(peer, &now, now_ms, &link))
            continue;
        struct link_state *room = inspect_room(links, &count, most, &link);
        if (room)
            *room = link;
    }
    return count;
}

struct device_held transport_inspect_device(struct transport *transport)
{
    return device_inspect(&transport->flows);
}

void transport_inspect_nccl(const struct transport *transport, char *text, size_t bytes)
{
    device_inspect_nccl(&transport->flows, text, bytes);
}
