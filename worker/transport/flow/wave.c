// SPDX-License-Identifier: Apache-2.0
//
// The schedule of waves; see wave.h. Pure, any thread.

#include "worker/transport/flow/wave.h"

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

struct wave_origin wave_origin(uint32_t world, const struct wave_move *move)
{
    const uint32_t core = topology_core(world);
    if (move->replaces)
        return (struct wave_origin){.world = world, .core = core, .first = 0, .count = core};
    if (move->round == 0) // An extra sends only its own contribution.
        return (struct wave_origin){.world = world, .core = world, .first = move->peer, .count = 1};
    const uint32_t count = 1u << (move->round - 1);
    return (struct wave_origin){
        .world = world, .core = core, .first = move->peer / count * count, .count = count};
}

uint32_t wave_origin_ranks(const struct wave_origin *origin)
{
    const uint32_t extras = origin->world - origin->core;
    const uint32_t end = origin->first + origin->count;
    const uint32_t last = end < extras ? end : extras;
    return origin->count + (last > origin->first ? last - origin->first : 0);
}

bool wave_origin_has(const struct wave_origin *origin, uint32_t rank)
{
    const uint32_t core_rank = rank >= origin->core ? rank - origin->core : rank;
    return rank < origin->world && core_rank >= origin->first &&
           core_rank - origin->first < origin->count;
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
