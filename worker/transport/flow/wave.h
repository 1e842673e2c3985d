// SPDX-License-Identifier: Apache-2.0
//
// A wave: a payload that all ranks merge. This header has the wave as its caller describes it, and
// the schedule of its messages: recursive doubling as protos/topology.h says. The functions are
// pure functions of rank and world size, for any thread. Payloads, merging and frames are in
// waves.c. Pure.
//
// A rank makes its *moves* in order, each with one peer: send the value, receive one, or both (an
// exchange; the value sent is the one before the merge). p is the largest power of two not above
// the world's size n.
//
//   rank >= p      round 0: send to rank - p; round 1 + log2 p: receive the result from it
//   rank + p < n   round 0: receive from rank + p; the exchanges; then send it the result
//   other ranks    rounds 1 to log2 p: exchange with rank XOR 2^(round - 1)
//
// In one wave a rank sends each peer at most one frame and receives at most one from it. After k
// exchanges a value holds the contributions of 2^k ranks (with their extras), each once, so the
// merge need not be idempotent.

#ifndef WORKER_TRANSPORT_FLOW_WAVE_H
#define WORKER_TRANSPORT_FLOW_WAVE_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define WAVE_MAX_MOVES 12 // log2 of LOCKSTEP_MAX_WORLD, and two for the extras.

struct wave_move {
    uint32_t peer;
    uint32_t round; // Round number in the frames; equal on both sides.
    bool sends;
    bool receives;
    // True if the received value is the result: it replaces this rank's value instead of being
    // merged.
    bool replaces;
};

// Number of moves of this rank, at most WAVE_MAX_MOVES; 0 in a world of one.
uint32_t wave_moves(uint32_t rank, uint32_t world);
// Move `index`, which must be below wave_moves.
struct wave_move wave_move(uint32_t rank, uint32_t world, uint32_t index);

// The ranks whose contributions a received value holds.
struct wave_origin {
    uint32_t world;
    uint32_t core; // Ranks from `core` on are extras; the peer of an extra is rank - core.
    uint32_t first; // The contributions are those of ranks [first, first + count) and their extras.
    uint32_t count;
};

// The origin of the value that a move receives.
struct wave_origin wave_origin(uint32_t world, const struct wave_move *move);
uint32_t wave_origin_ranks(const struct wave_origin *origin); // The number of ranks in an origin.
bool wave_origin_has(const struct wave_origin *origin, uint32_t rank);

// True if `rank` receives from `peer` in `round`.
bool wave_expects(uint32_t rank, uint32_t world, uint32_t peer, uint32_t round);

// A wave: a small allreduce of an opaque payload. It is independent of collectives, and its frames
// overtake their queued frames.
//
// All ranks get the same bits if the merge is commutative; it need not be associative. Both sides
// of an exchange merge the same two values. So after k exchanges all 2^k ranks that have exchanged
// with each other hold the same bits, and an extra gets a copy. The tree of merges depends on the
// world's size alone: first each extra's value into that of its core rank; then the values of core
// ranks 0 and 1, 2 and 3, ...; then those of pairs 0-1 and 2-3; and so on.
//
// Zeros at the end of a payload do not travel.
struct wave {
    // Set by the caller, constant until wave_done().
    uint64_t step;
    // enum wave_kind (worker/order/order.h). (step, kind) is unique in a generation.
    uint32_t kind;
    uint32_t size; // Bytes of payload, at most LOCKSTEP_WAVE_BYTES, equal on all ranks.
    void (*merge)(void *into, const void *from); // Pure.
    // Returns what is impossible about a payload of a peer; NULL: it is possible. Pure. Called
    // before the payload is used. `origin` names the ranks whose contributions it holds; `own` is
    // this rank's present value. Merging two possible payloads of different ranks gives a possible
    // one, so a peer that sends an impossible one is at fault. check NULL: every payload is
    // possible.
    const char *(*check)(const void *context, const struct wave_origin *origin, const void *payload,
                         const void *own);
    const void *context; // For check; borrowed until wave_done().
    const char *name; // For diagnostics.
    // In: this rank's contribution. Out: the merged payload of all ranks.
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
    void *state; // For the transport while the wave is joined.
};

#endif
