// SPDX-License-Identifier: Apache-2.0
//
// See moves.h. What is summed is summed in the order of the members, with one rounding, so a bit of
// the result depends on the inputs and that order alone. Only final bytes are stored.
//
// Cost with a row of E bytes and n seats, if all parts are equal: (n - 1) / n E copied to the board
// and as much read from it. Engine thread.

#include "worker/transport/host/moves.h"

#include "worker/kernels/combine.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/host/host.h"

#include <string.h>

static_assert(COLLECTIVE_ROW_BYTES <= BOARD_SHOT_BYTES, "a row fits in a block");
static_assert(COLLECTIVE_ROW_BYTES <= BOARD_SLOT_BYTES, "a row fits in a slot");

static const struct collective_part *moves_own(const struct shared *shared,
                                               const struct collective_part *parts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].rank == shared->flows->world.rank)
            return &parts[i];
    }
    return NULL;
}

void moves_fill(const struct shared *shared, const struct collective *collective, uint8_t *row)
{
    const struct collective_parts *parts = collective->parts;
    const uint64_t element = dtype_size(collective->dtype);
    const void *last = NULL;
    for (uint32_t i = 0; i < parts->send_count; i++) {
        const struct collective_part *part = &parts->sends[i];
        if (part->rank == shared->flows->world.rank || part->elements == 0 || part->memory == last)
            continue;
        memcpy(row + part->offset * element, part->memory, part->elements * element);
        last = part->memory;
    }
}

void moves_keep(const struct shared *shared, const struct collective *collective)
{
    const struct collective_parts *parts = collective->parts;
    const struct collective_part *from = moves_own(shared, parts->sends, parts->send_count);
    const struct collective_part *to = moves_own(shared, parts->receives, parts->receive_count);
    if (collective->kind == COLLECTIVE_EXCHANGE && to && to->elements > 0 &&
        from->memory != to->memory)
        memcpy(to->memory, from->memory, to->elements * dtype_size(collective->dtype));
}

static void moves_reduce(const struct shared *shared, const struct collective *collective,
                         const void *const *rows, const uint64_t *factors, uint64_t weight)
{
    const struct collective_parts *parts = collective->parts;
    const struct collective_part *result = &parts->receives[0];
    const void *sources[LOCKSTEP_MAX_MATES];
    uint64_t weights[LOCKSTEP_MAX_MATES];
    for (uint32_t i = 0; i < parts->send_count; i++) {
        const uint32_t seat = host_seat_of(shared, parts->sends[i].rank);
        sources[i] = NULL;
        if (rows[seat] && seat == shared->seat)
            sources[i] = parts->sends[i].memory;
        else if (rows[seat])
            sources[i] =
                (const uint8_t *)rows[seat] + result->offset * dtype_size(collective->dtype);
        weights[i] = factors ? factors[seat] : 1;
    }
    const struct kernel_combination what = {.dtype = collective->dtype,
                                            .op = collective->op,
                                            .count = parts->send_count,
                                            .sources = sources,
                                            .weights = factors ? weights : NULL,
                                            .total = host_is_mean(collective) ? weight : 1};
    kernel_combine(&what, result->memory, result->elements);
}

void moves_finish(const struct shared *shared, const struct collective *collective,
                  const void *const *rows, const uint64_t *factors, uint64_t weight)
{
    const struct collective_parts *parts = collective->parts;
    const uint64_t element = dtype_size(collective->dtype);
    if (collective->kind == COLLECTIVE_REDUCE_SCATTER) {
        if (parts->receives[0].elements > 0)
            moves_reduce(shared, collective, rows, factors, weight);
        return;
    }
    for (uint32_t i = 0; i < parts->receive_count; i++) {
        const struct collective_part *part = &parts->receives[i];
        const uint32_t seat = host_seat_of(shared, part->rank);
        if (seat != shared->seat && part->elements > 0)
            memcpy(part->memory, (const uint8_t *)rows[seat] + part->offset * element,
                   part->elements * element);
    }
}
