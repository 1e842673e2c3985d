// SPDX-License-Identifier: Apache-2.0
//
// The ring schedule; see schedule.h for the words. Pure, any thread.

#include "worker/transport/ring/schedule.h"

#include "worker/transport/flow/window.h"

#include <assert.h>

static uint64_t ring_divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static uint64_t ring_stripe_length(const struct ring *ring, uint64_t stripe)
{
    const uint64_t full = ring->stripe_elements;
    const uint64_t first = stripe * full;
    return ring->elements - first < full ? ring->elements - first : full;
}

// Number of chunks of a stripe: one per rank, or fewer if chunks would be smaller than
// RING_GRAIN_BYTES, but enough that no chunk has more than chunk_elements.
static uint32_t ring_chunks(const struct ring *ring, uint64_t stripe)
{
    const uint64_t length = ring_stripe_length(ring, stripe);
    if (!ring->reduces)
        return 1;
    uint64_t chunks = ring_divide_up(length * ring->element_bytes, RING_GRAIN_BYTES);
    const uint64_t least = ring_divide_up(length, ring->chunk_elements);
    if (chunks < least)
        chunks = least;
    if (chunks > ring->world)
        chunks = ring->world;
    return chunks == 0 ? 1 : (uint32_t)chunks;
}

// A collective is eager if all that a predecessor can send before this rank launches fits in
// LOCKSTEP_EAGER_BYTES. A predecessor can send every chunk except the one that this rank starts. To
// have one rule for all ranks, this counts every chunk except the smallest. (A broadcast has one
// chunk, and all of it can arrive.) A collective of more than LOCKSTEP_EAGER_FRAMES chunks is not
// eager.
static bool ring_eager(const struct ring *ring)
{
    if (ring->stripes != 1)
        return false;
    const uint32_t chunks = ring_chunks(ring, 0);
    if (chunks > LOCKSTEP_EAGER_FRAMES)
        return false;
    const bool all = !ring->reduces || chunks < ring->world;
    const uint64_t least = all ? 0 : ring->elements / chunks;
    return (ring->elements - least) * ring->element_bytes <= LOCKSTEP_EAGER_BYTES;
}

// Cuts the elements into stripes: as few as chunk_elements allows, but two if chunks then have at
// least split_bytes. Stripes are equally long, so that no short one comes last. Chunks are whole
// cache lines as far as chunk_elements allows.
static void ring_cut(struct ring *ring, uint32_t split_bytes)
{
    const uint64_t width = ring->reduces ? ring->world : 1; // Chunks of a stripe.
    const uint64_t line = RING_LINE_BYTES / ring->element_bytes;
    uint64_t stripes = ring_divide_up(ring->elements, width * ring->chunk_elements);
    if (stripes == 1 && ring->elements / width >= split_bytes / ring->element_bytes)
        stripes = 2;
    if (stripes == 0)
        stripes = 1;
    uint64_t chunk = ring_divide_up(ring->elements, stripes * width);
    chunk = chunk == 0 ? line : ring_divide_up(chunk, line) * line;
    if (chunk > ring->chunk_elements)
        chunk = ring->chunk_elements;
    ring->stripe_elements = chunk * width;
    ring->stripes = ring_divide_up(ring->elements, ring->stripe_elements);
    if (ring->stripes == 0)
        ring->stripes = 1;
}

static void ring_init(struct ring *ring, uint64_t elements, uint32_t element_bytes,
                      uint32_t chunk_bytes, uint32_t split_bytes)
{
    assert(element_bytes > 0 && chunk_bytes >= element_bytes && ring->rank < ring->world);
    ring->element_bytes = element_bytes;
    ring->elements = elements;
    ring->chunk_elements = chunk_bytes / element_bytes;
    ring_cut(ring, split_bytes);
    assert(ring->stripes <= UINT32_MAX);
    ring->window = flow_window(ring->reduces ? ring->world : 1, chunk_bytes);
    ring->eager = ring_eager(ring);
}

