// SPDX-License-Identifier: Apache-2.0
//
// Collectives in memory that mates share. Not there yet: nobody chooses these algorithms. Engine
// thread.

#include "worker/transport_parts.h"

#include <assert.h>

int shared_form(struct transport *transport)
{
    (void)transport;
    return 0;
}

void shared_proven(struct peer_link *peer)
{
    (void)peer;
}

bool shared_settled(const struct transport *transport)
{
    (void)transport;
    return true;
}

bool shared_stands(const struct transport *transport)
{
    (void)transport;
    return false;
}

void shared_launch(struct transport *transport, struct flow *flow)
{
    (void)transport;
    (void)flow;
    assert(false && "no plan has this algorithm");
}

bool shared_work(struct transport *transport)
{
    (void)transport;
    return false;
}

bool shared_pending(const struct transport *transport)
{
    (void)transport;
    return false;
}

bool shared_needs(struct transport *transport, const struct peer_link *peer)
{
    (void)transport;
    (void)peer;
    return false;
}

void shared_forget(struct transport *transport)
{
    (void)transport;
}
