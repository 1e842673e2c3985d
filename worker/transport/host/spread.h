// SPDX-License-Identifier: Apache-2.0
//
// Spreads the ranks of a host over its cores. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_SPREAD_H
#define WORKER_TRANSPORT_HOST_SPREAD_H

struct flows;

// Called before this rank waits for mates: publishes its core, and now and then moves to a core
// with fewer ranks.
void spread_wait(struct flows *flows);

#endif
