// SPDX-License-Identifier: Apache-2.0
//
// Recursive doubling and halving. Not there yet: nobody chooses these algorithms. Engine thread.

#include "worker/transport_parts.h"

#include <assert.h>

void pair_launch(struct transport *transport, struct flow *flow)
{
    (void)transport;
    (void)flow;
    assert(false && "no plan has this algorithm");
}

const char *pair_begin(struct peer_link *peer, struct stream *stream)
{
    (void)peer;
    (void)stream;
    return "its algorithm is not known here";
}

const char *pair_end(struct peer_link *peer, struct stream *stream)
{
    (void)peer;
    (void)stream;
    return NULL;
}

const char *pair_credit(struct peer_link *peer, const struct frame_header *header)
{
    (void)peer;
    (void)header;
    return "its algorithm is not known here";
}

void pair_sent(struct transport *transport, struct out_frame *frame, bool dropped)
{
    (void)transport;
    (void)frame;
    (void)dropped;
}

bool pair_needs(struct transport *transport, const struct peer_link *peer)
{
    (void)transport;
    (void)peer;
    return false;
}

void pair_forget(struct transport *transport)
{
    (void)transport;
}
