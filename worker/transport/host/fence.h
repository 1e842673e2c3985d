// SPDX-License-Identifier: Apache-2.0
//
// The fence around this rank's registered memory: behind it no mate writes there any more. Engine
// thread.

#ifndef WORKER_TRANSPORT_HOST_FENCE_H
#define WORKER_TRANSPORT_HOST_FENCE_H

#include <stdint.h>

struct finals;
struct flows;
struct host_run;
struct shared;

// Called before a generation is frozen, while its links are open: makes the fence, and reads how
// far mates have come. Waits for mates that are writing, flows.fence_ms at most.
void fence_freeze(struct flows *flows);
// Adds what is final of a registered run. `number`: the number of the run. After fence_freeze.
void fence_finals(const struct shared *shared, const struct host_run *run, uint64_t number,
                  struct finals *finals);
// Called when a generation is over: makes the fence, unless fence_freeze has made it, and unmaps
// the memory of mates.
void fence_let_go(struct shared *shared);

#endif
