// SPDX-License-Identifier: Apache-2.0
//
// The schedule of doubling and halving, run by all ranks of small worlds on sets of ranks instead
// of numbers: whatever a rank sends must be what its peer expects, sums must meet in order, and in
// the end every element must hold every rank once.

#include "protos/topology.h"
#include "worker/transport/pair/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define WORLD_MAX 17
#define ELEMENTS_MAX 70

static const uint64_t sizes[] = {0, 1, 2, 3, 7, 8, 16, 17, 31, 64, 70};
static const uint32_t chunk_bytes[] = {4, 8, 28, 64, 4096};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

// A rank's knowledge of an element: the ranks whose inputs are in its sum, and whether that is the
// result.
struct world {
    struct pair pairs[WORLD_MAX];
    uint32_t sums[WORLD_MAX][ELEMENTS_MAX];
    bool results[WORLD_MAX][ELEMENTS_MAX];
    uint32_t at[WORLD_MAX]; // The move of each rank.
    uint64_t sent[WORLD_MAX]; // Elements.
};

typedef void check_function(struct world *world, uint32_t count);

static void every_shape(check_function *check, bool halves)
{
    static struct world world;
    for (uint32_t count = 1; count <= WORLD_MAX; count++)
        for (size_t s = 0; s < LENGTH(sizes); s++)
            for (size_t c = 0; c < LENGTH(chunk_bytes); c++) {
                memset(&world, 0, sizeof(world));
                for (uint32_t r = 0; r < count; r++)
                    pair_init(&world.pairs[r], halves, count, r, sizes[s], 4, chunk_bytes[c]);
                check(&world, count);
            }
}

static void check_stripes(struct world *world, uint32_t count)
{
    const struct pair *pair = &world->pairs[count - 1];
    uint64_t next = 0;
    for (uint64_t stripe = 0; stripe < pair->stripes; stripe++) {
        const struct ring_span span = pair_stripe(pair, stripe);
        assert_int_equal(span.first, next);
        assert_true(span.count <= pair->stripe_elements);
        next += span.count;
    }
    assert_int_equal(next, pair->elements);
    assert_true(pair->stripes >= 1);
    assert_int_equal(pair->eager, pair->stripes == 1);
    assert_int_equal(pair->stripes, world->pairs[0].stripes);
    assert_int_equal(pair_moves(pair) == 0, count == 1);
    assert_true(pair_moves(pair) <= PAIR_MAX_MOVES);
}

static bool is_neighbour(uint32_t rank, uint32_t world, uint32_t other)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    const uint32_t count = topology_neighbours(rank, world, ranks);
    for (uint32_t i = 0; i < count; i++)
        if (ranks[i] == other)
            return true;
    return false;
}

// Every frame has a receiver that expects it, over a link that exists, of the same kind and span;
// and no peer sends twice in one round.
static void check_frames(struct world *world, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        const struct pair *pair = &world->pairs[r];
        for (uint32_t i = 0; i < pair_moves(pair); i++) {
            const struct pair_move move = pair_move(pair, i);
            const struct pair *other = &world->pairs[move.peer];
            assert_true(move.peer < count && is_neighbour(r, count, move.peer));
            assert_true(i == 0 || pair_move(pair, i - 1).round < move.round);
            if (!move.sends)
                continue;
            const uint32_t there = pair_expects(other, r, move.round);
            assert_true(there < pair_moves(other));
            assert_int_equal(pair_move(other, there).final, move.final);
            for (uint64_t stripe = 0; stripe < pair->stripes; stripe++) {
                const struct ring_span sent = pair_sent_span(pair, stripe, i);
                const struct ring_span received = pair_received_span(other, stripe, there);
                assert_int_equal(sent.first, received.first);
                assert_int_equal(sent.count, received.count);
            }
        }
        assert_int_equal(pair_expects(pair, r, 1), PAIR_MAX_MOVES);
        assert_int_equal(pair_expects(pair, (r + 1) % count, 99), PAIR_MAX_MOVES);
    }
}

// The ranks of a block of 2^round ranks of the core, with their extras.
static uint32_t block_of(uint32_t rank, uint32_t round, uint32_t count)
{
    uint32_t ranks = 0;
    const uint32_t core = topology_core(count);
    for (uint32_t r = 0; r < core; r++) {
        if (r >> round != rank >> round)
            continue;
        ranks |= 1u << r;
        if (r + core < count)
            ranks |= 1u << (r + core);
    }
    return ranks;
}

