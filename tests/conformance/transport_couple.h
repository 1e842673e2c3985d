// SPDX-License-Identifier: Apache-2.0
//
// Two ranks of one host in one thread, with the board between them in reach of the test: one of
// them can be left alone while the other one, or the test in its name, writes to it. Their
// gradients are in registered memory.

#ifndef TESTS_TRANSPORT_COUPLE_H
#define TESTS_TRANSPORT_COUPLE_H

#include "worker/memory/regions.h"
#include "worker/transport/host/board.h"
#include "worker/transport/transport.h"

#define COUPLE_BOUND_MS 20000
#define COUPLE_ROW 100000 // Elements of the memory of a rank: several pieces, many blocks.
#define COUPLE_GUARD 1024 // Guard elements behind the row.
#define COUPLE_TINY 16 // Elements of a collective that rides in its join.
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
    struct couple_rank ranks[2]; // Number 0 leads.
    struct couple_rank *victim;
    struct couple_rank *liar;
    enum reduce_op op;
    uint64_t step;
};

// Both know of each other, and have not met.
void couple_begin(struct couple *couple, uint32_t victim);
// The board stands, memory is mapped by both, and runs of each kind have been done.
void couple_open(struct couple *couple, uint32_t victim);
void couple_close(struct couple *couple);

// Both launch and complete one.
void couple_sum(struct couple *couple, uint64_t elements);
// Both have launched. A follower's run has been appended, and is not seen yet.
void couple_launch(struct couple *couple, uint64_t elements);
// One of them goes on alone, until it has lost the other one.
void couple_work(struct couple_rank *rank, uint32_t turns);

// Nothing was written behind the collective's memory.
void couple_check_guard(const struct couple_rank *rank, uint64_t elements);
void couple_check_intact_or_final(const struct couple_rank *rank, uint64_t elements);

// The board, and the rank's own seat.
struct board_head *couple_board(const struct couple_rank *rank);
struct board_seat *couple_seat(const struct couple_rank *rank);

#endif
