// SPDX-License-Identifier: Apache-2.0
//
// The schedule of waves; see wave.h. Pure, any thread.

#include "worker/wave.h"

#include "protos/limits.h"
#include "protos/topology.h"

#include <assert.h>

static_assert((1u << (WAVE_MAX_MOVES - 2)) >= LOCKSTEP_MAX_WORLD, "log2 of the largest world");

static uint32_t wave_log2(uint32_t power)
{
    uint32_t log = 0;
    while (power >>= 1)
        log++;
    return log;
}

uint32_t wave_moves(uint32_t rank, uint32_t world)
{
    const uint32_t core = topology_core(world);
    if (rank >= core)
        return 2;
    return wave_log2(core) + (rank + core < world ? 2 : 0);
}

struct wave_move wave_move(uint32_t rank, uint32_t world, uint32_t index)
{
    const uint32_t core = topology_core(world);
    const uint32_t last = 1 + wave_log2(core);
    assert(index < wave_moves(rank, world));
    if (rank >= core && index == 0)
        return (struct wave_move){.peer = rank - core, .round = 0, .sends = true};
    if (rank >= core)
        return (struct wave_move){
            .peer = rank - core, .round = last, .receives = true, .replaces = true};
    const bool folds = rank + core < world;
    if (folds && index == 0)
        return (struct wave_move){.peer = rank + core, .round = 0, .receives = true};
    const uint32_t round = folds ? index : index + 1;
    if (round == last)
        return (struct wave_move){.peer = rank + core, .round = last, .sends = true};
    return (struct wave_move){
        .peer = rank ^ (1u << (round - 1)), .round = round, .sends = true, .receives = true};
}

bool wave_expects(uint32_t rank, uint32_t world, uint32_t peer, uint32_t round)
{
    const uint32_t moves = wave_moves(rank, world);
    for (uint32_t i = 0; i < moves; i++) {
        const struct wave_move move = wave_move(rank, world, i);
        if (move.receives && move.peer == peer && move.round == round)
            return true;
    }
    return false;
}
