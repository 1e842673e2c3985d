// SPDX-License-Identifier: Apache-2.0
//
// Executes runs through the slots of the board. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_PIECES_H
#define WORKER_TRANSPORT_HOST_PIECES_H

#include "worker/kernels/kernels.h"
#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct flow;
struct shared;
struct host_run;

// Cuts a run into pieces: sets piece_elements and pieces.
void pieces_cut(const struct shared *shared, struct host_run *run, const struct flow *flow);
// Works on at most one piece in each stage. True if it did anything.
bool pieces_work(struct shared *shared);
bool pieces_pending(const struct shared *shared);
// Copies this rank's inputs unchanged to `bytes`; zeros where there is no input. streams: past the
// caches.
void pieces_gather(const struct shared *shared, const struct flow *flow, struct ring_span span,
                   uint8_t *bytes, bool streams);
// pieces_combination describes how the final bytes are computed from the sources; sources[seat]
// NULL: zeros. pieces_combine computes them into `out`.
struct kernel_combination pieces_combination(const struct flow *flow, const struct host_run *run,
                                             const void *const *sources, uint32_t count);
void pieces_combine(const struct flow *flow, const struct host_run *run, void *out,
                    const void *const *sources, uint32_t count, uint64_t elements);
// Part `seat` of `seats` of a row of elements; the last parts may be empty.
struct ring_span pieces_part(struct ring_span whole, uint32_t seats, uint32_t seat);
// The elements of a piece; none of a row.
struct ring_span pieces_span(const struct flow *flow, const struct host_run *run, uint64_t piece);
// The address of elements of a piece in the slot of a seat.
uint8_t *pieces_place(const struct shared *shared, const struct flow *flow, uint32_t seat,
                      uint64_t piece, struct ring_span whole, struct ring_span part);
// Copies final bytes to user memory.
void pieces_store(struct shared *shared, const struct flow *flow, struct ring_span span,
                  const uint8_t *bytes);

#endif
