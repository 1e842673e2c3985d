// SPDX-License-Identifier: Apache-2.0
//
// The tables that the kernels of a device walk over (worker/device/kernels.h), made of a
// collective's extents and units. It fills the caller's arrays and knows no device: who makes them,
// copies them there. Pure functions; any thread.

#ifndef WORKER_TRANSPORT_DEVICE_TABLE_H
#define WORKER_TRANSPORT_DEVICE_TABLE_H

#include "worker/device/kernels.h"
#include "worker/transport/flow/collective.h"

// At most so many pieces has a collective, and its array one entry more for the end.
static inline uint32_t device_pieces_most(const struct collective *collective)
{
    return collective->extent_count + collective->unit_count;
}

// Fills pieces[] up to the one that says where the row ends. Returns how many there are, without
// that one. Extents are cut where units end; with units in every extent's own place, as buckets
// are, the cuts are the same in every step. Without units: one piece for each extent that has
// elements.
uint32_t device_pieces(const struct collective *collective, struct device_piece *pieces);

// tiles[device_tiles(elements)], from pieces as they were filled.
void device_piece_tiles(const struct device_piece *pieces, uint32_t count, uint32_t *tiles);

#endif
