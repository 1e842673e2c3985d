// SPDX-License-Identifier: Apache-2.0
//
// A couple: two ranks of one host in one thread, for tests of the shared board between them. The
// test can write to the board in the name of one rank, the liar, while it runs only the other rank,
// the victim. The gradients lie in registered memory.

#ifndef TESTS_TRANSPORT_COUPLE_H
#define TESTS_TRANSPORT_COUPLE_H

#include "worker/memory/regions.h"
#include "worker/transport/host/board.h"
#include "worker/transport/transport.h"

#define COUPLE_BOUND_MS 20000
#define COUPLE_ROW 100000 // Elements of a rank's memory: several pieces, many blocks.
#define COUPLE_GUARD 1024 // Guard elements behind the row.
#define COUPLE_TINY 16 // Elements of a collective so small that its data travels in its join.
#define COUPLE_LARGE COUPLE_ROW

struct couple_rank {
    uint32_t number;
    struct transport *transport;
    struct regions *regions;
    float *memory; // [COUPLE_ROW + COUPLE_GUARD]
    struct extent extent;
    struct collective collective;
    bool formed;
    uint32_t done;
    uint32_t lost;
    char text[256];
};

struct couple {
    struct couple_rank ranks[2]; // Rank 0 leads.
    struct couple_rank *victim;
    struct couple_rank *liar;
    enum reduce_op op;
    uint64_t step;
};

// Opens both ranks and starts to form their world; the ranks are not connected yet.
void couple_begin(struct couple *couple, uint32_t victim);
// Opens both ranks, forms the world, and runs small and large collectives. The board exists then,
// and both ranks have mapped each other's memory.
void couple_open(struct couple *couple, uint32_t victim);
void couple_close(struct couple *couple);

// Both ranks launch a collective and complete it.
void couple_sum(struct couple *couple, uint64_t elements);
// Both ranks launch a collective. If the victim follows, the liar has appended the collective's run
// to the board, and the victim has not read it yet.
void couple_launch(struct couple *couple, uint64_t elements);
// Runs only one rank, for this number of turns or until it has lost the other rank.
void couple_work(struct couple_rank *rank, uint32_t turns);

// Checks that nothing was written behind the collective's memory.
void couple_check_guard(const struct couple_rank *rank, uint64_t elements);
// Checks that each element holds its input or its final sum.
void couple_check_intact_or_final(const struct couple_rank *rank, uint64_t elements);

// The board of both ranks, and the seat of one rank on it.
struct board_head *couple_board(const struct couple_rank *rank);
struct board_seat *couple_seat(const struct couple_rank *rank);

#endif
