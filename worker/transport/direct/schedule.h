// SPDX-License-Identifier: Apache-2.0
//
// Which elements of an allreduce a member owns, and the pieces in which a run of elements travels.
// Pure functions of values that are equal on all ranks. Any thread.

#ifndef WORKER_TRANSPORT_DIRECT_SCHEDULE_H
#define WORKER_TRANSPORT_DIRECT_SCHEDULE_H

#include "worker/memory/span.h"

#include <stdint.h>

// Returns the elements that member `index` of `members` owns: contiguous, in the order of members,
// and as equal as multiples of SCHEDULE_GRAIN elements can be. Members at the end may own nothing.
#define SCHEDULE_GRAIN 16
struct ring_span direct_owned(uint64_t elements, uint32_t members, uint32_t index);

// Returns the elements of a piece of a run that is summed by its owner: a quarter of the run, so
// that sums overlap with transfers, but no piece is very small. element: bytes of an element as it
// travels.
uint64_t direct_piece_of_sum(uint64_t elements, uint32_t element, uint32_t chunk_bytes);
// Returns the elements of a piece of a run that is only moved.
uint64_t direct_piece_of_move(uint32_t element, uint32_t chunk_bytes);

// Returns the number of pieces of a run. A run of no elements has none.
uint32_t direct_pieces(uint64_t elements, uint64_t piece);
// Returns the elements of piece `index` of a run.
struct ring_span direct_piece(struct ring_span run, uint64_t piece, uint32_t index);

#endif
