// SPDX-License-Identifier: Apache-2.0
//
// The final elements of a collective on a ring. Engine thread.

#ifndef WORKER_TRANSPORT_RING_FINALS_H
#define WORKER_TRANSPORT_RING_FINALS_H

struct finals;
struct flow;
struct flows;

// way.finals of the ring.
void ring_finals(const struct flows *flows, const struct flow *flow, struct finals *finals);

#endif
