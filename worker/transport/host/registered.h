// SPDX-License-Identifier: Apache-2.0
//
// Executes runs in the registered memory of the ranks. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_REGISTERED_H
#define WORKER_TRANSPORT_HOST_REGISTERED_H

#include <stdbool.h>
#include <stdint.h>

struct board_run;
struct flow;
struct shared;
struct host_run;

// Allocates the row lists. 0, or -1 without memory.
int registered_open(struct shared *shared);
void registered_close(struct shared *shared);
// Writes into the record of a join where the memory is, if the collective can run in registered
// memory.
void registered_join(struct shared *shared, const struct flow *flow, uint32_t record);
// Called when the run of a record is not in registered memory: frees its row block.
void registered_drop(struct shared *shared, uint32_t record);
// Reads from a run where the memory of all ranks is. `from`: this rank's checked copy of the run.
// Returns NULL, or what is impossible; then *seat is the seat at fault.
const char *registered_read(struct shared *shared, const struct board_run *from,
                            const struct flow *flow, struct host_run *run, uint32_t *seat);
// Reduces some blocks of one run, and handles news of regions. True if it reduced or completed
// anything.
bool registered_work(struct shared *shared);
bool registered_pending(const struct shared *shared);
// Revokes this rank's memory. Returns when no mate writes to it any more.
void registered_let_go(struct shared *shared);

#endif
