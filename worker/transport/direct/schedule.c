// SPDX-License-Identifier: Apache-2.0
//
// See schedule.h. Pure.

#include "worker/transport/direct/schedule.h"

#define SCHEDULE_PIECE_LEAST (64 * 1024) // Bytes.
#define SCHEDULE_PIECES 4 // Pieces of a run that is neither very short nor very long.

struct ring_span direct_owned(uint64_t elements, uint32_t members, uint32_t index)
{
    const uint64_t grains = elements / SCHEDULE_GRAIN + (elements % SCHEDULE_GRAIN != 0);
    const uint64_t share = (grains / members + (grains % members != 0)) * SCHEDULE_GRAIN;
    const uint64_t first = share * index < elements ? share * index : elements;
    const uint64_t end = elements - first < share ? elements : first + share;
    return (struct ring_span){first, end - first};
}

uint64_t direct_piece_of_move(uint32_t element, uint32_t chunk_bytes)
{
    return chunk_bytes / element;
}

uint64_t direct_piece_of_sum(uint64_t elements, uint32_t element, uint32_t chunk_bytes)
{
    const uint64_t most = direct_piece_of_move(element, chunk_bytes);
    const uint64_t least = SCHEDULE_PIECE_LEAST / element;
    const uint64_t share = elements / SCHEDULE_PIECES + (elements % SCHEDULE_PIECES != 0);
    const uint64_t grains = share / SCHEDULE_GRAIN + (share % SCHEDULE_GRAIN != 0);
    const uint64_t piece = grains * SCHEDULE_GRAIN > least ? grains * SCHEDULE_GRAIN : least;
    return piece < most ? piece : most;
}

uint32_t direct_pieces(uint64_t elements, uint64_t piece)
{
    return (uint32_t)(elements / piece + (elements % piece != 0));
}

struct ring_span direct_piece(struct ring_span run, uint64_t piece, uint32_t index)
{
    const uint64_t before = piece * index;
    const uint64_t left = run.count - before;
    return (struct ring_span){run.first + before, left < piece ? left : piece};
}
