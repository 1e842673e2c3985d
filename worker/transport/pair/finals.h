// SPDX-License-Identifier: Apache-2.0
//
// The final elements of an allreduce by pairs. Engine thread.

#ifndef WORKER_TRANSPORT_PAIR_FINALS_H
#define WORKER_TRANSPORT_PAIR_FINALS_H

struct finals;
struct flow;
struct flows;

// way.finals of doubling and halving.
void pair_finals(const struct flows *flows, const struct flow *flow, struct finals *finals);

#endif
