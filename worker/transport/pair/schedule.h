// SPDX-License-Identifier: Apache-2.0
//
// The schedule of an allreduce by pairs: recursive doubling, or recursive halving and then
// doubling. Which rank sends which elements to whom, in which order. Pure functions of a few
// numbers; no memory, no sockets. Any thread.
//
// Words. The elements are cut into *stripes*, each of which travels by itself. p is the largest
// power of two not above the world's size n, l its logarithm. The ranks below p are the *core*; the
// n - p others are *extras*: extra e hands its input to rank e - p first and gets the result from
// it last. A rank makes its *moves* in order, each with one peer: send, receive, or both (an
// exchange).
//
// Doubling. In round k, 1 to l, rank r exchanges all of the stripe with r XOR 2^(k - 1). Each adds
// what it gets to what it has: afterwards both hold the sum over 2^k ranks (and their extras), and
// compute it alike. l rounds, l times the bytes.
//
// Halving. In round k, 1 to l, rank r exchanges with the same peer, but halves what it holds: it
// sends one half and keeps the other, the lower one where bit k - 1 of r is 0. After round l it
// holds the sum over all ranks of its own part. The rounds l + 1 to 2 l undo this: in round 2 l + 1
// - k the pair of round k exchanges what each holds of the result. 2 l rounds, and as few bytes as
// a ring: 2 (p - 1) / p.
//
// So both add up along one tree: after round k the sums of blocks of 2^k ranks meet, and the block
// of the lower ranks is the first operand. An extra's input is added to that of its peer before
// that.
//
// A frame of a round may be empty of elements: a stripe can have fewer than ranks.

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
    uint64_t stripe_elements; // Most of one stripe.
    uint64_t stripes; // At least 1.
    bool eager; // So small that no credit is needed: one stripe of LOCKSTEP_EAGER_BYTES at most.
};

struct pair_move {
    uint32_t peer;
    uint32_t round; // In the frames; equal on both sides. 0: an extra's input.
    bool sends;
    bool receives;
    bool final; // The frames carry results; else partial sums.
};

// chunk_bytes: most of one stripe, by the largest element that travels.
void pair_init(struct pair *pair, bool halves, uint32_t world, uint32_t rank, uint64_t elements,
               uint32_t element_bytes, uint32_t chunk_bytes);

// Moves of this rank, at most PAIR_MAX_MOVES; 0 in a world of one.
uint32_t pair_moves(const struct pair *pair);
// Move `index`, below that number.
struct pair_move pair_move(const struct pair *pair, uint32_t index);
// The move after which this rank has the sum over all ranks, of what it holds. Of an extra: none,
// PAIR_MAX_MOVES.
uint32_t pair_last_sum(const struct pair *pair);
// Of a move in which results arrive: the move in which this rank gave away its input for them.
uint32_t pair_given(const struct pair *pair, uint32_t index);
// The move in which this rank receives from that peer in that round. PAIR_MAX_MOVES: there is none.
uint32_t pair_expects(const struct pair *pair, uint32_t peer, uint32_t round);

// The elements of a stripe, and those that a move sends and receives of it.
struct ring_span pair_stripe(const struct pair *pair, uint64_t stripe);
struct ring_span pair_sent_span(const struct pair *pair, uint64_t stripe, uint32_t index);
struct ring_span pair_received_span(const struct pair *pair, uint64_t stripe, uint32_t index);

#endif
