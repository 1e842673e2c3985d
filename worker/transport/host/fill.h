// SPDX-License-Identifier: Apache-2.0
//
// Chooses how slots are filled: through the caches or past them. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_FILL_H
#define WORKER_TRANSPORT_HOST_FILL_H

#include <stdbool.h>
#include <stdint.h>

struct board_run;
struct flow;
struct shared;
struct host_run;

// At the leader: returns true if the slots of this run are to be filled past the caches.
bool fill_choose(struct shared *shared, uint64_t run, const struct flow *flow);
// Called when this rank sees the next run.
void fill_see(struct shared *shared, struct host_run *run, const struct board_run *from);
// Measure the time of work on the pieces of a run. Pass the result of fill_begin to fill_end.
uint64_t fill_begin(const struct host_run *run);
void fill_end(struct host_run *run, uint64_t since_ns);
// Called when the run is done here.
void fill_done(struct shared *shared, struct host_run *run, const struct flow *flow);

#endif