void ring_init_allreduce(struct ring *ring, uint32_t world, uint32_t rank, uint64_t elements,
                         uint32_t element_bytes, uint32_t chunk_bytes, uint32_t split_bytes)
{
    *ring = (struct ring){.world = world, .rank = rank, .reduces = true};
    ring_init(ring, elements, element_bytes, chunk_bytes, split_bytes);
}

void ring_init_broadcast(struct ring *ring, uint32_t world, uint32_t rank, uint32_t root,
                         uint64_t elements, uint32_t element_bytes, uint32_t chunk_bytes)
{
    *ring = (struct ring){.world = world, .rank = rank, .reduces = false, .root = root};
    assert(root < world);
    ring_init(ring, elements, element_bytes, chunk_bytes, RING_SPLIT_BYTES);
}

bool ring_present(const struct ring *ring, uint64_t stripe, uint32_t owner)
{
    if (stripe >= ring->stripes)
        return false;
    return ring->reduces ? owner < ring_chunks(ring, stripe) : owner == ring->root;
}

uint64_t ring_stripe_of(const struct ring *ring, uint64_t element)
{
    return element / ring->stripe_elements;
}

struct ring_span ring_chunk(const struct ring *ring, uint64_t stripe, uint32_t owner)
{
    const uint64_t start = stripe * ring->stripe_elements;
    const uint64_t length = ring_stripe_length(ring, stripe);
    if (!ring->reduces)
        return (struct ring_span){start, length};
    const uint32_t chunks = ring_chunks(ring, stripe);
    const uint64_t each = length / chunks;
    const uint64_t longer = length % chunks; // So many chunks have one element more.
    const uint64_t before = owner < longer ? owner : longer;
    return (struct ring_span){start + owner * each + before, each + (owner < longer)};
}

static uint32_t ring_before(const struct ring *ring, uint32_t rank)
{
    return (rank + ring->world - 1) % ring->world;
}

bool ring_sends_reduce(const struct ring *ring, uint32_t owner)
{
    return ring->reduces && ring->world > 1 && ring->rank != owner;
}

bool ring_receives_reduce(const struct ring *ring, uint32_t owner)
{
    return ring->reduces && ring->world > 1 && ring_before(ring, ring->rank) != owner;
}

bool ring_sends_gather(const struct ring *ring, uint32_t owner)
{
    return ring->world > 1 && ring->rank != ring_before(ring, owner);
}

bool ring_receives_gather(const struct ring *ring, uint32_t owner)
{
    return ring->world > 1 && ring->rank != owner;
}

bool ring_first(const struct ring *ring, uint64_t stripe, uint32_t *owner)
{
    *owner = ring->reduces ? ring_before(ring, ring->rank) : ring->rank;
    return ring->world > 1 && ring_present(ring, stripe, *owner);
}

uint32_t ring_receives(const struct ring *ring, uint64_t stripe)
{
    if (ring->world == 1)
        return 0;
    if (!ring->reduces)
        return ring->rank != ring->root;
    // Each chunk arrives twice, except the reduce frame and the gather frame that start here.
    const uint32_t chunks = ring_chunks(ring, stripe);
    return 2 * chunks - (ring_before(ring, ring->rank) < chunks) - (ring->rank < chunks);
}

uint32_t ring_sends(const struct ring *ring, uint64_t stripe)
{
    if (ring->world == 1)
        return 0;
    if (!ring->reduces)
        return ring->rank != ring_before(ring, ring->root);
    // Each chunk is sent twice, except the reduce frame and the gather frame that end here.
    const uint32_t chunks = ring_chunks(ring, stripe);
    return 2 * chunks - (ring->rank < chunks) - ((ring->rank + 1) % ring->world < chunks);
}

// All stripes but the last have the same shape.
uint64_t ring_receives_total(const struct ring *ring)
{
    const uint64_t last = ring->stripes - 1;
    return (last > 0 ? last * ring_receives(ring, 0) : 0) + ring_receives(ring, last);
}

uint64_t ring_sends_total(const struct ring *ring)
{
    const uint64_t last = ring->stripes - 1;
    return (last > 0 ? last * ring_sends(ring, 0) : 0) + ring_sends(ring, last);
}
