// SPDX-License-Identifier: Apache-2.0
//
// The schedule of an allreduce by pairs: recursive doubling, or recursive halving and then
// doubling. It says which rank sends which elements to which peer, and in which order. Pure
// functions of a few numbers; no memory, no sockets. Any thread.
//
// Words. The elements are cut into *stripes*, which are reduced independently. p is the largest
// power of two not above the world's size n, l its logarithm. The ranks below p are the *core*; the
// n - p others are *extras*: extra e hands its input to rank e - p first and gets the result from
// it last. A rank makes its *moves* in order, each with one peer: send, receive, or both (an
// exchange).
//
// Doubling. In round k, 1 to l, rank r exchanges all of the stripe with r XOR 2^(k - 1). Each adds
// the received values to its own: afterwards both hold the sum over 2^k ranks (and their extras),
// with the same bits. This takes l rounds and l times the bytes.
//
// Halving. In round k, 1 to l, rank r exchanges with the same peer, but halves what it holds: it
// sends one half and keeps the other, the lower one where bit k - 1 of r is 0. After round l it
// holds the sum over all ranks of its own part. The rounds l + 1 to 2 l undo this: in round 2 l + 1
// - k the pair of round k exchanges the parts of the result that each holds. This takes 2 l rounds,
// and as few bytes as a ring: 2 (p - 1) / p.
//
// Both add up along the same tree: round k adds the sums of two blocks of 2^(k - 1) ranks, and the
// block of the lower ranks is the first operand. The input of an extra is added to that of its peer
// before round 1.
//
// A frame of a round may have no elements, because a stripe can have fewer elements than there are
// ranks.

#ifndef WORKER_TRANSPORT_PAIR_SCHEDULE_H
#define WORKER_TRANSPORT_PAIR_SCHEDULE_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

#define PAIR_MAX_ROUNDS 10 // log2 of LOCKSTEP_MAX_WORLD.
#define PAIR_MAX_MOVES (2 * PAIR_MAX_ROUNDS + 2)
#define PAIR_MAX_PEERS (PAIR_MAX_ROUNDS + 1)

struct pair {
    // set at init, then constant
    uint32_t world;
    uint32_t rank;
    uint32_t core;
    uint32_t rounds; // log2 of core.
    bool halves;
    uint32_t window; // Stripes in flight.
    uint64_t elements;
    uint64_t stripe_elements; // Most elements of one stripe.
    uint64_t stripes; // At least 1.
    bool eager; // True if no credit is needed: a single stripe of at most LOCKSTEP_EAGER_BYTES.
};

struct pair_move {
    uint32_t peer;
    uint32_t round; // Round number in the frames; equal on both sides. 0: the input of an extra.
    bool sends;
    bool receives;
    bool final; // True if the frames carry results, false if partial sums.
};

// chunk_bytes: most bytes of one stripe. element_bytes: size of the larger of the two dtypes in
// frames.
void pair_init(struct pair *pair, bool halves, uint32_t world, uint32_t rank, uint64_t elements,
               uint32_t element_bytes, uint32_t chunk_bytes);

// Number of moves of this rank, at most PAIR_MAX_MOVES; 0 in a world of one.
uint32_t pair_moves(const struct pair *pair);
// Move `index`, which must be below pair_moves.
struct pair_move pair_move(const struct pair *pair, uint32_t index);
// The move after which this rank has the sum over all ranks of the elements that it holds.
// PAIR_MAX_MOVES: none, because this rank is an extra.
uint32_t pair_last_sum(const struct pair *pair);
// For a move in which results arrive: returns the move in which this rank sent its input for them.
uint32_t pair_given(const struct pair *pair, uint32_t index);
// The move in which this rank receives from that peer in that round. PAIR_MAX_MOVES: none.
uint32_t pair_expects(const struct pair *pair, uint32_t peer, uint32_t round);

// The elements of a stripe, and the elements of it that a move sends and receives.
struct ring_span pair_stripe(const struct pair *pair, uint64_t stripe);
struct ring_span pair_sent_span(const struct pair *pair, uint64_t stripe, uint32_t index);
struct ring_span pair_received_span(const struct pair *pair, uint64_t stripe, uint32_t index);

#endif