static void take_sum(struct world *world, uint32_t count, uint32_t rank, uint32_t index,
                     uint64_t stripe, const uint32_t *sums, uint32_t round)
{
    const struct ring_span span = pair_received_span(&world->pairs[rank], stripe, index);
    for (uint64_t e = span.first; e < span.first + span.count; e++) {
        assert_int_equal(world->sums[rank][e] & sums[e], 0);
        world->sums[rank][e] |= sums[e];
        assert_int_equal(world->sums[rank][e], block_of(rank, round, count));
        world->results[rank][e] = index == pair_last_sum(&world->pairs[rank]);
    }
}

// A value that a rank hands on as a result is the result. The receiver has given its input away
// before.
static void take_result(struct world *world, uint32_t rank, uint32_t from, struct ring_span span,
                        const uint32_t *sums)
{
    const struct pair *pair = &world->pairs[rank];
    const uint32_t given = pair_given(pair, world->at[rank]);
    assert_true(given < world->at[rank] && pair_move(pair, given).sends);
    assert_int_equal(pair_move(pair, given).peer, from);
    for (uint64_t e = span.first; e < span.first + span.count; e++) {
        assert_true(world->results[from][e]);
        world->results[rank][e] = true;
        world->sums[rank][e] = sums[e];
    }
}

// Makes one move of a stripe if the peer is at the matching move: both sides of an exchange at
// once.
static bool step(struct world *world, uint32_t count, uint64_t stripe, uint32_t rank)
{
    const struct pair *pair = &world->pairs[rank];
    if (world->at[rank] == pair_moves(pair))
        return false;
    const uint32_t index = world->at[rank];
    const struct pair_move move = pair_move(pair, index);
    const struct pair *other = &world->pairs[move.peer];
    const uint32_t there = world->at[move.peer];
    if (!move.sends || there == pair_moves(other) || pair_move(other, there).peer != rank ||
        pair_move(other, there).round != move.round)
        return false;
    const struct ring_span given = pair_sent_span(pair, stripe, index);
    const struct ring_span taken = pair_received_span(pair, stripe, index);
    uint32_t mine[ELEMENTS_MAX];
    uint32_t theirs[ELEMENTS_MAX];
    memcpy(mine, world->sums[rank], sizeof(mine));
    memcpy(theirs, world->sums[move.peer], sizeof(theirs));
    world->sent[rank] += given.count;
    if (move.receives)
        world->sent[move.peer] += taken.count;
    if (!move.final)
        take_sum(world, count, move.peer, there, stripe, mine, move.round);
    if (!move.final && move.receives)
        take_sum(world, count, rank, index, stripe, theirs, move.round);
    if (move.final)
        take_result(world, move.peer, rank, given, mine);
    if (move.final && move.receives)
        take_result(world, rank, move.peer, taken, theirs);
    world->at[rank]++;
    world->at[move.peer]++;
    return true;
}

static void check_sums(struct world *world, uint32_t count)
{
    for (uint64_t stripe = 0; stripe < world->pairs[0].stripes; stripe++) {
        const struct ring_span span = pair_stripe(&world->pairs[0], stripe);
        memset(world->at, 0, sizeof(world->at));
        for (uint32_t r = 0; r < count; r++)
            for (uint64_t e = span.first; e < span.first + span.count; e++)
                world->sums[r][e] = 1u << r;
        for (bool any = true; any;) {
            any = false;
            for (uint32_t r = 0; r < count; r++)
                any = step(world, count, stripe, r) || any;
        }
        for (uint32_t r = 0; r < count; r++) {
            assert_int_equal(world->at[r], pair_moves(&world->pairs[r]));
            for (uint64_t e = span.first; e < span.first + span.count; e++)
                assert_int_equal(world->sums[r][e], (1u << count) - 1);
        }
    }
}

// In a core by itself halving sends what a ring sends, but for halves that are not equal.
static void check_bytes(struct world *world, uint32_t count)
{
    check_sums(world, count);
    for (uint32_t r = 0; r < count && topology_core(count) == count; r++) {
        const uint64_t least = 2 * world->pairs[0].elements * (count - 1) / count;
        const uint64_t slack = 2 * (uint64_t)count * world->pairs[0].stripes;
        assert_in_range(world->sent[r], least < slack ? 0 : least - slack, least + slack);
    }
}

static void stripes_partition_the_elements(void **state)
{
    (void)state;
    every_shape(check_stripes, false);
    every_shape(check_stripes, true);
}

static void frames_are_expected(void **state)
{
    (void)state;
    every_shape(check_frames, false);
    every_shape(check_frames, true);
}

static void doubling_sums_every_rank_once(void **state)
{
    (void)state;
    every_shape(check_sums, false);
}

static void halving_sums_every_rank_once(void **state)
{
    (void)state;
    every_shape(check_bytes, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stripes_partition_the_elements),
        cmocka_unit_test(frames_are_expected),
        cmocka_unit_test(doubling_sums_every_rank_once),
        cmocka_unit_test(halving_sums_every_rank_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
