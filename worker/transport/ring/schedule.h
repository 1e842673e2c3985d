// SPDX-License-Identifier: Apache-2.0
//
// The schedule of one ring collective: which elements form which chunk, and which rank sends which
// frame to its successor. Pure functions of a few numbers; no memory, no sockets. Any thread.
//
// Words. The world has n ranks; rank r sends to r + 1 and receives from r - 1, modulo n. The
// elements are cut into *stripes*, a stripe into at most n *chunks*. A chunk is named by its
// *owner*: in an allreduce chunk c belongs to rank c, in a broadcast every stripe is one chunk and
// belongs to the root. Each chunk is one frame per hop:
//
//   reduce   c+1 -> c+2 -> ... -> c    n - 1 hops: partial sums on their way to the owner
//   gather   c -> c+1 -> ... -> c-1    n - 1 hops: final bytes from the owner
//
// A broadcast has the gather only. So every rank sends in one direction and receives from the
// other, at most two frames per chunk, and 2 (n - 1) / n of the bytes in all, which is the minimum.
//
// Chunks of a stripe are as equal as whole elements allow. A small stripe has fewer chunks than
// ranks, because each frame has a fixed cost: cutting makes no chunk smaller than RING_GRAIN_BYTES.
// A stripe has at least one chunk, so a collective of no elements is one frame per hop.
//
// Stripes are equally long; only the last one may be a little shorter. While a rank adds up one
// stripe, the link transfers another. So a collective of at least split_bytes per chunk has at
// least two stripes.

#ifndef WORKER_TRANSPORT_RING_SCHEDULE_H
#define WORKER_TRANSPORT_RING_SCHEDULE_H

#include "protos/limits.h"
#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

#define RING_GRAIN_BYTES LOCKSTEP_CHUNK_GRAIN_BYTES
#define RING_SPLIT_BYTES (256 * 1024)
#define RING_SPLIT_NEVER UINT32_MAX
#define RING_LINE_BYTES 64

struct ring {
    // set at init, then constant
    uint32_t world;
    uint32_t rank;
    uint32_t element_bytes;
    bool reduces; // True for an allreduce, false for a broadcast.
    uint32_t root; // Root of a broadcast.
    uint32_t window; // Stripes in flight.
    uint64_t elements;
    uint64_t chunk_elements; // Most elements of one chunk.
    uint64_t stripe_elements; // Elements of every stripe but the last.
    uint64_t stripes; // At least 1.
    // True if the collective is so small that it needs no credit; see ring_eager in schedule.c.
    bool eager;
};

// split_bytes: a single stripe whose chunks have at least this size is cut into two.
// RING_SPLIT_BYTES, or RING_SPLIT_NEVER.
void ring_init_allreduce(struct ring *ring, uint32_t world, uint32_t rank, uint64_t elements,
                         uint32_t element_bytes, uint32_t chunk_bytes, uint32_t split_bytes);
void ring_init_broadcast(struct ring *ring, uint32_t world, uint32_t rank, uint32_t root,
                         uint64_t elements, uint32_t element_bytes, uint32_t chunk_bytes);

// True if this stripe has a chunk of this owner. False also if `owner` is no rank.
bool ring_present(const struct ring *ring, uint64_t stripe, uint32_t owner);
uint64_t ring_stripe_of(const struct ring *ring, uint64_t element);
// Elements of a chunk that is present.
struct ring_span ring_chunk(const struct ring *ring, uint64_t stripe, uint32_t owner);

// True if this rank sends or receives such a frame of a chunk that is present.
bool ring_sends_reduce(const struct ring *ring, uint32_t owner);
bool ring_receives_reduce(const struct ring *ring, uint32_t owner);
bool ring_sends_gather(const struct ring *ring, uint32_t owner);
bool ring_receives_gather(const struct ring *ring, uint32_t owner);

// Finds the owner whose chunk this rank sends without having received a frame: its predecessor in
// an allreduce, the rank itself if it is the root of a broadcast. False: there is none.
bool ring_first(const struct ring *ring, uint64_t stripe, uint32_t *owner);

// Frames that this rank receives and sends in one stripe.
uint32_t ring_receives(const struct ring *ring, uint64_t stripe);
uint32_t ring_sends(const struct ring *ring, uint64_t stripe);
// Frames that this rank receives and sends in all stripes.
uint64_t ring_receives_total(const struct ring *ring);
uint64_t ring_sends_total(const struct ring *ring);

#endif
