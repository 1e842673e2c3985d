// SPDX-License-Identifier: Apache-2.0
//
// Which rank waits on which core. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_SPREAD_H
#define WORKER_TRANSPORT_HOST_SPREAD_H

struct flows;

// This rank is about to wait for others, where they share cores or are not there at once.
void spread_wait(struct flows *flows);

#endif
