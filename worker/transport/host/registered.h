// SPDX-License-Identifier: Apache-2.0
//
// Executes runs in the registered memory of the ranks. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_REGISTERED_H
#define WORKER_TRANSPORT_HOST_REGISTERED_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

#define REGISTERED_BLOCKS 16 // Blocks written between two checks of `revoked`.

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
// Returns the elements of a run that a seat sums.
struct ring_span registered_slice(const struct shared *shared, const struct host_run *run,
                                  uint32_t seat);
// Copies final bytes from the memory of seat `from` to that of seat `to`; to BOARD_NONE: to all
// other seats.
void registered_copy_span(const struct shared *shared, const struct host_run *run,
                          struct ring_span span, uint32_t from, uint32_t to);

#endif
