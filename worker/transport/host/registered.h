// SPDX-License-Identifier: Apache-2.0
//
// Runs in the ranks' registered memory. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_REGISTERED_H
#define WORKER_TRANSPORT_HOST_REGISTERED_H

#include <stdbool.h>
#include <stdint.h>

struct board_run;
struct flow;
struct shared;
struct host_run;

// 0, or -1 without memory.
int registered_open(struct shared *shared);
void registered_close(struct shared *shared);
// A join says where its memory is, if the collective can run there.
void registered_join(struct shared *shared, const struct flow *flow, uint32_t record);
// The run of that record is none in registered memory.
void registered_drop(struct shared *shared, uint32_t record);
// Takes what a run says of the memory of all. `from` is this rank's copy, which was checked. NULL,
// or what is impossible about it; *seat: whose.
const char *registered_read(struct shared *shared, const struct board_run *from,
                            const struct flow *flow, struct host_run *run, uint32_t *seat);
// Works on some blocks of one run, and on news of regions. True if it did anything.
bool registered_work(struct shared *shared);
bool registered_pending(const struct shared *shared);
// Returns when no mate writes to this rank's memory any more.
void registered_let_go(struct shared *shared);

#endif
