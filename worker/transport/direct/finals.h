// SPDX-License-Identifier: Apache-2.0
//
// The final elements of an allreduce by direct. Engine thread.

#ifndef WORKER_TRANSPORT_DIRECT_FINALS_H
#define WORKER_TRANSPORT_DIRECT_FINALS_H

struct finals;
struct flow;
struct flows;

// way.finals of direct.
void direct_finals(const struct flows *flows, const struct flow *flow, struct finals *finals);

#endif
