// SPDX-License-Identifier: Apache-2.0
//
// The final elements of a collective in memory of one host. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_FINALS_H
#define WORKER_TRANSPORT_HOST_FINALS_H

struct finals;
struct flow;
struct flows;

// way.finals of memory of one host, also with two levels.
void host_finals(const struct flows *flows, const struct flow *flow, struct finals *finals);

#endif
