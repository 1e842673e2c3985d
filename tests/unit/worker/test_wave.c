// SPDX-License-Identifier: Apache-2.0
//
// The schedule of waves: every send has its receive, peers are neighbours, every contribution is
// merged exactly once, whatever order ranks run in.

#include "worker/transport/flow/wave.h"

#include "protos/limits.h"
#include "protos/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

static bool is_neighbour(uint32_t rank, uint32_t world, uint32_t peer)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    const uint32_t count = topology_neighbours(rank, world, ranks);
    for (uint32_t i = 0; i < count; i++)
        if (ranks[i] == peer)
            return true;
    return false;
}

// The move of `rank` with this peer in this round, or false.
static bool find_move(uint32_t rank, uint32_t world, uint32_t peer, uint32_t round,
                      struct wave_move *move)
{
    for (uint32_t i = 0; i < wave_moves(rank, world); i++) {
        *move = wave_move(rank, world, i);
        if (move->peer == peer && move->round == round)
            return true;
    }
    return false;
}

static void check_pairs(uint32_t rank, uint32_t world)
{
    uint32_t before = 0;
    assert_true(wave_moves(rank, world) <= WAVE_MAX_MOVES);
    for (uint32_t i = 0; i < wave_moves(rank, world); i++) {
        const struct wave_move move = wave_move(rank, world, i);
        struct wave_move other;
        assert_true(is_neighbour(rank, world, move.peer));
        assert_true(i == 0 || move.round > before);
        before = move.round;
        assert_true(find_move(move.peer, world, rank, move.round, &other));
        assert_int_equal(move.sends, other.receives);
        assert_int_equal(move.receives, other.sends);
        assert_int_equal(move.receives, wave_expects(rank, world, move.peer, move.round));
    }
    assert_false(wave_expects(rank, world, world, 0));
    assert_false(wave_expects(rank, world, rank, 0));
}

static void every_send_has_its_receive(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 70; world++)
        for (uint32_t rank = 0; rank < world; rank++)
            check_pairs(rank, world);
    for (uint32_t rank = 0; rank < LOCKSTEP_MAX_WORLD; rank++)
        check_pairs(rank, LOCKSTEP_MAX_WORLD);
    for (uint32_t rank = 0; rank < LOCKSTEP_MAX_WORLD - 1; rank++)
        check_pairs(rank, LOCKSTEP_MAX_WORLD - 1);
}

#define WORLD_MAX 40

// A value: how often it contains the contribution of each rank.
struct value {
    uint32_t times[WORLD_MAX];
};

struct sim {
    uint32_t world;
    struct value values[WORLD_MAX];
    uint32_t moves[WORLD_MAX];
    bool sent[WORLD_MAX];
    struct value wire[WORLD_MAX][WORLD_MAX]; // [from][to].
    bool on_wire[WORLD_MAX][WORLD_MAX];
};

// Does what a rank can do now. False: nothing.
static bool sim_act(struct sim *sim, uint32_t rank)
{
    if (sim->moves[rank] == wave_moves(rank, sim->world))
        return false;
    const struct wave_move move = wave_move(rank, sim->world, sim->moves[rank]);
    bool acted = false;
    if (move.sends && !sim->sent[rank]) {
        assert_false(sim->on_wire[rank][move.peer]); // One message a link and wave.
        sim->wire[rank][move.peer] = sim->values[rank];
        sim->on_wire[rank][move.peer] = true;
        acted = true;
    }
    sim->sent[rank] = true;
    if (move.receives && !sim->on_wire[move.peer][rank])
        return acted;
    for (uint32_t i = 0; move.receives && i < sim->world; i++) {
        const uint32_t got = sim->wire[move.peer][rank].times[i];
        sim->values[rank].times[i] = got + (move.replaces ? 0 : sim->values[rank].times[i]);
    }
    if (move.receives)
        sim->on_wire[move.peer][rank] = false;
    sim->moves[rank]++;
    sim->sent[rank] = false;
    return true;
}

static void check_world(uint32_t world, unsigned seed)
{
    struct sim *sim = calloc(1, sizeof(*sim));
    sim->world = world;
    for (uint32_t i = 0; i < world; i++)
        sim->values[i].times[i] = 1;
    srand(seed);
    uint32_t idle = 0;
    while (idle < 100 * world)
        idle = sim_act(sim, (uint32_t)rand() % world) ? 0 : idle + 1;
    for (uint32_t rank = 0; rank < world; rank++) {
        assert_int_equal(sim->moves[rank], wave_moves(rank, world));
        for (uint32_t i = 0; i < world; i++)
            assert_int_equal(sim->values[rank].times[i], 1);
    }
    free(sim);
}

static void every_contribution_counts_once(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= WORLD_MAX; world++)
        for (unsigned seed = 0; seed < 10; seed++)
            check_world(world, seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_send_has_its_receive),
        cmocka_unit_test(every_contribution_counts_once),
    };
    return cmocka_run_group_tests_name("wave", tests, NULL, NULL);
}
